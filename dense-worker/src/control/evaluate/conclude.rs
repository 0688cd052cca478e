//! The end of training: the best state becomes the model, is calibrated, and the test part is scored. Of training that has diverged,
//! the best state before is left, in the error and in the summary.
//!
//! Calibrators (`eval.calibration`) are fitted to the validation part and saved with the model:
//!
//! ```text
//! the state that becomes the model ─► scores of the validation part, of all workers ─► calibrator ─► calibration.json
//!                                                                  test part: measures before and after
//! ```
//!
//! The validation part is scored once more for it: an earlier state than the last may be the model, and a worker that replaced
//! another one has not seen earlier scores. Every worker fits the same functions to the same merged scores, one for each label of clicks or
//! classes; the first one saves them.

use zagros_eval::CalibrationMethod;
use zagros_job::{CalibrationKind, EvalMetric};
use zagros_scoring::{ModelCalibrators, TrainingOutcome};
use zagros_worker_core::{Event, MeasuredState};

use super::model_choice::{
    EvaluatedState, MeasuredParts, ModelChoice, better_than_last, explain_end, group_thousands, measured_state,
    named_measure,
};
use super::part_scores::{PartMeasures, PartScores};
use crate::control::save::{BestStates, TrainedModel};
use crate::control::trainer::Trainer;
use crate::error::{ExitClass, WorkerError};
use crate::event::{Evaluation, WorkerEvent};
use crate::report::run_blocking;

impl Trainer {
    /// Keeps the state that was evaluated, where the job wants it. Returns the measure that states are compared by.
    pub(crate) async fn consider_state(
        &mut self,
        evaluation: Evaluation,
    ) -> Result<Option<MeasuredState>, WorkerError> {
        let (step, samples) = (self.tracker.all_counts().steps, self.tracker.all_counts().samples);
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
        let trained = TrainedModel::unfinished(&self.run.job, step, samples);
        let trained = TrainedModel { validation: Some(evaluation), ..trained };
        best_states.keep_state(merit, trained, &self.run.dense, &self.run.client).await?;
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
            if let Some(test) = self.scoring.held_out.at_end.clone() {
                let epoch = u32::try_from(self.scoring.of_epochs.len().saturating_sub(1)).unwrap_or(u32::MAX);
                self.scoring.model.tested = Some(self.score_part(&test, epoch).await?);
            }
            let (test, validation) = self.model_measures();
            self.check_sense(test.or(validation))?;
            if let Some(audit) = self.run.observer.audit() {
                self.pull_weights().await?;
                audit.report_network(&self.run.dense.call(|dense| dense.model.to_safetensors()).await??);
            }
        }
        Ok(Event::Concluded)
    }

    async fn restore_best(&mut self) -> Result<(), WorkerError> {
        if self.scoring.model.chosen.is_some() {
            // By an earlier group, in which a worker was lost after that.
            return Ok(());
        }
        let Some(early_stop) = self.scoring.model.early_stop else {
            self.report_a_better_state();
            return Ok(());
        };
        let ModelChoice { search, best_states, evaluated, .. } = &mut self.scoring.model;
        let best = best_states.as_ref().and_then(BestStates::best_step);
        let fate = match (best, self.run.job.output.save_model) {
            (None, _) => "but the last state is the model (nothing was kept: output.keep_best)",
            (Some(_), true) => "which is what is saved",
            (Some(_), false) => "which is what is scored",
        };
        let message = explain_end(early_stop, search, fate);
        let state = evaluated.iter().find(|state| Some(state.step) == best).copied();
        if let (Some(state), Some(best_states)) = (state, best_states)
            && state.step != self.tracker.all_counts().steps
        {
            best_states.restore(state.step, &self.run.dense, &self.run.client).await?;
            self.forget_again().await?;
        }
        let step = state.map_or(self.tracker.all_counts().steps, |state| state.step);
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
        self.run
            .observer
            .observe(&WorkerEvent::Chosen { step: self.tracker.all_counts().steps, message: message.clone() });
        self.scoring.model.message = Some(message);
    }

    /// Steps and samples after which the model was what it is now.
    pub(crate) fn model_age(&self) -> (u64, u64) {
        let last = (self.tracker.all_counts().steps, self.tracker.all_counts().samples);
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

    /// Adds the best state to an error that says that training has diverged, and writes the summary. Other errors stay as they are.
    pub(crate) async fn with_best_state(&mut self, error: WorkerError) -> WorkerError {
        if error.exit_class() != ExitClass::Diverged || self.run.folder.is_none() {
            return error;
        }
        let choice = &self.scoring.model;
        let kept = choice.best_states.as_ref().and_then(BestStates::best_place);
        let metric = choice.early_stop.map_or(EvalMetric::Auc, |early_stop| early_stop.metric);
        let Some(best) = best_before(metric, &choice.evaluated, kept.as_ref()) else { return error };
        self.scoring.model.message = Some(format!("training has diverged; {best}"));
        // The error counts, whether or not the servers can still be asked.
        if let Ok(summary) = self.summary(TrainingOutcome::Diverged, &Ok(None)).await {
            let _ = self.write(&summary).await;
        }
        WorkerError::DivergedFrom { source: Box::new(error), best }
    }

    pub(crate) async fn calibrate(&mut self) -> Result<(), WorkerError> {
        (self.scoring.calibrators, self.scoring.calibrated) = (None, None);
        let Some(kind) = self.run.job.eval.calibration else { return Ok(()) };
        let Some(validation) = self.scoring.held_out.during.clone() else { return Ok(()) };
        let scores = self.merged_scores(&validation).await?;
        let (calibrators, without, measures) = run_blocking("calibration", move || fit(kind, scores)).await?;
        for label in without {
            tracing::warn!(
                "the validation part has no two classes of the label \"{label}\", or a score that is not finite: it is saved without calibration"
            );
        }
        if self.scoring.measured.step == self.model_age().0 {
            self.scoring.measured.targets = measures.targets;
        }
        (self.scoring.calibrators, self.scoring.calibrated) = (calibrators, measures.calibrated);
        Ok(())
    }
}

