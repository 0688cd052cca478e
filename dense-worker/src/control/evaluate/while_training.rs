//! Evaluations while training, and the model's at the end.

use std::sync::Arc;

use prometheus::Registry;
use zagros_embedding_client::StalenessWindow;
use zagros_ingest::{IngestError, StreamStart};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{self, ReportEvaluationRequest};
use zagros_protocol::datapath::Access;
use zagros_worker_core::{Event, StepVote};

use super::HeldOut;
use super::model_choice::MeasuredParts;
use super::part_scores::{PartMeasures, PartScores};
use crate::control::data::{call_coordinator, is_interruption};
use crate::control::trainer::Trainer;
use crate::datapath::dense::DenseStage;
use crate::datapath::prefetch::{LookupStage, RowPrefetch};
use crate::datapath::prepared::{BatchPreparer, FetchedBatch, inconsistent_batch};
use crate::datapath::process_group::RankTurn;
use crate::datapath::read::{OpenSource, ReaderThread};
use crate::error::WorkerError;
use crate::event::{Evaluation, HeldOutPart, WorkerEvent};
use crate::metrics::WorkerMetrics;
use crate::report::run_blocking;

impl Trainer {
    /// Scores the held-out part. Everything pushed is acknowledged, so that the scores are of one consistent state.
    pub(crate) async fn evaluate(&mut self) -> Result<Event, WorkerError> {
        let Some(held_out) = self.scoring.held_out.during.clone() else {
            return Ok(Event::Evaluated { measured: None });
        };
        let step = self.tracker.all_counts().steps;
        self.tracker.pause_clock();
        let evaluation = self.score_part(&held_out, self.epoch).await?;
        self.scoring.evaluated = Some((step, evaluation));
        if !self.group.is_asynchronous() {
            return Ok(Event::Evaluated { measured: self.consider_state(evaluation).await? });
        }
        // The others push nothing while the state is kept, or it would be another state.
        let ballots = self.ballots.clone();
        let measured = ballots.on_the_way(self.consider_state(evaluation)).await?;
        self.ballots.wait_for_all().await?;
        Ok(Event::Evaluated { measured })
    }

    /// Scores a part with what the model is now, and tells everyone.
    pub(crate) async fn score_part(&mut self, held_out: &HeldOut, epoch: u32) -> Result<Evaluation, WorkerError> {
        // In the end that may be an earlier state than the last.
        let (step, part) = (self.model_age().0, held_out.name);
        let (scores, calibrators) = (self.merged_scores(held_out).await?, self.scoring.calibrators.clone());
        let measured = run_blocking("measures", move || scores.into_measures(calibrators.as_ref())).await?;
        let PartMeasures { evaluation, targets, calibrated, slices, logistic, .. } = measured;
        (self.scoring.calibrated, self.scoring.logistic_measures) = (calibrated, logistic);
        self.scoring.measured = MeasuredParts { step, slices, targets: targets.clone() };
        self.run.metrics.show_evaluation(part, &evaluation);
        self.run.observer.observe(&WorkerEvent::Evaluated { step, part, epoch, evaluation, targets });
        if self.group.leads() {
            self.report_evaluation(step, epoch, part, evaluation);
        }
        Ok(evaluation)
    }

    pub(super) async fn merged_scores(&mut self, held_out: &HeldOut) -> Result<PartScores, WorkerError> {
        let step = self.model_age().0;
        if self.group.rank.is_some() {
            // The others' gradients are acknowledged too.
            self.wait_for_all().await?;
        }
        self.pull_weights().await?;
        let scores = if self.group.is_asynchronous() {
            let scores = self.ballots.on_the_way(self.score_share(held_out, step)).await;
            self.close_scoring(scores).await?
        } else {
            self.score_share(held_out, step).await?
        };
        if self.group.rank.is_none() {
            return Ok(scores);
        }
        // The measures of the whole are not the mean of the parts'.
        let all = self.run.dense.call(move |dense| dense.all_gather_values(&scores.targets)).await??;
        let mut merged = PartScores::new(&self.run.job);
        all.into_iter().for_each(|targets| merged.merge(targets));
        Ok(merged)
    }

