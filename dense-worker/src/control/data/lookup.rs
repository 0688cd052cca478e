//! The next batch of this worker, its rows looked up.
//!
//! A worker stops by itself before its work is given to others: its own clock says whether it can prove its lease
//! ([`zagros_coordinator_client::LeaseProof`]). Without a proof it makes no step. It goes on once the coordinator answers again.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};
use zagros_coordinator_client::{MemberView, Waiting};
use zagros_ingest::{Batch, IngestError};
use zagros_protocol::control::{CompleteRequest, WaitKind};
use zagros_worker_core::{Event, StepFacts};

use super::interrupted_or;
use super::stream::StreamState;
use crate::control::trainer::Trainer;
use crate::datapath::prefetch::RowPrefetch;
use crate::datapath::prepared::FetchedBatch;
use crate::error::WorkerError;
use crate::metrics::PipelineStage;

impl Trainer {
    /// The next batch that has samples. Acknowledgements are counted meanwhile. It listens for a request to `stop`, and for
    /// barriers later than `barriers_after` and newer groups. With a `deadline` it waits no longer than for a server.
    pub(crate) async fn next_batch(
        &mut self,
        stop: bool,
        deadline: bool,
        barriers_after: Option<u64>,
    ) -> Result<Event, WorkerError> {
        if self.stream.batch.is_some() {
            return self.batch_ready(stop).await;
        }
        let mut groups = self.run.membership.subscribe();
        let until = deadline.then(|| Instant::now() + self.run.job.cluster.timeout);
        loop {
            let since = Instant::now();
            let fetched = tokio::select! {
                biased;
                reason = self.run.stop.wait_for_request(), if stop => {
                    return interrupted_or(reason).map(|()| Event::StopRequested);
                }
                () = self.barrier_calls.wait_until_due(barriers_after.unwrap_or(u64::MAX)), if barriers_after.is_some() => {
                    self.run.metrics.add_stage_time(PipelineStage::Waiting, since.elapsed());
                    return Ok(Event::BarrierDue);
                }
                () = newer_group(&mut groups, self.group.generation()), if barriers_after.is_some() => {
                    self.run.metrics.add_stage_time(PipelineStage::Waiting, since.elapsed());
                    return Ok(Event::GroupDue);
                }
                complete = self.stream.pushes.next_acknowledged() => {
                    self.complete_splits(complete?);
                    self.run.metrics.add_stage_time(PipelineStage::Waiting, since.elapsed());
                    continue;
                }
                () = passed(until) => return Ok(Event::BatchLate),
                fetched = from_stream(&mut self.stream.prefetch) => fetched,
            };
            self.run.metrics.add_stage_time(PipelineStage::Waiting, since.elapsed());
            let Some(fetched) = self.rows_or_end(fetched)? else { return Ok(Event::StreamDry(self.step_facts())) };
            self.stream.next_seq = fetched.seq + 1;
            if fetched.prepared.batch.size > 0 {
                self.stream.batch = Some(Box::new(fetched));
                return self.batch_ready(stop).await;
            }
            self.skip_batch(fetched.seq, fetched.prepared.batch);
        }
    }

    /// The batch is there. It is stepped with once the lease is proven. A worker that is asked to stop meanwhile keeps the
    /// batch, for the loop may want it all the same.
    async fn batch_ready(&mut self, stop: bool) -> Result<Event, WorkerError> {
        match self.prove_lease(stop).await {
            Err(reason) if stop => interrupted_or(reason).map(|()| Event::StopRequested),
            proven => proven.map(|()| Event::BatchReady(self.step_facts())),
        }
    }

    pub(crate) fn step_facts(&self) -> StepFacts {
        let checkpoint_by_time = self.checkpoints.is_due_by_time();
        let membership = &self.run.membership;
        StepFacts { checkpoint_by_time, newest_group: membership.group_generation(), leaves: membership.may_leave() }
    }

    /// Splits without a training row are nothing to stop for where rows may have been read before, or by another worker.
    fn rows_or_end(
        &mut self,
        fetched: Option<Result<FetchedBatch, WorkerError>>,
    ) -> Result<Option<FetchedBatch>, WorkerError> {
        let may_be_dry = self.tracker.own_steps() > 0 || self.run.job.cluster.has_groups() || self.run.joins_late();
        match fetched.transpose() {
            Err(WorkerError::Ingest(IngestError::NoRows { .. })) if may_be_dry => Ok(None),
            fetched => fetched,
        }
    }

    pub(crate) fn skip_batch(&mut self, seq: u64, mut batch: Batch) {
        let ends = self.stream.position.advance(&mut batch);
        let complete = self.stream.pushes.skip_batch(seq, ends);
        self.complete_splits(complete);
    }

    /// Waits until every gradient, also of streamed layers, is acknowledged and every complete split is reported.
    pub(crate) async fn drain(&mut self) -> Result<(), WorkerError> {
        let complete = self.stream.pushes.drain().await?;
        self.complete_splits(complete);
        self.run.dense.call(|dense| dense.model.wait_for_pushes()).await??;
        self.run.completer.flush().await
    }

    pub(crate) fn complete_splits(&mut self, splits: Vec<u64>) {
        if !splits.is_empty() {
            self.stream.splits_read.extend(&splits);
            let StreamState { contents, position, .. } = &mut self.stream;
            contents.extend(splits.iter().filter_map(|split| Some((*split as u32, position.content_hash(*split)?))));
            let (member, incarnation, epoch) = (self.run.splits.member, self.run.splits.incarnation, self.epoch);
            let bad_rows = splits.iter().map(|split| self.stream.position.bad_rows(*split)).collect();
            self.run.completer.report_complete(CompleteRequest { member, incarnation, epoch, splits, bad_rows });
        }
    }

    /// Those of this worker's stream are checked where they are read; here those of all workers are. A share is judged by each
    /// worker on its own rows.
    pub(crate) fn check_bad_rows(&self) -> Result<(), WorkerError> {
        let (count, limit) = (self.run.completer.bad_rows(), self.run.job.data.max_bad_rows);
        if count <= limit || self.run.job.data.max_bad_share > 0.0 {
            return Ok(());
        }
        Err(IngestError::TooManyBadRows { count, limit, share: 0.0, rows: 0, first: Vec::new() }.into())
    }

    pub(crate) async fn wait_for_splits(
        &mut self,
        pause: Duration,
        barriers_after: Option<u64>,
    ) -> Result<Event, WorkerError> {
        let mut groups = self.run.membership.subscribe();
        tokio::select! {
            // Seen when asking again.
            _ = self.run.stop.wait_for_request() => Ok(Event::WaitOver),
            () = self.barrier_calls.wait_until_due(barriers_after.unwrap_or(u64::MAX)), if barriers_after.is_some() => {
                Ok(Event::BarrierDue)
            }
            () = newer_group(&mut groups, self.group.generation()), if barriers_after.is_some() => Ok(Event::GroupDue),
            () = tokio::time::sleep(pause) => Ok(Event::WaitOver),
        }
    }

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

async fn newer_group(view: &mut watch::Receiver<MemberView>, generation: u64) {
    if view.wait_for(|view| view.group > generation).await.is_err() {
        // The membership is gone, so no report of a group comes.
        std::future::pending::<()>().await;
    }
}

/// Waits for a moment; for ever without one.
async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Of no stream there is no next batch.
async fn from_stream(prefetch: &mut Option<RowPrefetch>) -> Option<Result<FetchedBatch, WorkerError>> {
    match prefetch {
        Some(prefetch) => prefetch.next().await,
        None => None,
    }
}
