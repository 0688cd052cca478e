//! One step of this worker: from a batch with its rows to gradients on their way. Training whose loss makes no sense
//! ([`super::loss_watch`]) ends.

use std::sync::Arc;

use tracing::warn;
use zagros_embedding_client::RequestReach;
use zagros_protocol::control;
use zagros_worker_core::{Event, StepAgreement, VoteRule};

use super::loss_of_ignorance;
use super::loss_watch::{LossSense, knows_nothing};
use super::tracker::{MadeStep, reported_progress};
use crate::control::trainer::Trainer;
use crate::datapath::dense::{DenseStage, StepResult};
use crate::datapath::lookahead::rows_change_by_pushes_alone;
use crate::datapath::prepared::FetchedBatch;
use crate::datapath::push::BatchGradients;
use crate::error::WorkerError;
use crate::event::{Evaluation, WorkerEvent};
use zagros_model::ModelError;

impl Trainer {
    /// Makes one step: of this worker, or of all ranks of its group.
    pub(crate) async fn step(
        &mut self,
        batch: bool,
        ahead: Option<VoteRule>,
        last: bool,
    ) -> Result<Event, WorkerError> {
        let fetched = self.stream.batch.take().filter(|_| batch).map(|fetched| *fetched);
        let next = match (self.group.in_step(), fetched) {
            (Some(rank), fetched) => self.group_step(rank, fetched, ahead).await?,
            (None, Some(fetched)) => self.own_step(fetched).await?,
            (None, None) => None,
        };
        self.check_bad_rows()?;
        if !last {
            self.check_divergence(self.loss.last)?;
        }
        Ok(Event::Stepped { ahead: next })
    }

    async fn own_step(&mut self, fetched: FetchedBatch) -> Result<Option<StepAgreement>, WorkerError> {
        let FetchedBatch { seq, prepared, rows, permit } = fetched;
        let permit = Arc::new(permit);
        self.stream.permit = Some(Arc::clone(&permit));
        let work = move |dense: &mut DenseStage| (dense.step(&prepared, rows), prepared);
        let (stepped, mut prepared) = self.run.dense.call(work).await?;
        if let Err(skipped @ ModelError::Skipped { .. }) = stepped {
            let bytes = self.group.bytes_of_all(prepared.batch.bytes);
            self.count_skipped_step(&skipped, bytes);
            self.skip_batch(seq, prepared.batch);
            return Ok(None);
        }
        let failed = |source| WorkerError::Step { step: self.tracker.own_steps() + 1, source };
        let StepResult { loss, logits, gradients, share } = stepped.map_err(failed)?;
        let staleness = u32::try_from(permit.staleness()).unwrap_or(u32::MAX);
        let ends = self.stream.position.advance(&mut prepared.batch);
        let step = self.row_step(seq);
        let (unique, values, reach) = (prepared.unique, gradients, self.reach_of(1));
        let samples = prepared.batch.size;
        self.stream.pushes.start(BatchGradients { seq, step, unique, values, samples, share, ends, permit, reach });
        self.stream.push_started(seq, step, reach, 1);
        let (labels, bytes) = (&prepared.batch.labels, self.group.bytes_of_all(prepared.batch.bytes));
        let (main, samples) = (self.loss.main, prepared.batch.size as u64);
        self.report_step(MadeStep { samples, labels, logits: &logits, main, loss, staleness, bytes });
        if let (0, Some(logistic)) = (self.epoch, &mut self.scoring.logistic) {
            logistic.learn_batch(&prepared.batch);
        }
        Ok(None)
    }

    /// The servers that get each of so many pushes of a step. All of them get it where lookups are sent with pushes: in mode `sync`,
    /// if the order of the pushes changes no bit. The sum of two gradients has the same bits in both orders.
    pub(crate) fn reach_of(&self, pushes: usize) -> RequestReach {
        let are_known = self.stream.steps.is_some() && pushes <= 2 && rows_change_by_pushes_alone(&self.run.job);
        let group = self.group.generation();
        if are_known { RequestReach::AllServers { group } } else { RequestReach::Owners }
    }

    /// The number that rows take for the step of a batch that is about to be pushed. In a group it is the run's own count:
    /// the same on all ranks, however late each one came. Else it is the worker's own, the number of its batch.
    pub(crate) fn row_step(&self, seq: u64) -> u64 {
        if self.group.is_asynchronous() { seq } else { self.tracker.own_steps() }
    }

