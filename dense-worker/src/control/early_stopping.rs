//! Early stopping: which state is the best, and when looking for a better one ends.

use serde::{Deserialize, Serialize};
use zagros_job::{EarlyStop, Metric};

use crate::event::Evaluation;

/// Follows the evaluations of the validation part.
#[derive(Clone, Debug)]
pub(crate) struct EarlyStopping {
    rule: EarlyStop,
    best: Option<Best>,
    /// Merit that a better evaluation must exceed by `min_delta`.
    reference: Option<f64>,
    /// Evaluations in a row that did not.
    waited: u32,
}

/// What of it outlasts an interruption.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SearchState {
    best: Option<Best>,
    reference: Option<f64>,
    waited: u32,
}

/// What becomes of the best state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateUse {
    /// It is the saved model.
    Saved,
    /// The test part is scored with it; no model is saved.
    Scored,
    /// It was not kept.
    Lost,
}

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Best {
    step: u64,
    value: f64,
    merit: f64,
}

impl EarlyStopping {
    /// Nothing seen yet.
    pub(crate) fn new(rule: EarlyStop) -> Self {
        Self { rule, best: None, reference: None, waited: 0 }
    }

    pub(crate) fn search(&self) -> SearchState {
        SearchState { best: self.best, reference: self.reference, waited: self.waited }
    }

    /// Continues from there. The rule stays this one's.
    pub(crate) fn restore(&mut self, search: SearchState) {
        let SearchState { best, reference, waited } = search;
        (self.best, self.reference, self.waited) = (best, reference, waited);
    }

    /// The measure that states are compared by, more being better; `None` where it is not defined.
    pub(crate) fn merit(&self, evaluation: &Evaluation) -> Option<f64> {
        let value = self.value(evaluation)?;
        Some(if self.rule.metric == Metric::Logloss { -value } else { value })
    }

    /// Takes an evaluation into account, which is that of the best state if it is better by however little.
    pub(crate) fn note(&mut self, step: u64, evaluation: &Evaluation) {
        let (value, merit) = (self.value(evaluation), self.merit(evaluation));
        if let (Some(value), Some(merit)) = (value, merit)
            && self.best.is_none_or(|best| merit > best.merit)
        {
            self.best = Some(Best { step, value, merit });
        }
        // Slow progress adds up: the reference stays until it is exceeded by all of `min_delta`.
        let exceeds = |merit: f64| self.reference.is_none_or(|reference| merit > reference + self.rule.min_delta);
        if merit.is_some_and(exceeds) {
            (self.reference, self.waited) = (merit, 0);
        } else {
            self.waited += 1;
        }
    }

    /// Whether nothing better is to be waited for.
    pub(crate) fn is_over(&self) -> bool {
        self.waited >= self.rule.patience
    }

    /// Why training ended and which state is the best, in plain words, with what becomes of it.
    pub(crate) fn explain(&self, fate: StateUse) -> String {
        let name = name_of(self.rule.metric);
        let Some(Best { step, value, .. }) = self.best else {
            return format!(
                "no state is the best: the validation {name} was never defined; the last state is the model"
            );
        };
        let fate = match fate {
            StateUse::Saved => "which is what is saved",
            StateUse::Scored => "which is what is scored",
            StateUse::Lost => "but the last state is the model (nothing was kept: output.keep_best)",
        };
        let best = format!("{value:.4} at step {}, {fate}", thousands(step));
        if !self.is_over() {
            return format!("the best validation {name} was {best}");
        }
        let verb = if self.rule.metric == Metric::Logloss { "fallen" } else { "risen" };
        let by = if self.rule.min_delta > 0.0 { format!(" by {}", self.rule.min_delta) } else { String::new() };
        let evaluations = if self.rule.patience == 1 { "evaluation" } else { "evaluations" };
        format!(
            "stopped: validation {name} has not {verb}{by} for {} {evaluations}; the best was {best}",
            self.rule.patience
        )
    }

