//! A worker stops by itself before its work is given to others.
//!
//! Two clocks tell that: its own says whether it can prove its lease ([`zagros_coordinator_client::LeaseProof`]); without
//! a proof it makes no step, and goes on once the coordinator answers again. And the coordinator says whether a worker
//! of this one's group was lost, or the run is over: then no call of the group is waited for any longer.

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};
use zagros_collective::Interrupt;
use zagros_coordinator_client::MemberView;

use super::train::Trainer;
use crate::error::WorkerError;

impl Trainer {
    /// Before a step: waits until this worker can prove its lease, at most for the job's timeout (invariant MB-3).
    ///
    /// # Errors
    /// Why training ends meanwhile, or [`WorkerError::LeaseUnproven`].
    pub(super) async fn prove_lease(&mut self) -> Result<(), WorkerError> {
        let mut proof = self.membership.proof();
        if proof.is_valid() {
            return Ok(());
        }
        let coordinator = self.splits.control.name().to_owned();
        let silence = proof.age();
        warn!(coordinator, "no heartbeat was answered for {silence:.1?}: no step until the lease is proven again");
        self.tracker.pause();
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            reason = stop.requested() => return Err(reason),
            () = proof.valid_again() => {}
            () = tokio::time::sleep(self.job.cluster.timeout) => {
                return Err(WorkerError::LeaseUnproven { coordinator, silence: proof.age() });
            }
        }
        info!(coordinator, "the lease is proven again; training goes on");
        self.tracker.resume();
        Ok(())
    }
}

/// Ends the calls of a group once the run is over, this worker is fenced, or a worker of the group is lost, where the
/// others go on without it (`generation` is the group's then). In other modes a lost worker ends the run; it has the
/// job's timeout to come back. Watches while it lives.
pub(super) fn watch_group(
    interrupt: Interrupt,
    mut view: watch::Receiver<MemberView>,
    generation: Option<u64>,
) -> AbortOnDropHandle<()> {
    let is_broken = move |view: &MemberView| generation.is_some_and(|generation| view.broken_group >= generation);
    let is_in_vain = move |view: &MemberView| is_broken(view) || view.stop.is_some() || view.fenced.is_some();
    AbortOnDropHandle::new(tokio::spawn(async move {
        if view.wait_for(is_in_vain).await.is_ok() {
            interrupt.set();
        }
    }))
}
