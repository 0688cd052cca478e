//! Expected calibration error: how far predicted probabilities are from frequencies, over the whole range of scores.
//!
//! Predicted clicks divided by real ones can be 1 where low scores are too low and high scores too high. The error adds up the
//! differences of bins of scores, so that they do not cancel:
//!
//! ```text
//! error = Σ over bins  samples of the bin / all samples · |mean prediction − share of positives|
//! ```
//!
//! (Naeini et al. 2015, "Obtaining Well Calibrated Probabilities Using Bayesian Binning".) Bins have equally many samples, as
//! most click probabilities are near zero (Nguyen and O'Connor 2015, "Posterior calibration and exploratory analysis"). Equal
//! scores are in the same bin, so the order of samples does not matter.

use crate::measure::sigmoid;

const BINS: usize = 20;

/// The error of sorted logits, one slice per class, 0..1. `None` without samples, or when a score is NaN. O(n).
#[must_use]
pub fn calibration_error(positives: &[f32], negatives: &[f32]) -> Option<f64> {
    let all = positives.len() + negatives.len();
    let is_nan = |logits: &[f32]| logits.first().into_iter().chain(logits.last()).any(|logit| logit.is_nan());
    if all == 0 || is_nan(positives) || is_nan(negatives) {
        return None;
    }
    let full = all.div_ceil(BINS);
    let (mut positives, mut negatives) = (positives, negatives);
    let (mut error, mut samples, mut difference) = (0.0, 0, 0.0);
    while let Some(logit) = [positives.first(), negatives.first()].into_iter().flatten().copied().reduce(f32::min) {
        let (of_positives, of_negatives) = (take_equal(&mut positives, logit), take_equal(&mut negatives, logit));
        let equal = of_positives + of_negatives;
        difference += equal as f64 * sigmoid(f64::from(logit)) - of_positives as f64;
        samples += equal;
        if samples >= full {
            error += f64::abs(difference);
            (samples, difference) = (0, 0.0);
        }
    }
    Some((error + difference.abs()) / all as f64)
}

/// Removes the logits that equal the given one, which is the least, and counts them.
fn take_equal(logits: &mut &[f32], logit: f32) -> usize {
    let equal = logits.iter().take_while(|other| **other <= logit).count();
    *logits = &logits[equal..];
    equal
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_worked_example() {
        // Two bins: a prediction of one half with one click of four, and one of 0.9 with nine of ten.
        let certain = (0.9_f32 / 0.1).ln();
        let (positives, negatives) = ([vec![0.0], vec![certain; 9]].concat(), [vec![0.0; 3], vec![certain]].concat());
        let error = calibration_error(&positives, &negatives).unwrap();
        assert!((error - 4.0 / 14.0 * 0.25).abs() < 1e-7, "{error}");
    }

    #[test]
    fn errors_of_low_and_high_scores_do_not_cancel() {
        // Half of the samples have a prediction of 0.1 and no click, the others one of 0.9 and clicks only.
        let high = 9.0_f32.ln();
        let (positives, negatives) = (vec![high; 50], vec![-high; 50]);
        assert!((crate::measure::calibration_ratio(&positives, &negatives).unwrap() - 1.0).abs() < 1e-6);
        assert!((calibration_error(&positives, &negatives).unwrap() - 0.1).abs() < 1e-6);
    }

    #[test]
    fn it_needs_samples_and_numbers() {
        assert_eq!(calibration_error(&[], &[]), None);
        assert_eq!(calibration_error(&[f32::NAN], &[0.0]), None);
        assert_eq!(calibration_error(&[0.0], &[-f32::NAN, 0.0]), None);
        assert_eq!(calibration_error(&[], &[0.0]), Some(0.5));
    }

    proptest! {
        /// The error is at least the difference of the means, and at most 1.
        #[test]
        fn it_is_between_the_difference_of_means_and_one(
            mut positives in prop::collection::vec(-8.0_f32..8.0, 0..200), mut negatives in prop::collection::vec(-8.0_f32..8.0, 1..200),
        ) {
            positives.sort_by(f32::total_cmp);
            negatives.sort_by(f32::total_cmp);
            let error = calibration_error(&positives, &negatives).unwrap();
            let all = (positives.len() + negatives.len()) as f64;
            let predicted: f64 = positives.iter().chain(&negatives).map(|logit| sigmoid(f64::from(*logit))).sum();
            let least = (predicted - positives.len() as f64).abs() / all;
            prop_assert!(least - 1e-9 <= error && error <= 1.0, "{} {}", least, error);
        }
    }
}
