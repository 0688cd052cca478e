//! Groups of workers: how one forms, how its calls end that are in vain, and how a failed one is left.
//!
//! In modes `hybrid` and `async` a lost worker does not end the run (invariants RK-3 and AS-2). Those left give up the step in progress, wait at
//! the coordinator for another process in the place of the lost one, form the next group with it, and all continue from
//! the most advanced rank. No batch is lost: what was read and not trained on is read again from the resume cursor. The
//! splits of the lost worker are dealt out again.
//!
//! The coordinator says whether a worker of this one's group was lost, or the run is over. Then no call of the group is waited
//! for any longer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use zagros_collective::{CollectiveError, GroupInterrupt, GroupLane, ProcessGroupConfig, Rendezvous};
use zagros_coordinator_client::{MemberView, Waiting, wait_for_group};
use zagros_embedding_client::RequestReach;
use zagros_job::{Mode, WeightStore};
use zagros_protocol::control::{GroupResponse, WaitKind};
use zagros_worker_core::{Event, GroupMember, InFlight, RankProgress};
use zagros_zip::ZipEq;

use super::{GroupRank, InFlightBatch};
use crate::control::data::LOOP;
use crate::control::trainer::Trainer;
use crate::datapath::dense::{DenseStage, StepResult};
use crate::datapath::push::BatchGradients;
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use crate::report::run_blocking;

impl Trainer {
    /// Waits for the other workers of the job and joins the first group later than `after`. A job of one worker has none.
    pub(crate) async fn form_group(&mut self, after: u64, progress: RankProgress) -> Result<Event, WorkerError> {
        let cluster = &self.run.job.cluster;
        if !cluster.has_groups() {
            return Ok(Event::Formed { group: None, progress: Vec::new() });
        }
        let workers = cluster.most_workers();
        let rendezvous = self.group.rendezvous.clone().ok_or(WorkerError::Unreachable { workers })?;
        self.run.observer.observe(&WorkerEvent::WaitingFor("the other dense workers".to_owned()));
        let group = self.next_group(after).await?;
        self.group.indices.clone_from(&group.workers);
        let rank = GroupRank::new(&self.run.job, &group);
        self.group.rank = Some(rank);
        let met = self.meet(&group, rendezvous, progress).await;
        let progress = met.map_err(|error| self.unless_replaced(error, group.generation))?;
        let newcomers = group.workers.iter().zip_eq(&progress).filter(|(_, progress)| !progress.has_trained);
        self.group.newcomers = newcomers.map(|(index, _)| *index).collect();
        self.group.most_steps = progress.iter().map(|progress| progress.steps).max().unwrap_or(0);
        self.ballots.enter_group(rank.generation);
        let member = GroupMember { rank: rank.rank, generation: rank.generation };
        Ok(Event::Formed { group: Some(member), progress })
    }

    /// Another process in the place of a lost worker may come as late as `timeout`
    /// after the lost one's lease has run out; the coordinator ends the run then.
    async fn next_group(&mut self, after: u64) -> Result<GroupResponse, WorkerError> {
        let lease = if after > 0 { self.run.membership.lease() * 2 } else { Duration::ZERO };
        let timeout = self.run.job.cluster.timeout + lease;
        let waiting = Waiting::new(LOOP, WaitKind::Members, "the next process group").with_timeout(timeout);
        let _waiting = self.run.metrics.waits.begin_wait(waiting);
        let (control, mut stop) = (Arc::clone(&self.run.splits.control), self.run.stop.clone());
        let shutdown = &self.run.stop.shutdown;
        tokio::select! {
            biased;
            reason = stop.wait_for_request() => Err(reason),
            group = wait_for_group(&*control, &self.run.membership, after, timeout, shutdown) => Ok(group?),
        }
    }

    async fn meet(
        &mut self,
        group: &GroupResponse,
        rendezvous: Arc<dyn Rendezvous>,
        progress: RankProgress,
    ) -> Result<Vec<RankProgress>, WorkerError> {
        let (rank, world) = (group.rank as usize, group.world as usize);
        let (run, generation) = (self.run.membership.run_id().0, group.generation);
        let (addresses, timeout) = (group.addresses.clone(), self.run.job.cluster.timeout);
        let interrupt = GroupInterrupt::default();
        let (mode, ends) = (self.run.job.train.mode, interrupt.clone());
        let watch = |stage| watch_group(ends.clone(), self.run.membership.subscribe(), (mode, stage), generation);
        // While the group forms, too, a worker of it may be lost.
        self.group.watch = Some(watch(GroupStage::Forming));
        let lane = GroupLane::Steps;
        let place = ProcessGroupConfig { rank, world, run, generation, lane, addresses, timeout, interrupt };
        let streams = self.run.job.train.weights == WeightStore::Streamed;
        let waiting = Waiting::new(LOOP, WaitKind::Workers, "the rendezvous of generation").with_number(generation);
        let _waiting = self.run.metrics.waits.begin_wait(waiting.with_timeout(timeout));
        let meet = move || {
            let of_layers = || rendezvous.form_group(&ProcessGroupConfig { lane: GroupLane::Layers, ..place.clone() });
            Ok::<_, CollectiveError>((rendezvous.form_group(&place)?, streams.then(of_layers).transpose()?))
        };
        let met = run_blocking("rendezvous", meet).await??;
        // Fitted transforms are part of what all must start from.
        let (seed, like) = (self.run.job.train.seed, format!("{:?}", self.run.job.features));
        let joined = self.run.dense.call(move |dense| dense.join_group(met, seed, like.as_bytes(), progress)).await??;
        self.group.watch = Some(watch(GroupStage::Formed));
        Ok(joined)
    }

