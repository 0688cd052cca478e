//! What the summary of a run adds to its measures: those of simple models of the same rows, and a sentence where measures disagree, or are
//! far from what the job allows, with the key that helps. No setting changes by itself.

use zagros_eval::Evaluation;
use zagros_eval::measure::constant_logloss;

use super::model_choice::{EvaluatedState, group_thousands};
use crate::control::trainer::Trainer;
use crate::datapath::prefetch::AHEAD;
use crate::summary::{BaselineMeasures, StepStaleness};

/// A logloss that is higher by no more than this share may be so by chance.
const HIGHER: f64 = 0.01;
/// From this share of predicted clicks too many or too few on, calibration is proposed.
const MISCALIBRATED: f64 = 0.02;
/// Up to this τ, nothing is said of a staleness that was not reached.
const SMALL_STALENESS: usize = 4;

impl Trainer {
    pub(crate) fn list_advice(&self) -> Vec<String> {
        let (_, validation) = self.model_measures();
        let is_calibrated = self.run.job.eval.calibration.is_some();
        let evaluated = &self.scoring.model.evaluated;
        let overfit = validation.and_then(|model| explain_overfit(evaluated, &model, is_calibrated));
        let uncalibrated = validation.filter(|_| overfit.is_none() && !is_calibrated);
        let calibration = uncalibrated.and_then(|model| propose_calibration(&model));
        let staleness = explain_staleness(self.run.job.train.staleness, self.tracker.staleness());
        [overfit, calibration, staleness].into_iter().flatten().collect()
    }

    /// Of the rows that these measures are of; `None` where the label is no click.
    pub(crate) fn measure_baselines(&self, measured: &Evaluation) -> Option<BaselineMeasures> {
        let first_epoch = self.scoring.of_epochs.first().copied();
        let training = first_epoch.unwrap_or_else(|| self.tracker.done.overall.report());
        let prevalence_logloss = constant_logloss(measured.positive_rate?, training.positive_rate?);
        let logistic = self.scoring.logistic_measures.filter(|logistic| logistic.samples == measured.samples);
        Some(BaselineMeasures {
            prevalence_logloss,
            logistic_auc: logistic.and_then(|logistic| logistic.auc),
            logistic_logloss: logistic.and_then(|logistic| logistic.logloss),
        })
    }
}

/// The model orders validation rows better than the state with the least logloss, and its probabilities are worse.
fn explain_overfit(evaluated: &[EvaluatedState], model: &Evaluation, is_calibrated: bool) -> Option<String> {
    let (auc, logloss) = (model.auc?, model.logloss?);
    let losses = evaluated.iter().filter_map(|state| Some((state, state.evaluation.logloss?)));
    let (best, least) = losses.min_by(|one, other| one.1.total_cmp(&other.1))?;
    let earlier = best.evaluation.auc.filter(|earlier| auc > *earlier && logloss > least * (1.0 + HIGHER))?;
    let calibrate = if is_calibrated { "" } else { "eval.calibration = \"isotonic\" corrects them, and " };
    let step = group_thousands(best.step);
    Some(format!(
        "overfit: the model has a validation AUC of {auc:.4} and a logloss of {logloss:.4}; at step {step} they were {earlier:.4} and \
         {least:.4}: the probabilities are too certain; {calibrate}train.early_stop = {{ metric = \"logloss\", patience = 2 }} keeps the \
         state of least logloss"
    ))
}

fn propose_calibration(model: &Evaluation) -> Option<String> {
    let (ratio, positives) = (model.calibration?, model.positive_rate? * model.samples as f64);
    // Two standard errors: a small part has other clicks than expected by chance.
    let noise = 2.0 / positives.max(1.0).sqrt();
    ((ratio - 1.0).abs() > MISCALIBRATED.max(noise)).then(|| {
        format!(
            "the model predicts {ratio:.3} clicks per real one in the validation part: eval.calibration = \"isotonic\" fits its \
             probabilities to that part"
        )
    })
}

fn explain_staleness(bound: usize, seen: StepStaleness) -> Option<String> {
    (bound > SMALL_STALENESS && 2 * seen.max as usize <= bound).then(|| {
        format!(
            "of the {bound} batches that train.staleness allows, {} were used: rows are looked up for at most {AHEAD} batches after that of \
             the step, and gradients were acknowledged soon; a lower bound trains the same",
            seen.max
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(step: u64, auc: f64, logloss: f64) -> EvaluatedState {
        let evaluation = Evaluation { auc: Some(auc), logloss: Some(logloss), ..Evaluation::default() };
        EvaluatedState { step, samples: 0, evaluation }
    }

    #[test]
    fn an_auc_that_rises_with_the_logloss_is_overfit_and_both_keys_are_named() {
        let evaluated = [state(1000, 0.75, 0.43), state(2000, 0.758, 0.45), state(3000, 0.757, 0.47)];
        let explained =
            |model: usize, calibrated| explain_overfit(&evaluated, &evaluated[model].evaluation, calibrated);
        let expected = "overfit: the model has a validation AUC of 0.7580 and a logloss of 0.4500; at step 1,000 they were 0.7500 \
                        and 0.4300: the probabilities are too certain; eval.calibration = \"isotonic\" corrects them, and \
                        train.early_stop = { metric = \"logloss\", patience = 2 } keeps the state of least logloss";
        assert_eq!(explained(1, false).unwrap(), expected);
        assert!(!explained(2, true).unwrap().contains("isotonic"));
        assert_eq!(explained(0, false), None);
        let worse = [state(1000, 0.75, 0.43), state(2000, 0.74, 0.47)];
        assert_eq!(explain_overfit(&worse, &worse[1].evaluation, false), None, "an earlier state is better in both");
        let near = [state(1000, 0.75, 0.43), state(2000, 0.76, 0.434)];
        assert_eq!(explain_overfit(&near, &near[1].evaluation, false), None, "as good, but for chance");
    }

    #[test]
    fn calibration_is_proposed_where_clicks_are_off_by_more_than_chance() {
        let proposed = |ratio, samples| {
            let (calibration, positive_rate) = (Some(ratio), Some(0.25));
            propose_calibration(&Evaluation { samples, calibration, positive_rate, ..Evaluation::default() })
        };
        assert!(proposed(1.033, 100_000).unwrap().starts_with("the model predicts 1.033 clicks per real one"));
        assert!(proposed(0.9, 100_000).is_some());
        assert_eq!((proposed(1.015, 100_000), proposed(1.1, 1_000), proposed(f64::NAN, 1_000)), (None, None, None));
    }

    #[test]
    fn a_staleness_far_below_its_bound_names_what_bounds_it() {
        let explained = |bound, max| explain_staleness(bound, StepStaleness { max, mean: 1.0 });
        assert!(explained(16, 5).unwrap().starts_with("of the 16 batches that train.staleness allows, 5 were used"));
        assert_eq!((explained(16, 9), explained(4, 1), explained(0, 0)), (None, None, None));
    }
}
