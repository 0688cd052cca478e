//! Groups of workers: how one forms, and how a failed one is left.
//!
//! In modes `hybrid` and `async` a lost worker does not end the run (invariants RK-3 and AS-2). Those left give up the step in progress, wait at
//! the coordinator for another process in the place of the lost one, form the next group with it, and all continue from
//! the most advanced rank. No batch is lost: what was read and not trained on is read again from the resume cursor. The
//! splits of the lost worker are dealt out again.

use std::sync::Arc;
use std::time::Duration;

use zagros_collective::{CollectiveError, GroupInterrupt, GroupLane, ProcessGroupConfig, Rendezvous};
use zagros_coordinator_client::{Waiting, wait_for_group};
use zagros_embedding_client::RequestReach;
use zagros_job::WeightStore;
use zagros_protocol::control::{GroupResponse, WaitKind};
use zagros_worker_core::{Event, GroupMember, InFlight, RankProgress};
use zagros_zip::ZipEq;

use super::session::{GroupRank, InFlightBatch};
use super::watch::{GroupStage, watch_group};
use crate::control::data::LOOP;
use crate::control::save::run_blocking;
use crate::control::trainer::Trainer;
use crate::datapath::dense::{DenseStage, StepResult};
use crate::datapath::push::BatchGradients;
use crate::error::WorkerError;
use crate::event::WorkerEvent;

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
        let shutdown = self.run.stop.shutdown();
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
        let (generation, store, timeout) = (group.generation, group.store.clone(), self.run.job.cluster.timeout);
        let interrupt = GroupInterrupt::default();
        let (mode, ends) = (self.run.job.train.mode, interrupt.clone());
        let watch = |stage| watch_group(ends.clone(), self.run.membership.subscribe(), (mode, stage), generation);
        // While the group forms, too, a worker of it may be lost.
        self.group.watch = Some(watch(GroupStage::Forming));
        let lane = GroupLane::Steps;
        let place = ProcessGroupConfig { rank, world, generation, lane, store, timeout, interrupt };
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
    pub(crate) async fn leave_group(&mut self, epoch: u32) -> Result<Event, WorkerError> {
        self.stream.drop_batches();
        self.stream.reader = None;
        self.tracker.pause_clock();
        (self.stream.permit, self.group.agreed) = (None, None);
        let stepped = self.run.dense.call(DenseStage::leave_group).await?;
        if let Some(batch) = &mut self.group.in_flight {
            batch.stepped = stepped;
        }
        self.drain(epoch).await?;
        self.stream.position.wait_until_closed(self.run.job.cluster.timeout).await?;
        Ok(Event::Left)
    }

    /// Ends the batch of the step that failed: where other ranks made the step, this worker's gradients are in it, and so the
    /// rows' must be; else it is read again.
    pub(crate) async fn reconcile_step(&mut self, epoch: u32, in_flight: InFlight) -> Result<(), WorkerError> {
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
        self.drain(epoch).await
    }
}