    /// A group that a newer one has replaced while it formed was not left by a lost worker.
    fn unless_replaced(&self, error: WorkerError, generation: u64) -> WorkerError {
        let newest = self.run.membership.group_generation();
        match error {
            WorkerError::Peers(_) if newest > generation => WorkerError::BarrierMissed {
                workers: Vec::new(),
                reason: format!(
                    "the process group of generation {newest} forms in place of that of generation {generation}"
                ),
            },
            error => error,
        }
    }

    /// Lets go of a group that has failed. Nothing of its last step stays in flight: what was pushed is acknowledged and
    /// reported, and it is known what was read.
    pub(crate) async fn leave_group(&mut self) -> Result<Event, WorkerError> {
        self.stream.drop_batches();
        self.stream.reader = None;
        self.tracker.pause_clock();
        (self.stream.permit, self.group.agreed) = (None, None);
        let stepped = self.run.dense.call(DenseStage::leave_group).await?;
        if let Some(batch) = &mut self.group.in_flight {
            batch.stepped = stepped;
        }
        self.drain().await?;
        self.stream.position.wait_until_closed(self.run.job.cluster.timeout).await?;
        Ok(Event::Left)
    }

    /// Ends the batch of the step that failed: where other ranks made the step, this worker's gradients are in it, and so the
    /// rows' must be; else it is read again.
    pub(crate) async fn reconcile_step(&mut self, in_flight: InFlight) -> Result<(), WorkerError> {
        let batch = self.group.in_flight.take();
        let (Some(InFlightBatch { seq, mut prepared, permit, stepped: Some(stepped) }), InFlight::Push) =
            (batch, in_flight)
        else {
            return Ok(());
        };
        let StepResult { gradients, share, .. } = stepped;
        let ends = self.stream.position.advance(&mut prepared.batch);
        let (step, permit) = (self.row_step(seq), Arc::new(permit));
        let (unique, values, reach) = (prepared.unique, gradients, RequestReach::Owners);
        let samples = prepared.batch.size;
        let gradients = BatchGradients { seq, step, unique, values, samples, share, ends, permit, reach };
        self.stream.pushes.start(gradients);
        self.drain().await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupStage {
    /// Its workers meet. One that learns of a newer group first goes there and never comes to this one, so no worker waits for it.
    Forming,
    /// It trains, and is left between two steps by all of its workers together.
    Formed,
}

/// Ends the calls of the group of this generation once the run is over, this worker is fenced, or a worker of the group is
/// lost, where the others go on without it. In mode `sync` a lost worker ends the run; it has the job's timeout to come
/// back. Asynchronous workers need all of a group only now and then, so their calls also end once a newer group has formed.
/// Watches while it lives.
pub(super) fn watch_group(
    interrupt: GroupInterrupt,
    mut view: watch::Receiver<MemberView>,
    (mode, stage): (Mode, GroupStage),
    generation: u64,
) -> AbortOnDropHandle<()> {
    let is_broken = move |view: &MemberView| match (mode, stage) {
        (Mode::Sync, _) => false,
        (Mode::Hybrid, GroupStage::Formed) => view.broken_group >= generation,
        (Mode::Hybrid, GroupStage::Forming) | (Mode::Async, _) => {
            view.broken_group >= generation || view.group > generation
        }
    };
    let is_in_vain = move |view: &MemberView| is_broken(view) || view.stop.is_some() || view.fenced.is_some();
    AbortOnDropHandle::new(tokio::spawn(async move {
        if view.wait_for(is_in_vain).await.is_ok() {
            interrupt.set();
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the calls of group 3 end once the coordinator says this.
    async fn ends(mode: Mode, stage: GroupStage, said: MemberView) -> bool {
        let (tell, view) = watch::channel(MemberView { group: 3, ..MemberView::default() });
        let interrupt = GroupInterrupt::default();
        let watching = watch_group(interrupt.clone(), view, (mode, stage), 3);
        tell.send(said).unwrap();
        // The clock is paused: it goes on once the watcher has nothing to do.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(interrupt.is_set(), watching.is_finished());
        watching.is_finished()
    }

    /// Two workers join one shortly after the other: the first one's group is never met by those that hear of both.
    #[tokio::test(start_paused = true)]
    async fn a_group_that_forms_is_given_up_for_a_newer_one_and_one_that_trains_is_not() {
        let view = MemberView { group: 3, ..MemberView::default() };
        for (mode, stage, is_given_up) in [
            (Mode::Hybrid, GroupStage::Forming, true),
            (Mode::Hybrid, GroupStage::Formed, false),
            (Mode::Async, GroupStage::Formed, true),
            (Mode::Sync, GroupStage::Forming, false),
        ] {
            assert!(!ends(mode, stage, view.clone()).await, "{mode:?} {stage:?}: it is the newest");
            let newer = MemberView { group: 4, ..view.clone() };
            assert_eq!(ends(mode, stage, newer).await, is_given_up, "{mode:?} {stage:?}");
            let broken = MemberView { broken_group: 3, ..view.clone() };
            assert_eq!(ends(mode, stage, broken).await, mode != Mode::Sync, "{mode:?} {stage:?}");
            assert!(ends(mode, stage, MemberView { stop: Some("over".to_owned()), ..view.clone() }).await);
        }
    }
}
