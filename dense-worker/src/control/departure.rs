//! A request to end that reaches one worker of several: the run may go on without it (invariant RK-4).

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;
use zagros_coordinator_client::Membership;
use zagros_job::{Job, Mode};
use zagros_plumbing::Shutdown;

/// From now on a request to end the process of this worker is put to the coordinator first. Either the worker leaves the run,
/// which goes on without it, or the request ends training, as it does where no worker may leave. `shutdown` becomes the
/// request that ends training.
pub(super) fn ask_first(
    job: &Job,
    index: u32,
    shutdown: &mut Shutdown,
    membership: &Arc<Membership>,
) -> Option<AbortOnDropHandle<()>> {
    let may_be_spared = job.cluster.least_workers() < job.cluster.most_workers();
    if job.train.mode != Mode::Hybrid || index == 0 || !may_be_spared {
        return None;
    }
    let (stop, membership) = (Shutdown::new(), Arc::clone(membership));
    let asked = std::mem::replace(shutdown, stop.clone());
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        asked.requested().await;
        if membership.ask_to_leave().await {
            tracing::info!("asked to end, and the run goes on without this worker");
        } else {
            stop.request();
        }
    })))
}
