//! Samples and definitions for the tests of this crate.

use proptest::prelude::*;

use crate::ClickScores;

/// Logits of few distinct values, so that ties are common.
pub(crate) fn quarters() -> impl Strategy<Value = f32> {
    (-8_i8..8).prop_map(|step| f32::from(step) / 4.0)
}

pub(crate) fn scores(samples: &[(bool, f32)]) -> ClickScores {
    let mut scores = ClickScores::new();
    samples.iter().for_each(|(label, logit)| scores.push(f32::from(u8::from(*label)), *logit));
    scores
}

pub(crate) fn near(a: Option<f64>, b: Option<f64>) -> bool {
    a.is_some() == b.is_some() && a.zip(b).is_none_or(|(a, b)| (a - b).abs() < 1e-9)
}

/// The AUC by its definition: over all pairs of a positive and a negative.
pub(crate) fn auc_by_pairs(samples: &[(bool, f32)]) -> Option<f64> {
    let (mut won, mut pairs) = (0.0, 0.0);
    for (_, positive) in samples.iter().filter(|sample| sample.0) {
        for (_, negative) in samples.iter().filter(|sample| !sample.0) {
            won += if positive > negative { 1.0 } else { f64::from(u8::from(positive == negative)) / 2.0 };
            pairs += 1.0;
        }
    }
    (pairs > 0.0).then(|| won / pairs)
}
