//! What is scored while training, and which state becomes the model: what the evaluations of the validation part say of it.
//!
//! With early stopping, states are compared by one measure. The training loop decides ([`SearchState`]); here its end is put into words.

use serde::{Deserialize, Serialize};
use zagros_eval::ColumnSlices;
use zagros_job::{EarlyStop, EvalMetric, Job};
use zagros_scoring::ModelCalibrators;
use zagros_store::Folder;
use zagros_worker_core::{BestState, EarlyStopRule, MeasuredState, SearchState};

use super::{HeldOutParts, LogisticBaseline};
use crate::control::save::{BestStates, StateInventory};
use crate::event::{Evaluation, TargetMeasures};

#[derive(Debug, Default)]
pub(crate) struct ModelChoice {
    pub(crate) early_stop: Option<EarlyStop>,
    pub(crate) search: SearchState,
    pub(crate) best_states: Option<BestStates>,
    /// What the first worker keeps, as the others know it: each may take its place.
    pub(super) inventory_of_first: StateInventory,
    /// What each evaluated state was, in the order of steps.
    pub(crate) evaluated: Vec<EvaluatedState>,
    pub(crate) chosen: Option<EvaluatedState>,
    pub(crate) message: Option<String>,
    pub(super) tested: Option<Evaluation>,
}

/// What of a choice outlasts an interruption.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChoiceState {
    search: SearchState,
    inventory: StateInventory,
    evaluated: Vec<EvaluatedState>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct EvaluatedState {
    pub(crate) step: u64,
    pub(crate) samples: u64,
    pub(crate) evaluation: Evaluation,
}

impl ModelChoice {
    /// States are kept below `folder`; without one the last state is the model.
    pub(crate) fn new(job: &Job, folder: Option<Folder>) -> Self {
        let kept = folder.filter(|_| job.output.keep_best > 0);
        let best_states = kept.map(|folder| BestStates::new(folder, job.output.keep_best as usize));
        Self { early_stop: job.train.early_stop, best_states, ..Self::default() }
    }

    pub(crate) fn choice_state(&self) -> ChoiceState {
        let inventory = self.best_states.as_ref().map_or(&self.inventory_of_first, |kept| &kept.inventory);
        ChoiceState { search: self.search, inventory: inventory.clone(), evaluated: self.evaluated.clone() }
    }

    pub(crate) fn restore(&mut self, state: ChoiceState) {
        (self.search, self.evaluated) = (state.search, state.evaluated);
        match &mut self.best_states {
            // States that were kept later lie there still, and are replaced in time.
            Some(best_states) => best_states.inventory = state.inventory,
            None => self.inventory_of_first = state.inventory,
        }
    }
}

/// An AUC that is less by no more than this may be so by chance.
const NOISE: f64 = 0.001;

/// What to say where an earlier state had a better validation AUC than the last.
pub(super) fn better_than_last(evaluated: &[EvaluatedState]) -> Option<String> {
    let auc = |state: &EvaluatedState| state.evaluation.auc.filter(|auc| auc.is_finite());
    let last = evaluated.last().and_then(auc)?;
    let aucs = evaluated.iter().filter_map(|state| Some((state.step, auc(state)?)));
    let (step, best) = aucs.reduce(|best, other| if other.1 > best.1 { other } else { best })?;
    (best - last > NOISE).then(|| {
        format!(
            "the model is the last state, whose validation AUC is {last:.4}; it was {best:.4} at step {step}: \
             train.early_stop = {{ patience = 2 }} ends training there and keeps the best state"
        )
    })
}