    /// A step that changes nothing: neither the dense network, which refused it, nor any row. It counts all the same,
    /// or a run of `max_steps` would want more batches than were fetched for it.
    pub(crate) fn count_skipped_step(&mut self, cause: &dyn std::error::Error, bytes: u64) {
        let skipped = self.tracker.count_skipped(bytes);
        self.run.metrics.steps.inc();
        self.run.metrics.skipped_steps.inc();
        // The first of many say enough.
        if skipped.is_power_of_two() {
            let step = self.tracker.own_steps();
            tracing::warn!(step, skipped, "{cause} (train.non_finite, or the loss scale of train.precision = \"f16\")");
        }
    }

    pub(crate) fn report_step(&mut self, step: MadeStep<'_>) {
        self.loss.last = f64::from(step.loss);
        if let Some(long) = self.loss.label_runs.add(step.main.clicks(step.labels)) {
            tracing::warn!("{long}");
        }
        let report = self.tracker.count_step(step);
        let metrics = &self.run.metrics;
        metrics.steps.inc();
        metrics.samples.inc_by(step.main.sample_count(step.labels) as u64);
        metrics.loss.set(report.loss);
        metrics.staleness.set(i64::from(report.staleness));
        let so_far = self.tracker.staleness();
        metrics.staleness_max.set(i64::from(so_far.max));
        metrics.staleness_mean.set(so_far.mean);
        let stages = metrics.stage_seconds();
        let batch = self.stream.next_seq;
        // Read inside: a checkpoint that becomes complete meanwhile is reported after this, or is in it.
        self.run.membership.update_progress(|reported| {
            let progress = reported_progress(&report, self.checkpoints.newest_step(), so_far, &stages);
            *reported = control::Progress { batch, ..progress };
        });
        self.run.observer.observe(&WorkerEvent::Step(report));
    }

    /// # Errors
    /// [`WorkerError::LossWithoutSense`]: on all workers that step together, whose loss is one.
    pub(super) fn check_divergence(&mut self, loss: f64) -> Result<(), WorkerError> {
        match self.loss.divergence.note_loss(loss) {
            LossSense::Fine => Ok(()),
            LossSense::None => Err(self.diverged("the training loss", self.tracker.smoothed_loss())),
            LossSense::Doubtful => {
                if !std::mem::replace(&mut self.loss.divergence.warned, true) {
                    self.warn_of_loss("the training loss", self.tracker.smoothed_loss());
                }
                Ok(())
            }
        }
    }

    /// After the last step: by the evaluation of the model where there is one, else by the last steps.
    ///
    /// # Errors
    /// As [`Self::check_divergence`]: there is nothing worth saving.
    pub(crate) fn check_sense(&self, evaluation: Option<Evaluation>) -> Result<(), WorkerError> {
        let held_out = evaluation.and_then(|evaluation| evaluation.logloss);
        let (what, loss) = match held_out {
            Some(loss) => ("the logloss of the held-out part", loss),
            None => ("the training loss", self.tracker.smoothed_loss()),
        };
        let nothing = loss_of_ignorance([self.run.job.features.main_target()]);
        match held_out.map_or_else(|| self.loss.divergence.at_end(), |loss| LossSense::from_loss(loss, nothing)) {
            LossSense::Fine => {
                let training = || Some(self.tracker.recent_measures()).filter(|_| self.loss.divergence.is_long());
                if let Some(measured) = evaluation.or_else(training) {
                    self.warn_of_ignorance(&measured);
                }
                Ok(())
            }
            LossSense::None => Err(self.diverged(what, loss)),
            LossSense::Doubtful => {
                self.warn_of_loss(what, loss);
                Ok(())
            }
        }
    }

    fn warn_of_ignorance(&self, measured: &Evaluation) {
        let prevalence = self.measure_baselines(measured).and_then(|baselines| baselines.prevalence_logloss);
        if knows_nothing(measured, prevalence) {
            let [auc, logloss, prevalence] =
                [measured.auc, measured.logloss, prevalence].map(|measure| measure.unwrap_or(f64::NAN));
            let highest = self.loss.divergence.highest;
            warn!(
                step = self.tracker.own_steps(),
                "the model is no better than the share of positives alone (logloss {logloss:.4}, of the share alone {prevalence:.4}, AUC \
                 {auc:.4}), and the loss of a step was up to {highest:.3e}: lower the learning rates, look at the numeric columns with \
                 `zagros data inspect JOB`, or train longer"
            );
        }
    }

    fn warn_of_loss(&self, what: &str, loss: f64) {
        let nothing = self.loss.divergence.ignorance;
        warn!(
            step = self.tracker.own_steps(),
            "{what} is {loss:.2}, and a network that knows nothing has {nothing:.2}: training may have diverged; lower the \
             learning rates, or look at the numeric columns with `zagros data inspect JOB`"
        );
    }

    fn diverged(&self, what: &'static str, loss: f64) -> WorkerError {
        WorkerError::LossWithoutSense { step: self.tracker.own_steps(), what, loss }
    }
}
