//! A request to end that reaches one worker of several: the run may go on without it (invariant RK-4).

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;
use zagros_coordinator_client::Membership;
use zagros_job::{Job, Mode};
use zagros_plumbing::Shutdown;
use zagros_protocol::control::{BarrierReason, BarrierVote, CountedVote};
use zagros_zip::ZipEq;

use crate::control::trainer::Trainer;

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
    if job.train.mode == Mode::Sync || index == 0 || !may_be_spared {
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

impl Trainer {
    /// Some asynchronous workers leave, as these votes say, and all are still in their group. The first worker that stays takes over
    /// what those that leave have measured of the epoch. Where the group fails meanwhile, the measures of the epoch on training
    /// rows are without those, and nothing else is.
    pub(crate) async fn take_over_measures(&mut self, votes: &[CountedVote]) {
        let mine = self.tracker.overall().clone();
        let gathered = self.run.dense.call(move |dense| dense.all_gather_values(&mine)).await;
        let all = match gathered {
            Ok(Ok(all)) => all,
            Ok(Err(error)) | Err(error) => {
                return tracing::warn!(%error, "the measures of this epoch lack those of a worker that leaves");
            }
        };
        let indices = &self.group.indices;
        let heir = indices.iter().find(|index| !leaves(votes, **index));
        if heir == Some(&self.group.worker_index()) {
            let left = indices.iter().zip_eq(all).filter(|(index, _)| leaves(votes, **index));
            self.tracker.take_over(&left.map(|(_, measures)| measures).collect::<Vec<_>>());
        }
    }
}

fn leaves(votes: &[CountedVote], worker: u32) -> bool {
    let voted = votes.iter().find(|counted| counted.worker == worker).and_then(|counted| counted.vote.as_ref());
    voted.map(BarrierVote::reason) == Some(BarrierReason::Leave)
}