/// The best of the evaluated states in words: the one that was kept, by step and folder, or that none was kept. `None` before the first
/// evaluation.
fn best_before(metric: EvalMetric, evaluated: &[EvaluatedState], kept: Option<&(u64, String)>) -> Option<String> {
    let measured = |state: &EvaluatedState| Some((state.step, measured_state(metric, &state.evaluation)?));
    let best = match kept {
        Some((step, _)) => evaluated.iter().filter(|state| state.step == *step).find_map(measured),
        None => evaluated.iter().filter_map(measured).reduce(|a, b| if b.1.merit > a.1.merit { b } else { a }),
    };
    let (step, best) = best?;
    let ((name, _), value, step) = (named_measure(metric), best.value, group_thousands(step));
    let what = format!("the best state before had a validation {name} of {value:.4} at step {step}");
    Some(match kept {
        Some((_, folder)) => format!(
            "{what} and is in {folder}: `zagros eval {folder}` scores it, and `zagros train JOB --fresh --from {folder}` goes on from it \
             with lower rates"
        ),
        None => format!("{what}, and was not kept: train.early_stop = {{ patience = 2 }} keeps it"),
    })
}

/// Also returns the names of the labels that could not be fitted, and the measures.
fn fit(kind: CalibrationKind, mut scores: PartScores) -> (Option<ModelCalibrators>, Vec<String>, PartMeasures) {
    let method = match kind {
        CalibrationKind::Isotonic => CalibrationMethod::Isotonic,
        CalibrationKind::Temperature => CalibrationMethod::Temperature,
    };
    let (calibrators, without) = scores.fit_calibrators(method);
    let measures = scores.into_measures(calibrators.as_ref());
    (calibrators, without, measures)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use zagros_job::Target;

    use super::*;
    use crate::testing::{batch, small_job};

    fn states(aucs: &[(u64, Option<f64>)]) -> Vec<EvaluatedState> {
        let state = |(step, auc): &(u64, Option<f64>)| EvaluatedState {
            step: *step,
            samples: 0,
            evaluation: Evaluation { auc: *auc, ..Evaluation::default() },
        };
        aucs.iter().map(state).collect()
    }

    #[test]
    fn the_kept_state_is_named_with_its_measure_and_what_can_be_done_with_it() {
        let evaluated = states(&[(100, Some(0.7)), (1200, Some(0.81234)), (1300, Some(0.5))]);
        let kept = (1200, "runs/ads/checkpoints/step-000001200".to_owned());
        let best = best_before(EvalMetric::Auc, &evaluated, Some(&kept)).unwrap();
        let place = "a validation AUC of 0.8123 at step 1,200 and is in runs/ads/checkpoints/step-000001200";
        assert!(best.contains(place), "{best}");
        assert!(best.contains("`zagros eval runs/ads") && best.contains("--from runs/ads"), "{best}");
        let lost = best_before(EvalMetric::Auc, &evaluated, None).unwrap();
        assert!(lost.contains("0.8123 at step 1,200, and was not kept: train.early_stop"), "{lost}");
    }

    #[test]
    fn nothing_is_said_where_nothing_was_measured() {
        assert_eq!(best_before(EvalMetric::Auc, &[], None), None);
        assert_eq!(best_before(EvalMetric::Auc, &states(&[(100, None)]), None), None);
    }

    fn scores(samples: &[(bool, f32)]) -> (Vec<Target>, PartScores) {
        let mut job = small_job();
        job.eval.calibration = Some(CalibrationKind::Isotonic);
        let mut scores = PartScores::new(&Arc::new(job.clone()));
        let mut batch = batch(samples.len(), &[&[]]);
        batch.labels = samples.iter().map(|(label, _)| f32::from(u8::from(*label))).collect();
        let outputs: Vec<f32> = samples.iter().map(|(_, logit)| *logit).collect();
        scores.add(&batch, &outputs).unwrap();
        (job.features.targets, scores)
    }

    #[test]
    fn one_class_is_not_fitted() {
        let (targets, scores) = scores(&[(true, 1.0)]);
        let (calibrators, without, measures) = fit(CalibrationKind::Isotonic, scores);
        assert_eq!((calibrators, measures.calibrated), (None, None));
        assert_eq!(without, [targets[0].name.clone()]);
    }

    proptest! {
        /// Predictions are those of the calibrator that was fitted, to the last bit.
        #[test]
        fn a_saved_calibrator_is_the_fitted_one(samples in prop::collection::vec((any::<bool>(), -9.0_f32..9.0), 2..80)) {
            for kind in [CalibrationKind::Isotonic, CalibrationKind::Temperature] {
                let (targets, scores) = scores(&samples);
                let (Some(calibrators), _, measures) = fit(kind, scores) else { continue };
                let (_, content) = calibrators.to_file();
                prop_assert_eq!(&ModelCalibrators::parse(&targets, &content).unwrap(), &calibrators);
                prop_assert_eq!(measures.calibrated.unwrap().samples, samples.len() as u64);
            }
        }
    }
}
