//! Scoring a held-out part while training: rows are looked up but never created, nothing learns.

use std::sync::Arc;

use prometheus::Registry;
use zagros_embedding_client::{EmbeddingClient, StalenessWindow};
use zagros_ingest::{Batch, IngestError, StreamStart};
use zagros_job::Job;
use zagros_protocol::datapath::Access;
use zagros_worker_core::StepVote;

use super::held_out::HeldOut;
use super::part_scores::PartScores;
use crate::control::data::StopSignal;
use crate::control::group::GroupRank;
use crate::datapath::dense::{DenseStage, DenseThread};
use crate::datapath::prefetch::{LookupStage, RowPrefetch};
use crate::datapath::prepared::{BatchPreparer, FetchedBatch, inconsistent_batch};
use crate::datapath::process_group::RankTurn;
use crate::datapath::read::{OpenSource, ReaderThread};
use crate::error::WorkerError;
use crate::event::{Observer, WorkerEvent};
use crate::metrics::WorkerMetrics;

/// Batches looked up ahead: enough to hide a round trip, few enough to stay small.
const AHEAD: usize = 3;

enum ScoringTurn {
    /// With its batch, or along with others that have one.
    Score(Option<Box<FetchedBatch>>),
    /// No worker has one.
    Done,
}

pub(crate) struct PartScorer {
    pub(crate) job: Arc<Job>,
    pub(crate) client: Arc<EmbeddingClient>,
    pub(crate) dense: DenseThread,
    /// Each worker scores its share.
    pub(crate) group: Option<GroupRank>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) stop: StopSignal,
}

impl PartScorer {
    pub(crate) async fn score_share(&mut self, held_out: &HeldOut, step: u64) -> Result<PartScores, WorkerError> {
        let (reader, mut prefetch) = self.look_up(held_out)?;
        let total = held_out.byte_count();
        let (mut scores, mut done) = (PartScores::new(&self.job), 0);
        while let ScoringTurn::Score(fetched) = self.turn(&mut prefetch).await? {
            let Some(fetched) = fetched else { continue };
            done += fetched.prepared.batch.bytes;
            let seq = fetched.seq;
            let (batch, logits) = self.logits(*fetched).await?;
            scores.add(&batch, &logits).map_err(|error| inconsistent_batch(seq, error.to_string()))?;
            self.observer.observe(&WorkerEvent::Evaluating { step, part: held_out.name, done, total });
        }
        reader.finish(self.job.cluster.timeout).await?;
        Ok(scores)
    }

    fn look_up(&self, held_out: &HeldOut) -> Result<(ReaderThread, RowPrefetch), WorkerError> {
        // Its stages are not training's.
        let metrics = WorkerMetrics::new(&Registry::new());
        let preparer = BatchPreparer::new(&self.job, Access::Read);
        let (reader, incoming) = ReaderThread::start(self.open(held_out), preparer, metrics.clone())?;
        let (client, window) = (Arc::clone(&self.client), StalenessWindow::new(AHEAD));
        let lookups = LookupStage { client, access: Access::Read, window, metrics, steps: None };
        Ok((reader, RowPrefetch::start(lookups, incoming, 0, u64::MAX)))
    }

    /// The next batch of this worker. Ranks that step together go batch by batch, so that none waits long for another, and
    /// those that have run dry go along.
    async fn turn(&mut self, prefetch: &mut RowPrefetch) -> Result<ScoringTurn, WorkerError> {
        let next = self.next(prefetch).await;
        if self.group.is_none_or(|group| group.asynchronous) {
            return Ok(next?.map_or(ScoringTurn::Done, |fetched| ScoringTurn::Score(Some(Box::new(fetched)))));
        }
        let (stops, next) = match next {
            Err(WorkerError::Interrupted) => (true, None),
            next => (false, next?),
        };
        let vote = StepVote { stop: stops, ..StepVote::default() };
        let mine = RankTurn { samples: u32::from(next.is_some()), vote, ..RankTurn::default() };
        let agreed = self.dense.call(move |dense| dense.agree_on_step(mine)).await??.step_agreement();
        if agreed.stop {
            return Err(WorkerError::Interrupted);
        }
        Ok(if agreed.samples == 0 { ScoringTurn::Done } else { ScoringTurn::Score(next.map(Box::new)) })
    }

    /// The scores of all workers: the measures of the whole are not the mean of the parts'.
    pub(crate) async fn merge_scores(&self, scores: PartScores) -> Result<PartScores, WorkerError> {
        if self.group.is_none() {
            return Ok(scores);
        }
        let all = self.dense.call(move |dense| dense.all_gather_values(&scores.targets)).await??;
        let mut merged = PartScores::new(&self.job);
        all.into_iter().for_each(|targets| merged.merge(targets));
        Ok(merged)
    }

    /// A held-out part without rows is no failure of training: there is nothing to measure.
    async fn next(&mut self, prefetch: &mut RowPrefetch) -> Result<Option<FetchedBatch>, WorkerError> {
        let next = tokio::select! {
            reason = self.stop.wait_for_request() => return Err(reason),
            next = prefetch.next() => next,
        };
        match next.transpose() {
            Err(WorkerError::Ingest(error @ IngestError::NoRows { .. })) => {
                if self.group.is_none() {
                    tracing::warn!(%error, "nothing is scored");
                }
                Ok(None)
            }
            next => next,
        }
    }

    async fn logits(&self, fetched: FetchedBatch) -> Result<(Batch, Vec<f32>), WorkerError> {
        let FetchedBatch { prepared, rows, permit, .. } = fetched;
        let work = move |dense: &mut DenseStage| (dense.predict(&prepared, &rows), prepared.batch);
        let (logits, batch) = self.dense.call(work).await?;
        drop(permit);
        Ok((batch, logits?))
    }

    fn open(&self, held_out: &HeldOut) -> OpenSource {
        let (job, held_out, group) = (Arc::clone(&self.job), held_out.clone(), self.group);
        Box::new(move |cancel| Ok(Box::new(held_out.open(&job, group, StreamStart::default(), cancel)?)))
    }
}
