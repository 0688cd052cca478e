//! The end of training: the best state becomes the model, and the test part is scored.

use zagros_worker_core::{Event, MeasuredState};

use super::early_stopping::{StateUse, explain_end, measured_state};
use super::model_choice::{EvaluatedState, ModelChoice, better_than_last};
use super::scoring::MeasuredParts;
use crate::control::save::{BestStates, TrainedModel};
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::event::{Evaluation, WorkerEvent};
use crate::summary::TrainingOutcome;

impl Trainer {
    /// Keeps the state that was evaluated, where the job wants it. Returns the measure that states are compared by.
    pub(crate) async fn consider_state(
        &mut self,
        evaluation: Evaluation,
    ) -> Result<Option<MeasuredState>, WorkerError> {
        let (step, samples) = (self.tracker.steps_of_all(), self.tracker.samples_of_all());
        self.scoring.model.evaluated.push(EvaluatedState { step, samples, evaluation });
        let Some(early_stop) = self.scoring.model.early_stop else { return Ok(None) };
        let measured = measured_state(early_stop.metric, &evaluation);
        let merit = measured.map(|measured| measured.merit);
        let Some(best_states) = &mut self.scoring.model.best_states else {
            self.scoring.model.inventory_of_first.note_state(step, merit, self.run.job.output.keep_best as usize);
            return Ok(measured);
        };
        // A server writes one save at a time.
        self.checkpoints.finish_writing().await;
        let (job, outcome, validation) = (&*self.run.job, TrainingOutcome::Interrupted, Some(evaluation));
        let trained =
            TrainedModel { job, outcome, steps: step, samples, evaluation: None, validation, calibrators: None };
        best_states.keep_state(merit, trained, &self.run.dense, &*self.run.client).await?;
        Ok(measured)
    }

    /// Goes back to the best state, where one is kept, and scores the test part, where that was left for the end. An
    /// interrupted run is not scored.
    pub(crate) async fn choose_model(&mut self, outcome: TrainingOutcome) -> Result<Event, WorkerError> {
        self.checkpoints.finish_writing().await;
        let is_shared = self.run.job.train.early_stop.is_some() && outcome == TrainingOutcome::Finished;
        if is_shared && self.group.is_asynchronous() {
            let ballots = self.ballots.clone();
            ballots.on_the_way(self.restore_best()).await?;
            self.ballots.wait_for_all().await?;
        } else {
            self.restore_best().await?;
        }
        if is_shared && self.group.rank.is_some() {
            // Only the worker that leads keeps states.
            self.run.dense.call(|dense| dense.follow_rank(0, Vec::new())).await??;
        }
        if outcome == TrainingOutcome::Finished {
            self.calibrate().await?;
            self.score_test_part().await?;
            let (test, validation) = self.model_measures();
            self.check_sense(test.or(validation))?;
            self.report_weights().await?;
        }
        Ok(Event::Concluded)
    }

    async fn report_weights(&self) -> Result<(), WorkerError> {
        let Some(audit) = self.run.observer.audit() else { return Ok(()) };
        self.pull_weights().await?;
        audit.note_weights(&self.run.dense.call(|dense| dense.model.to_safetensors()).await??);
        Ok(())
    }

    async fn score_test_part(&mut self) -> Result<(), WorkerError> {
        let Some(test) = self.scoring.held_out.at_end.clone() else { return Ok(()) };
        let epoch = u32::try_from(self.scoring.of_epochs.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.scoring.model.tested = Some(self.score_part(&test, epoch).await?);
        Ok(())
    }

    async fn restore_best(&mut self) -> Result<(), WorkerError> {
        if self.scoring.model.chosen.is_some() {
            // By an earlier group, in which a worker was lost after that.
            return Ok(());
        }
        if self.scoring.model.early_stop.is_none() {
            self.report_a_better_state();
            return Ok(());
        }
        let ModelChoice { early_stop: Some(early_stop), search, best_states, evaluated, .. } = &mut self.scoring.model
        else {
            return Ok(());
        };
        let best = best_states.as_ref().and_then(BestStates::best_step);
        let fate = match (best, self.run.job.output.save_model) {
            (None, _) => StateUse::Lost,
            (Some(_), true) => StateUse::Saved,
            (Some(_), false) => StateUse::Scored,
        };
        let message = explain_end(*early_stop, search, fate);
        let state = evaluated.iter().find(|state| Some(state.step) == best).copied();
        if let (Some(state), Some(best_states)) = (state, best_states)
            && state.step != self.tracker.steps_of_all()
        {
            best_states.restore(state.step, &self.run.dense, &*self.run.client).await?;
            self.forget_again().await?;
        }
        let step = state.map_or(self.tracker.steps_of_all(), |state| state.step);
        self.run.observer.observe(&WorkerEvent::Chosen { step, message: message.clone() });
        (self.scoring.model.chosen, self.scoring.model.message) = (state, Some(message));
        Ok(())
    }

    /// Without early stopping the last state is the model, also where an earlier one was better: that is said.
    fn report_a_better_state(&mut self) {
        let may_report = self.scoring.model.message.is_none() && self.group.leads();
        if !may_report || !self.run.job.data.has_validation() {
            return;
        }
        let Some(message) = better_than_last(&self.scoring.model.evaluated) else { return };
        tracing::warn!("{message}");
        self.run.observer.observe(&WorkerEvent::Chosen { step: self.tracker.steps_of_all(), message: message.clone() });
        self.scoring.model.message = Some(message);
    }

    /// Steps and samples after which the model was what it is now.
    pub(crate) fn model_age(&self) -> (u64, u64) {
        let last = (self.tracker.steps_of_all(), self.tracker.samples_of_all());
        self.scoring.model.chosen.map_or(last, |state| (state.step, state.samples))
    }

    /// Slices and targets of the part that was scored last, if it was scored with the state that is the model.
    pub(crate) fn measured_parts(&self) -> Option<&MeasuredParts> {
        Some(&self.scoring.measured).filter(|measured| measured.step == self.model_age().0)
    }

    pub(crate) fn model_measures(&self) -> (Option<Evaluation>, Option<Evaluation>) {
        let last = self.scoring.evaluated.map(|(_, evaluation)| evaluation);
        if !self.run.job.data.has_validation() {
            return (last, None);
        }
        (self.scoring.model.tested, self.scoring.model.chosen.map(|state| state.evaluation).or(last))
    }
}
