//! A worker stops by itself before its work is given to others.
//!
//! Its own clock says whether it can prove its lease ([`zagros_coordinator_client::LeaseProof`]). Without a proof it makes
//! no step. It goes on once the coordinator answers again.

use tracing::{info, warn};
use zagros_coordinator_client::Waiting;
use zagros_protocol::control::WaitKind;

use crate::control::trainer::Trainer;
use crate::error::WorkerError;

impl Trainer {
    /// Before a step: waits until this worker can prove its lease, at most for the job's timeout (invariant MB-3). Without
    /// `stop` it does not listen for a request to stop: others count on the batch, or its lookup was counted.
    ///
    /// # Errors
    /// Why training ends meanwhile, or [`WorkerError::LeaseUnproven`].
    pub(super) async fn prove_lease(&mut self, stop: bool) -> Result<(), WorkerError> {
        let mut proof = self.run.membership.lease_proof();
        if proof.is_valid() {
            return Ok(());
        }
        let coordinator = self.run.splits.control.name().to_owned();
        let silence = proof.renewal_age();
        warn!(coordinator, "no heartbeat was answered for {silence:.1?}: no step until the lease is proven again");
        self.tracker.pause_clock();
        let waiting = Waiting::new("lease", WaitKind::Coordinator, "the proof of its lease");
        let _waiting = self.run.metrics.waits.begin_wait(waiting.with_timeout(self.run.job.cluster.timeout));
        let (mut requests, mut ends) = (self.run.stop.clone(), self.run.stop.clone());
        tokio::select! {
            biased;
            reason = requests.wait_for_request(), if stop => return Err(reason),
            reason = ends.run_ended(), if !stop => return Err(reason),
            () = proof.valid_again() => {}
            () = tokio::time::sleep(self.run.job.cluster.timeout) => {
                return Err(WorkerError::LeaseUnproven { coordinator, silence: proof.renewal_age() });
            }
        }
        info!(coordinator, "the lease is proven again; training goes on");
        self.tracker.resume_clock();
        Ok(())
    }
}
