//! How a member proves that it still holds its lease, without asking anyone.
//!
//! The coordinator gives a member's work to others once the member has been silent for a lease. A member that cannot reach
//! the coordinator must stop before that. Both clocks run at the same rate. The coordinator counts from the arrival of a
//! heartbeat. The member counts from the time at which it sent the heartbeat, which is earlier. It also counts the time for which
//! its machine was suspended. The member's proof therefore ends first. A margin of one heartbeat is left for the step in progress:
//!
//! ```text
//! member       sent ├────────── proof ──────────┤ margin │
//! coordinator         heard ├──────────── lease ──────────────┤ work is given to others
//! ```

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseMoment {
    /// By the clock of timers, which stands still while the machine is suspended.
    awake: Instant,
    /// Since the machine was started, with the time for which it was suspended.
    boot: Duration,
}

impl LeaseMoment {
    pub(crate) fn now() -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(boot.tv_sec), u32::try_from(boot.tv_nsec));
        Self { awake: Instant::now(), boot: Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default()) }
    }

    fn elapsed(self) -> Duration {
        let now = Self::now();
        (now.awake - self.awake).max(now.boot.saturating_sub(self.boot))
    }
}

/// For how long after an answered heartbeat a member may act on its lease.
#[derive(Clone, Debug)]
pub struct LeaseProof {
    valid: Duration,
    renewed: watch::Receiver<LeaseMoment>,
}

impl LeaseProof {
    /// The proof of a lease that starts now. The holder of the sender renews it.
    pub(crate) fn starting_now(valid: Duration) -> (watch::Sender<LeaseMoment>, Self) {
        let (renewals, renewed) = watch::channel(LeaseMoment::now());
        (renewals, Self { valid, renewed })
    }

    pub fn is_valid(&self) -> bool {
        self.renewal_age() < self.valid
    }

    /// The time since the last answered heartbeat was sent.
    pub fn renewal_age(&self) -> Duration {
        self.renewed.borrow().elapsed()
    }

    /// Waits until the lease is proven again. Waits for ever if the sender of renewals is gone.
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
        assert!(!proof.is_valid() && proof.renewal_age() >= Duration::from_secs(6));
        // An answer to a heartbeat that was sent long ago proves nothing.
        let now = LeaseMoment::now();
        renew.send_replace(LeaseMoment { awake: now.awake - Duration::from_secs(6), ..now });
        assert!(tokio::time::timeout(Duration::from_secs(1), proof.valid_again()).await.is_err());
        renew.send_replace(LeaseMoment::now());
        proof.valid_again().await;
        assert!(proof.is_valid());
        // The machine was suspended for six seconds, in which no timer ran.
        renew.send_replace(LeaseMoment { boot: now.boot.saturating_sub(Duration::from_secs(6)), ..LeaseMoment::now() });
        assert!(!proof.is_valid());
    }
}
