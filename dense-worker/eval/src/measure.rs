//! The measures as functions of sorted logits, one slice per class.
//!
//! They take logits, not probabilities: in f32 the sigmoid is 1 from 17 on. That would tie the most certain samples and
//! make their logloss infinite.

/// ln(1 + eˣ), without overflow.
#[must_use]
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// 1 / (1 + e⁻ˣ), without overflow.
#[must_use]
pub fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// Area under the ROC curve: the share of (positive, negative) pairs that the scores order correctly. A tie counts one half
/// (the Mann–Whitney U statistic divided by its maximum).
///
/// Both slices ascending. `None` when a class has no sample or a score is NaN. O(n).
#[must_use]
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

/// Mean binary cross-entropy in nats. `None` without samples.
#[must_use]
pub fn logloss(positives: &[f32], negatives: &[f32]) -> Option<f64> {
    let samples = positives.len() + negatives.len();
    let of_positives: f64 = positives.iter().map(|logit| softplus(-f64::from(*logit))).sum();
    let of_negatives: f64 = negatives.iter().map(|logit| softplus(f64::from(*logit))).sum();
    (samples > 0).then(|| (of_positives + of_negatives) / samples as f64)
}

/// Entropy in nats of the frequencies of the classes: the logloss of the best constant prediction. `None` when a class has
/// no sample.
#[must_use]
pub fn base_entropy(positives: usize, negatives: usize) -> Option<f64> {
    if positives == 0 || negatives == 0 {
        return None;
    }
    let rate = positives as f64 / (positives + negatives) as f64;
    Some(-(rate * rate.ln() + (1.0 - rate) * (-rate).ln_1p()))
}

/// Mean predicted probability divided by the share of positives. 1 is calibrated; above 1 the model predicts too many
/// clicks. `None` without positives.
#[must_use]
pub fn calibration_ratio(positives: &[f32], negatives: &[f32]) -> Option<f64> {
    let predicted: f64 = positives.iter().chain(negatives).map(|logit| sigmoid(f64::from(*logit))).sum();
    (!positives.is_empty()).then(|| predicted / positives.len() as f64)
}

fn has_nan(sorted: &[f32]) -> bool {
    // In total order, a NaN is at one of the two ends, by its sign.
    sorted.first().is_some_and(|score| score.is_nan()) || sorted.last().is_some_and(|score| score.is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_and_sigmoid_hold_at_the_ends() {
        assert_eq!(softplus(800.0), 800.0);
        assert_eq!(softplus(-800.0), 0.0);
        assert!((softplus(0.0) - 2.0_f64.ln()).abs() < 1e-16);
        assert_eq!((sigmoid(800.0), sigmoid(-800.0), sigmoid(0.0)), (1.0, 0.0, 0.5));
    }

    #[test]
    fn auc_of_a_worked_example() {
        // Pairs: 0.8 beats both, 0.4 beats 0.1 and ties 0.4: 3.5 of 4.
        assert_eq!(auc(&[0.4, 0.8], &[0.1, 0.4]), Some(0.875));
    }

    #[test]
    fn auc_needs_both_classes_and_numbers() {
        assert_eq!(auc(&[], &[1.0]), None);
        assert_eq!(auc(&[1.0], &[]), None);
        assert_eq!(auc(&[1.0, f32::NAN], &[1.0]), None);
        assert_eq!(auc(&[1.0], &[-f32::NAN, 1.0]), None);
    }

    #[test]
    fn logloss_of_a_certain_mistake_is_finite() {
        assert_eq!(logloss(&[-100.0], &[]), Some(100.0));
        assert_eq!(logloss(&[], &[]), None);
    }

    #[test]
    fn entropy_of_a_fair_coin_is_ln_2() {
        assert!((base_entropy(5, 5).unwrap() - 2.0_f64.ln()).abs() < 1e-15);
        assert_eq!(base_entropy(0, 5), None);
    }

    #[test]
    fn calibration_compares_predicted_clicks_with_real_ones() {
        // Two samples with a prediction of one half each, and one click.
        assert_eq!(calibration_ratio(&[0.0], &[0.0]), Some(1.0));
        assert_eq!(calibration_ratio(&[0.0], &[0.0, 0.0, 0.0]), Some(2.0));
        assert_eq!(calibration_ratio(&[], &[0.0]), None);
    }
}