    /// Waits until every asynchronous worker has scored its share. All give up where one was asked to stop.
    async fn close_scoring(&mut self, scored: Result<PartScores, WorkerError>) -> Result<PartScores, WorkerError> {
        match scored {
            Ok(scores) => {
                self.ballots.wait_for_all().await?;
                Ok(scores)
            }
            Err(error) if is_interruption(&error) => {
                self.ballots.vote_for(control::BarrierReason::Stop).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The coordinator only shows it: a silent coordinator stops nothing.
    fn report_evaluation(&self, step: u64, epoch: u32, part: HeldOutPart, evaluation: Evaluation) {
        let part = match part {
            HeldOutPart::Validation => control::HeldOutPart::Validation.into(),
            HeldOutPart::Test => control::HeldOutPart::Test.into(),
        };
        let [auc, logloss] = [evaluation.auc, evaluation.logloss].map(|measure| measure.unwrap_or(f64::NAN));
        let measures = control::Evaluation { step, epoch, samples: evaluation.samples, auc, logloss, part };
        let (control, timeout) = (Arc::clone(&self.run.splits.control), self.run.job.cluster.timeout);
        let (member, incarnation) = (self.run.splits.member, self.run.splits.incarnation);
        let request = ReportEvaluationRequest { member, incarnation, evaluation: Some(measures) };
        // Beside training, for a coordinator that comes back.
        tokio::spawn(async move {
            let (deadline, report) = (Deadline::from_now(timeout), || control.report_evaluation(request));
            if let Err(error) = call_coordinator(&*control, "take an evaluation", deadline, report).await {
                tracing::warn!(%error, "training goes on");
            }
        });
    }
}

/// Batches looked up ahead: enough to hide a round trip, few enough to stay small.
const AHEAD: usize = 3;

/// A held-out part is scored while training: rows are looked up but never created, nothing learns. Each worker scores its share.
impl Trainer {
    async fn score_share(&self, held_out: &HeldOut, step: u64) -> Result<PartScores, WorkerError> {
        let (reader, mut prefetch) = self.look_up_part(held_out)?;
        let total = held_out.byte_count();
        let (mut scores, mut done) = (PartScores::new(&self.run.job), 0);
        while let (true, fetched) = self.next_scoring_turn(&mut prefetch).await? {
            let Some(fetched) = fetched else { continue };
            let FetchedBatch { seq, prepared, rows, permit } = fetched;
            done += prepared.batch.bytes;
            let work = move |dense: &mut DenseStage| (dense.predict(&prepared, &rows), prepared.batch);
            let (logits, batch) = self.run.dense.call(work).await?;
            drop(permit);
            scores.add(&batch, &logits?).map_err(|error| inconsistent_batch(seq, error))?;
            if let Some(logistic) = &self.scoring.logistic {
                logistic.score_batch(&batch, &mut scores.logistic);
            }
            self.run.observer.observe(&WorkerEvent::Evaluating { step, part: held_out.name, done, total });
        }
        reader.finish(self.run.job.cluster.timeout).await?;
        Ok(scores)
    }

    fn look_up_part(&self, held_out: &HeldOut) -> Result<(ReaderThread, RowPrefetch), WorkerError> {
        // Its stages are not training's.
        let metrics = WorkerMetrics::new(&Registry::new());
        let preparer = BatchPreparer::new(&self.run.job, Access::Read);
        let (job, part, group) = (Arc::clone(&self.run.job), held_out.clone(), self.group.rank);
        let open: OpenSource =
            Box::new(move |cancel| Ok(Box::new(part.open(&job, group, StreamStart::default(), cancel)?)));
        let (reader, incoming) = ReaderThread::start(open, preparer, metrics.clone())?;
        let (client, window) = (Arc::clone(&self.run.client), StalenessWindow::new(AHEAD));
        let lookups = LookupStage { client, access: Access::Read, window, metrics, steps: None };
        Ok((reader, RowPrefetch::start(lookups, incoming, 0, u64::MAX)))
    }

    /// Whether any worker has a batch, and the next batch of this one. Ranks that step together go batch by batch, so that none waits
    /// long for another, and those that have run dry go along.
    async fn next_scoring_turn(&self, prefetch: &mut RowPrefetch) -> Result<(bool, Option<FetchedBatch>), WorkerError> {
        let next = self.next_to_score(prefetch).await;
        if self.group.in_step().is_none() {
            let next = next?;
            return Ok((next.is_some(), next));
        }
        let (stops, next) = match next {
            Err(WorkerError::Interrupted) => (true, None),
            next => (false, next?),
        };
        let vote = StepVote { stop: stops, ..StepVote::default() };
        let mine = RankTurn { samples: u32::from(next.is_some()), vote, ..RankTurn::default() };
        let agreed = self.run.dense.call(move |dense| dense.agree_on_step(mine)).await??.step_agreement();
        if agreed.stop {
            return Err(WorkerError::Interrupted);
        }
        Ok((agreed.samples > 0, next))
    }

    /// A held-out part without rows is no failure of training: there is nothing to measure.
    async fn next_to_score(&self, prefetch: &mut RowPrefetch) -> Result<Option<FetchedBatch>, WorkerError> {
        let mut stop = self.run.stop.clone();
        let next = tokio::select! {
            reason = stop.wait_for_request() => return Err(reason),
            next = prefetch.next() => next,
        };
        match next.transpose() {
            Err(WorkerError::Ingest(error @ IngestError::NoRows { .. })) => {
                if self.group.rank.is_none() {
                    tracing::warn!(%error, "nothing is scored");
                }
                Ok(None)
            }
            next => next,
        }
    }
}