#[derive(Debug, Default)]
pub(crate) struct ScoringState {
    pub(crate) held_out: HeldOutParts,
    /// The last evaluation while training, and after which step it was.
    pub(crate) evaluated: Option<(u64, Evaluation)>,
    pub(crate) of_epochs: Vec<Evaluation>,
    /// The slices and the targets of the part that was scored last.
    pub(crate) measured: MeasuredParts,
    pub(crate) calibrators: Option<ModelCalibrators>,
    /// Measures of the first target in the part that was scored last, after calibration.
    pub(crate) calibrated: Option<Evaluation>,
    pub(crate) model: ModelChoice,
    /// `None` in a run that is not compared with one.
    pub(crate) logistic: Option<LogisticBaseline>,
    /// Of that regression, of the part that was scored last.
    pub(crate) logistic_measures: Option<Evaluation>,
}

#[derive(Debug, Default)]
pub(crate) struct MeasuredParts {
    /// Steps before that state.
    pub(crate) step: u64,
    pub(crate) slices: Vec<ColumnSlices>,
    pub(crate) targets: Vec<TargetMeasures>,
}

pub(crate) fn early_stop_rule(early_stop: EarlyStop) -> EarlyStopRule {
    EarlyStopRule { patience: early_stop.patience, min_delta: early_stop.min_delta }
}

/// `None` where the measure is not defined.
pub(crate) fn measured_state(metric: EvalMetric, evaluation: &Evaluation) -> Option<MeasuredState> {
    let (_, measure) = named_measure(metric);
    let value = measure(evaluation).filter(|value| value.is_finite())?;
    Some(MeasuredState { value, merit: if metric.is_gain() { value } else { -value } })
}

/// `fate` says what becomes of the best state.
pub(crate) fn explain_end(early_stop: EarlyStop, search: &SearchState, fate: &str) -> String {
    let EarlyStop { metric, patience, min_delta } = early_stop;
    let (name, _) = named_measure(metric);
    let Some(BestState { step, value, .. }) = search.best_state() else {
        return format!("no state is the best: the validation {name} was never defined; the last state is the model");
    };
    let best = format!("{value:.4} at step {}, {fate}", group_thousands(step));
    if !search.is_over(early_stop_rule(early_stop)) {
        return format!("the best validation {name} was {best}");
    }
    let verb = if metric.is_gain() { "risen" } else { "fallen" };
    let margin = if min_delta > 0.0 { format!(" by {min_delta}") } else { String::new() };
    let evaluations = if patience == 1 { "evaluation" } else { "evaluations" };
    format!("stopped: validation {name} has not {verb}{margin} for {patience} {evaluations}; the best was {best}")
}

