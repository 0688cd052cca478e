//! How a member proves that it still holds its lease, without asking anyone.
//!
//! The coordinator gives a member's work to others once the member has been silent for a lease. A member that cannot reach
//! the coordinator must stop before that. Both clocks run at the same rate. The coordinator counts from the arrival of a
//! heartbeat. The member counts from the time at which it sent the heartbeat, which is earlier. The member's proof
//! therefore ends first. A margin of one heartbeat is left for the step in progress:
//!
//! ```text
//! member       sent ├────────── proof ──────────┤ margin │
//! coordinator         heard ├──────────── lease ──────────────┤ work is given to others
//! ```

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// For how long after an answered heartbeat a member may act on its lease.
#[derive(Clone, Debug)]
pub struct LeaseProof {
    valid: Duration,
    renewed: watch::Receiver<Instant>,
}

impl LeaseProof {
    /// The proof of a lease that starts now. The holder of the sender renews it.
    pub(crate) fn starting_now(valid: Duration) -> (watch::Sender<Instant>, Self) {
        let (renewals, renewed) = watch::channel(Instant::now());
        (renewals, Self { valid, renewed })
    }

    /// Whether the lease is proven now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.age() < self.valid
    }

    /// The time since the last answered heartbeat was sent.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.renewed.borrow().elapsed()
    }

    /// Waits until the lease is proven again. Waits for ever if nobody renews it any more.
    pub async fn valid_again(&mut self) {
        while !self.is_valid() {
            if self.renewed.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_proof_ends_by_itself_and_comes_back_with_an_answer() {
        let (renew, mut proof) = LeaseProof::starting_now(Duration::from_secs(6));
        tokio::time::sleep(Duration::from_millis(5999)).await;
        assert!(proof.is_valid());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!proof.is_valid() && proof.age() == Duration::from_secs(6));
        // An answer to a heartbeat that was sent long ago proves nothing.
        renew.send_replace(Instant::now() - Duration::from_secs(6));
        assert!(tokio::time::timeout(Duration::from_secs(1), proof.valid_again()).await.is_err());
        renew.send_replace(Instant::now());
        proof.valid_again().await;
        assert!(proof.is_valid());
    }
}
