//! Evaluations while training, and the model's at the end.

use std::sync::Arc;
use std::time::Duration;

use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{self, ReportEvaluationRequest};
use zagros_worker_core::{Event, MeasuredState};

use super::held_out::HeldOut;
use super::model_choice::MeasuredParts;
use super::part_scores::{PartMeasures, PartScores, measures_of};
use super::scorer::PartScorer;
use crate::control::data::{call_coordinator, control_error, is_interruption};
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::event::{Evaluation, HeldOutPart, WorkerEvent};

const WHAT: &str = "take an evaluation";

impl Trainer {
    /// Scores the held-out part. Everything pushed is acknowledged, so that the scores are of one consistent state.
    pub(crate) async fn evaluate(&mut self, epoch: u32) -> Result<Event, WorkerError> {
        if let Some(held_out) = self.scoring.held_out.during.clone() {
            let step = self.tracker.all_counts().steps;
            self.tracker.pause_clock();
            let evaluation = self.score_part(&held_out, epoch).await?;
            self.scoring.evaluated = Some((step, evaluation));
            return Ok(Event::Evaluated { measured: self.keep_evaluated(evaluation).await? });
        }
        Ok(Event::Evaluated { measured: None })
    }

    /// Keeps the state that was evaluated. Asynchronous workers push nothing meanwhile, or it would be another state.
    async fn keep_evaluated(&mut self, evaluation: Evaluation) -> Result<Option<MeasuredState>, WorkerError> {
        if !self.group.is_asynchronous() {
            return self.consider_state(evaluation).await;
        }
        let ballots = self.ballots.clone();
        let measured = ballots.on_the_way(self.consider_state(evaluation)).await?;
        self.ballots.wait_for_all().await?;
        Ok(measured)
    }

    /// Scores a part with what the model is now, and tells everyone.
    pub(crate) async fn score_part(&mut self, held_out: &HeldOut, epoch: u32) -> Result<Evaluation, WorkerError> {
        // In the end that may be an earlier state than the last.
        let (step, part) = (self.model_age().0, held_out.name);
        let scores = self.merged_scores(held_out).await?;
        let report = measures_of(scores, self.scoring.calibrators.clone());
        let PartMeasures { evaluation, targets, calibrated, slices, .. } = report.await?;
        self.scoring.calibrated = calibrated;
        self.scoring.measured = MeasuredParts { step, slices, targets: targets.clone() };
        self.run.metrics.show_evaluation(part, &evaluation);
        self.run.observer.observe(&WorkerEvent::Evaluated { step, part, epoch, evaluation, targets });
        if self.group.leads() {
            self.report_evaluation(step, epoch, part, evaluation).await;
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
        let mut scorer = PartScorer {
            group: self.group.rank,
            job: Arc::clone(&self.run.job),
            client: Arc::clone(&self.run.client),
            dense: self.run.dense.clone(),
            observer: Arc::clone(&self.run.observer),
            stop: self.run.stop.clone(),
        };
        let scores = if self.group.is_asynchronous() {
            let scores = self.ballots.on_the_way(scorer.score_share(held_out, step)).await;
            self.close_scoring(scores).await?
        } else {
            scorer.score_share(held_out, step).await?
        };
        scorer.merge_scores(scores).await
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
    async fn report_evaluation(&self, step: u64, epoch: u32, part: HeldOutPart, evaluation: Evaluation) {
        let part = match part {
            HeldOutPart::Validation => control::HeldOutPart::Validation.into(),
            HeldOutPart::Test => control::HeldOutPart::Test.into(),
        };
        let [auc, logloss] = [evaluation.auc, evaluation.logloss].map(|measure| measure.unwrap_or(f64::NAN));
        let measures = control::Evaluation { step, epoch, samples: evaluation.samples, auc, logloss, part };
        let (control, timeout) = (Arc::clone(&self.run.splits.control), self.run.job.cluster.timeout);
        let (member, incarnation) = (self.run.splits.member, self.run.splits.incarnation);
        let request = ReportEvaluationRequest { member, incarnation, evaluation: Some(measures) };
        let first = Deadline::from_now(timeout).bound(control.report_evaluation(request)).await;
        if matches!(&first, Ok(Err(refusal)) if refusal.kind.is_retryable()) {
            // Beside training, for a coordinator that comes back.
            tokio::spawn(report_later(control, request, timeout));
        } else if let Ok(Err(refusal)) = first {
            let error = control_error(&*control, WHAT, Deadline::from_now(timeout), refusal);
            tracing::warn!(%error, "training goes on");
        }
    }
}

async fn report_later(control: Arc<dyn ControlPlane>, request: ReportEvaluationRequest, timeout: Duration) {
    let report = || control.report_evaluation(request);
    if let Err(error) = call_coordinator(&*control, WHAT, Deadline::from_now(timeout), report).await {
        tracing::warn!(%error, "training goes on");
    }
}