    fn value(&self, evaluation: &Evaluation) -> Option<f64> {
        let value = match self.rule.metric {
            Metric::Auc => evaluation.auc,
            Metric::Logloss => evaluation.logloss,
            Metric::Gauc => evaluation.gauc,
        };
        value.filter(|value| value.is_finite())
    }
}

fn name_of(metric: Metric) -> &'static str {
    match metric {
        Metric::Auc => "AUC",
        Metric::Logloss => "logloss",
        Metric::Gauc => "GAUC",
    }
}

/// `1,234,567`.
fn thousands(number: u64) -> String {
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
    use super::*;

    fn rule(metric: Metric, patience: u32, min_delta: f64) -> EarlyStopping {
        EarlyStopping::new(EarlyStop { metric, patience, min_delta })
    }

    fn auc(value: Option<f64>) -> Evaluation {
        Evaluation { auc: value, ..Evaluation::default() }
    }

    /// After which of the evaluations, made every 100 steps, it is over.
    fn over_after(mut choice: EarlyStopping, evaluations: &[Evaluation]) -> (Option<usize>, String) {
        for (number, evaluation) in evaluations.iter().enumerate() {
            choice.note(100 * (number as u64 + 1), evaluation);
            if choice.is_over() {
                return (Some(number + 1), choice.explain(StateUse::Saved));
            }
        }
        (None, choice.explain(StateUse::Saved))
    }

    #[test]
    fn it_is_over_after_as_many_evaluations_without_a_better_one_as_patience_lasts() {
        let aucs = [0.7, 0.8, 0.79, 0.8, 0.9].map(|value| auc(Some(value)));
        let (after, message) = over_after(rule(Metric::Auc, 2, 0.0), &aucs);
        assert_eq!(after, Some(4));
        let expected = "stopped: validation AUC has not risen for 2 evaluations; the best was 0.8000 at step 200, which is \
                        what is saved";
        assert_eq!(message, expected);
        let (after, message) = over_after(rule(Metric::Auc, 3, 0.0), &aucs);
        let lost = rule(Metric::Auc, 1, 0.0).explain(StateUse::Lost);
        assert!(lost.contains("was never defined"), "{lost}");
        assert_eq!(
            (after, message.as_str()),
            (None, "the best validation AUC was 0.9000 at step 500, which is what is saved")
        );
    }

    #[test]
    fn too_little_is_not_better_but_the_best_state_all_the_same() {
        let aucs = [0.9, 0.90005, 0.90009].map(|value| auc(Some(value)));
        let (after, message) = over_after(rule(Metric::Auc, 2, 1e-4), &aucs);
        assert_eq!(after, Some(3));
        assert!(
            message.contains("has not risen by 0.0001 for 2 evaluations; the best was 0.9001 at step 300"),
            "{message}"
        );
        // Slow progress that adds up is progress.
        let aucs = [0.9, 0.90006, 0.90012].map(|value| auc(Some(value)));
        assert_eq!(over_after(rule(Metric::Auc, 2, 1e-4), &aucs).0, None);
    }

    #[test]
    fn of_logloss_less_is_better() {
        let losses = [0.5, 0.4, 0.45].map(|value| Evaluation { logloss: Some(value), ..Evaluation::default() });
        let (after, message) = over_after(rule(Metric::Logloss, 1, 0.0), &losses);
        assert_eq!(after, Some(3));
        assert!(
            message.contains("logloss has not fallen for 1 evaluation; the best was 0.4000 at step 200"),
            "{message}"
        );
    }

    #[test]
    fn what_is_not_defined_is_never_better() {
        let measures = [auc(None), auc(Some(f64::NAN)), auc(Some(0.9))];
        let (after, message) = over_after(rule(Metric::Auc, 2, 0.0), &measures);
        assert_eq!(after, Some(2));
        assert!(message.contains("was never defined; the last state is the model"), "{message}");
        assert_eq!(rule(Metric::Gauc, 2, 0.0).merit(&auc(Some(0.9))), None);
    }

    #[test]
    fn steps_are_written_with_commas() {
        assert_eq!([0, 999, 1_200, 1_234_567].map(thousands), ["0", "999", "1,200", "1,234,567"]);
    }
}