type NamedMeasure = (&'static str, fn(&Evaluation) -> Option<f64>);

pub(super) fn named_measure(metric: EvalMetric) -> NamedMeasure {
    match metric {
        EvalMetric::Auc => ("AUC", |evaluation| evaluation.auc),
        EvalMetric::Logloss => ("logloss", |evaluation| evaluation.logloss),
        EvalMetric::Gauc => ("GAUC", |evaluation| evaluation.gauc),
        EvalMetric::Mse => ("MSE", |evaluation| evaluation.mse),
        EvalMetric::Mae => ("MAE", |evaluation| evaluation.mae),
        EvalMetric::Deviance => ("deviance", |evaluation| evaluation.deviance),
        EvalMetric::Accuracy => ("accuracy", |evaluation| evaluation.accuracy),
    }
}

/// `1,234,567`.
pub(super) fn group_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use zagros_worker_core::PatienceUse;
    use zagros_zip::number_from;

    use super::*;

    fn states(aucs: &[Option<f64>]) -> Vec<EvaluatedState> {
        let state = |(index, auc): (u64, &Option<f64>)| EvaluatedState {
            step: index * 100,
            samples: 0,
            evaluation: Evaluation { auc: *auc, ..Evaluation::default() },
        };
        number_from(1, aucs).map(state).collect()
    }

    #[test]
    fn a_better_state_than_the_last_is_reported_with_the_key_that_keeps_it() {
        let reported = |aucs: &[Option<f64>]| better_than_last(&states(aucs));
        let expected = "the model is the last state, whose validation AUC is 0.6985; it was 0.7929 at step 200: \
                        train.early_stop = { patience = 2 } ends training there and keeps the best state";
        assert_eq!(reported(&[Some(0.75), Some(0.7929), Some(0.6985)]).unwrap(), expected);
        assert_eq!(reported(&[Some(0.7), Some(0.79)]), None);
        assert_eq!(reported(&[Some(0.7905), Some(0.79)]), None, "as good, but for chance");
        assert_eq!((reported(&[]), reported(&[Some(0.9), None])), (None, None));
    }

    fn auc(value: Option<f64>) -> Evaluation {
        Evaluation { auc: value, ..Evaluation::default() }
    }

    /// What is said after these evaluations, made every 100 steps.
    fn explained(early_stop: EarlyStop, evaluations: &[Evaluation]) -> String {
        let mut search = SearchState::default();
        for (number, evaluation) in number_from(1, evaluations) {
            let measured = measured_state(early_stop.metric, evaluation);
            search.note_evaluation(early_stop_rule(early_stop), 100 * number, measured, PatienceUse::Spent);
        }
        explain_end(early_stop, &search, "which is what is saved")
    }

    #[test]
    fn the_end_of_the_search_names_the_best_state_and_why_it_ended() {
        let stop = |metric, patience, min_delta| EarlyStop { metric, patience, min_delta };
        let aucs = [0.7, 0.8, 0.79, 0.8].map(|value| auc(Some(value)));
        let expected = "stopped: validation AUC has not risen for 2 evaluations; the best was 0.8000 at step 200, which is \
                        what is saved";
        assert_eq!(explained(stop(EvalMetric::Auc, 2, 0.0), &aucs), expected);
        let expected = "the best validation AUC was 0.8000 at step 200, which is what is saved";
        assert_eq!(explained(stop(EvalMetric::Auc, 3, 0.0), &aucs), expected);
        let slow = [0.9, 0.90005, 0.90009].map(|value| auc(Some(value)));
        let message = explained(stop(EvalMetric::Auc, 2, 1e-4), &slow);
        assert!(message.contains("has not risen by 0.0001 for 2 evaluations; the best was 0.9001 at step 300"));
        let losses = [0.5, 0.4, 0.45].map(|value| Evaluation { logloss: Some(value), ..Evaluation::default() });
        let message = explained(stop(EvalMetric::Logloss, 1, 0.0), &losses);
        let expected = "logloss has not fallen for 1 evaluation; the best was 0.4000 at step 200";
        assert!(message.contains(expected), "{message}");
        let lost = explain_end(stop(EvalMetric::Auc, 1, 0.0), &SearchState::default(), "");
        assert!(lost.contains("was never defined; the last state is the model"), "{lost}");
    }

    #[test]
    fn of_logloss_less_is_better_and_what_is_not_defined_is_no_measure() {
        let loss = Evaluation { logloss: Some(0.4), ..Evaluation::default() };
        assert_eq!(measured_state(EvalMetric::Logloss, &loss), Some(MeasuredState { value: 0.4, merit: -0.4 }));
        assert_eq!(measured_state(EvalMetric::Auc, &auc(Some(0.9))), Some(MeasuredState { value: 0.9, merit: 0.9 }));
        for undefined in [auc(None), auc(Some(f64::NAN))] {
            assert_eq!(measured_state(EvalMetric::Auc, &undefined), None);
        }
        assert_eq!(measured_state(EvalMetric::Gauc, &auc(Some(0.9))), None);
        let errors = Evaluation { mse: Some(2.0), accuracy: Some(0.5), ..Evaluation::default() };
        assert_eq!(measured_state(EvalMetric::Mse, &errors).unwrap().merit, -2.0);
        assert_eq!(measured_state(EvalMetric::Accuracy, &errors).unwrap().merit, 0.5);
    }

    #[test]
    fn steps_are_written_with_commas() {
        assert_eq!([0, 999, 1_200, 1_234_567].map(group_thousands), ["0", "999", "1,200", "1,234,567"]);
    }
}
