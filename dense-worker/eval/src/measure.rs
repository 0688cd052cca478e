//! The measures as functions of sorted logits, one slice per class.
//!
//! They take logits, not probabilities: in f32 the sigmoid is 1 from 17 on. That would tie the most certain samples and
//! make their logloss infinite.
//!
//! The expected calibration error is how far predicted probabilities are from frequencies, over the whole range of scores.
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

/// ln(1 + eˣ), without overflow.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// 1 / (1 + e⁻ˣ), without overflow.
pub fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// Area under the ROC curve: the share of (positive, negative) pairs that the scores order correctly. A tie counts one half
/// (the Mann–Whitney U statistic divided by its maximum).
///
/// Both slices ascending. `None` when a class has no sample or a score is NaN. O(n).
pub fn auc(positives: &[f32], negatives: &[f32]) -> Option<f64> {
    if positives.is_empty() || negatives.is_empty() || has_nan(positives) || has_nan(negatives) {
        return None;
    }
    // Twice U, in integers: exact up to 2⁶³ pairs of each kind.
    let (mut below, mut not_above) = (0, 0);
    let mut doubled = 0_u128;
    for score in positives {
        while below < negatives.len() && negatives[below] < *score {
            below += 1;
        }
        not_above = not_above.max(below);
        while not_above < negatives.len() && negatives[not_above] <= *score {
            not_above += 1;
        }
        doubled += below as u128 + not_above as u128;
    }
    let pairs = positives.len() as f64 * negatives.len() as f64;
    Some(doubled as f64 / 2.0 / pairs)
}

/// Entropy in nats of the frequencies of the classes: the logloss of the best constant prediction. `None` when a class has
/// no sample.
pub fn base_entropy(positives: usize, negatives: usize) -> Option<f64> {
    if positives == 0 || negatives == 0 {
        return None;
    }
    let rate = positives as f64 / (positives + negatives) as f64;
    Some(-(rate * rate.ln() + (1.0 - rate) * (-rate).ln_1p()))
}

/// Logloss in nats of one probability for all samples, of which this share is positive; `None` where it is infinite.
pub fn constant_logloss(positive_rate: f64, probability: f64) -> Option<f64> {
    let loss = -(positive_rate * probability.ln() + (1.0 - positive_rate) * (-probability).ln_1p());
    Some(loss).filter(|loss| loss.is_finite())
}

fn has_nan(sorted: &[f32]) -> bool {
    // In total order, a NaN is at one of the two ends, by its sign.
    sorted.first().is_some_and(|score| score.is_nan()) || sorted.last().is_some_and(|score| score.is_nan())
}

const BINS: usize = 20;

/// The error of sorted logits, one slice per class, 0..1. `None` without samples, or when a score is NaN. O(n).
pub fn calibration_error(positives: &[f32], negatives: &[f32]) -> Option<f64> {
    let all = positives.len() + negatives.len();
    if all == 0 || has_nan(positives) || has_nan(negatives) {
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
pub(crate) fn take_equal(logits: &mut &[f32], logit: f32) -> usize {
    let equal = logits.iter().take_while(|other| **other <= logit).count();
    *logits = &logits[equal..];
    equal
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn softplus_and_sigmoid_hold_at_the_ends() {
        assert_eq!(softplus(800.0), 800.0);
        assert_eq!(softplus(-800.0), 0.0);
        assert!((softplus(0.0) - 2.0_f64.ln()).abs() < 1e-16);
        assert_eq!((sigmoid(800.0), sigmoid(-800.0), sigmoid(0.0)), (1.0, 0.0, 0.5));
    }

    #[test]
    fn worked_examples() {
        // Pairs: 0.8 beats both, 0.4 beats 0.1 and ties 0.4: 3.5 of 4.
        assert_eq!(auc(&[0.4, 0.8], &[0.1, 0.4]), Some(0.875));
        // The entropy of a fair coin.
        assert!((base_entropy(5, 5).unwrap() - 2.0_f64.ln()).abs() < 1e-15);
        assert_eq!(calibration_error(&[], &[0.0]), Some(0.5));
        assert!((constant_logloss(0.25, 0.5).unwrap() - 2.0_f64.ln()).abs() < 1e-15);
        assert_eq!(constant_logloss(0.25, 0.0), None);
        // Two bins: a prediction of one half with one click of four, and one of 0.9 with nine of ten.
        let certain = (0.9_f32 / 0.1).ln();
        let (positives, negatives) = ([vec![0.0], vec![certain; 9]].concat(), [vec![0.0; 3], vec![certain]].concat());
        let error = calibration_error(&positives, &negatives).unwrap();
        assert!((error - 4.0 / 14.0 * 0.25).abs() < 1e-7, "{error}");
    }

    #[test]
    fn measures_without_their_samples_or_of_no_numbers_are_none() {
        let nan = f32::NAN;
        for (what, found) in [
            ("AUC without positives", auc(&[], &[1.0])),
            ("AUC without negatives", auc(&[1.0], &[])),
            ("AUC of a positive that is no number", auc(&[1.0, nan], &[1.0])),
            ("AUC of a negative that is no number", auc(&[1.0], &[-nan, 1.0])),
            ("entropy of one class", base_entropy(0, 5)),
            ("error without samples", calibration_error(&[], &[])),
            ("error of a positive that is no number", calibration_error(&[nan], &[0.0])),
            ("error of a negative that is no number", calibration_error(&[0.0], &[-nan, 0.0])),
        ] {
            assert_eq!(found, None, "{what}");
        }
    }

    #[test]
    fn errors_of_low_and_high_scores_do_not_cancel() {
        // Half of the samples have a prediction of 0.1 and no click, the others one of 0.9 and clicks only.
        let high = 9.0_f32.ln();
        let (positives, negatives) = (vec![high; 50], vec![-high; 50]);
        let predicted: f64 = positives.iter().chain(&negatives).map(|logit| sigmoid(f64::from(*logit))).sum();
        assert!((predicted / positives.len() as f64 - 1.0).abs() < 1e-6);
        assert!((calibration_error(&positives, &negatives).unwrap() - 0.1).abs() < 1e-6);
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
