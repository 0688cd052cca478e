//! Measures in memory that does not grow with the samples: means, which are kept as sums, and logits in bins.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure;

/// Sums over samples, from which logloss, normalised entropy and calibration are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClickSums {
    pub samples: u64,
    pub positives: u64,
    /// Sum of the samples' binary cross-entropies, nats.
    pub loss: f64,
    pub predicted: f64,
}

impl ClickSums {
    #[inline]
    pub fn push(&mut self, is_positive: bool, logit: f32) {
        let logit = f64::from(logit);
        let loss = measure::softplus(if is_positive { -logit } else { logit });
        self.add(Self { samples: 1, positives: u64::from(is_positive), loss, predicted: measure::sigmoid(logit) });
    }

    pub(crate) fn of_class(is_positive: bool, logits: &[f32]) -> Self {
        let mut sums = Self::default();
        logits.iter().for_each(|logit| sums.push(is_positive, *logit));
        sums
    }

    pub fn add(&mut self, part: Self) {
        self.samples += part.samples;
        self.positives += part.positives;
        self.loss += part.loss;
        self.predicted += part.predicted;
    }

    /// Subtracts the sums of a part that was added before.
    pub fn subtract(&mut self, part: Self) {
        self.samples -= part.samples;
        self.positives -= part.positives;
        self.loss -= part.loss;
        self.predicted -= part.predicted;
    }

    /// Share of positive samples, 0..1; `None` without samples.
    pub fn positive_rate(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.positives as f64 / self.samples as f64)
    }

    /// Mean binary cross-entropy, nats; `None` without samples.
    pub fn logloss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / self.samples as f64)
    }

    /// Logloss divided by the entropy of the positive rate; `None` when a class has no sample.
    pub fn normalised_entropy(&self) -> Option<f64> {
        let negatives = (self.samples - self.positives) as usize;
        Some(self.logloss()? / measure::base_entropy(self.positives as usize, negatives)?)
    }

    /// Mean predicted probability divided by the share of positives; `None` without positives.
    pub fn calibration_ratio(&self) -> Option<f64> {
        (self.positives > 0).then(|| self.predicted / self.positives as f64)
    }
}

/// Low bits of a logit that its bin ignores: logits of a bin differ by less than 1/2048 of their value.
const IGNORED_BITS: u32 = 12;

/// Samples of each class by the bin of their logit, and their sums.
///
/// Logloss and calibration are those of the logits themselves. The AUC takes logits of one bin for equal: it differs from the
/// exact one by at most half the share of the (positive, negative) pairs within a bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BinnedScores {
    pub(crate) sums: ClickSums,
    /// `[negatives, positives]`, in the order of the logits.
    pub(crate) bins: BTreeMap<u32, [u64; 2]>,
}

impl BinnedScores {
    /// Adds a sample: positive when `label` is above one half.
    #[inline]
    pub fn push(&mut self, label: f32, logit: f32) {
        let is_positive = label > 0.5;
        self.sums.push(is_positive, logit);
        self.bins.entry(logit_bin(logit)).or_default()[usize::from(is_positive)] += 1;
    }

    pub fn merge(&mut self, other: Self) {
        self.sums.add(other.sums);
        for (bin, [negatives, positives]) in other.bins {
            let counts = self.bins.entry(bin).or_default();
            counts[0] += negatives;
            counts[1] += positives;
        }
    }

    /// Area under the ROC curve, samples of one bin counting as ties; `None` when a class has no sample or a score is NaN.
    pub fn auc(&self) -> Option<f64> {
        let positives = self.sums.positives;
        let negatives = self.sums.samples - positives;
        if positives == 0 || negatives == 0 || self.sums.loss.is_nan() {
            return None;
        }
        let (mut below, mut doubled) = (0_u64, 0_u128);
        for [negatives, positives] in self.bins.values() {
            doubled += u128::from(*positives) * u128::from(2 * below + negatives);
            below += negatives;
        }
        Some(doubled as f64 / 2.0 / (positives as f64 * negatives as f64))
    }
}

/// The bin of a logit. Bins are in the order of their logits.
fn logit_bin(logit: f32) -> u32 {
    // −0 becomes +0.
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    ordered >> IGNORED_BITS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{near, scores};

    fn binned(samples: &[(bool, f32)]) -> BinnedScores {
        let mut binned = BinnedScores::default();
        samples.iter().for_each(|(label, logit)| binned.push(f32::from(u8::from(*label)), *logit));
        binned
    }

    /// The share of pairs of both classes whose logits are nearer than a bin is wide.
    fn near_pairs(samples: &[(bool, f32)]) -> f64 {
        let of_class = |class: bool| samples.iter().filter(move |sample| sample.0 == class).map(|sample| sample.1);
        let pairs = of_class(true).flat_map(|positive| of_class(false).map(move |negative| (positive, negative)));
        let is_near =
            |pair: &(f32, f32)| pair.0 != pair.1 && (pair.0 - pair.1).abs() <= pair.0.abs().max(pair.1.abs()) / 2048.0;
        let (all, near) =
            pairs.fold((0.0, 0.0), |(all, near), pair| (all + 1.0, near + f64::from(u8::from(is_near(&pair)))));
        if all > 0.0 { near / all } else { 0.0 }
    }

    #[test]
    fn a_score_that_is_not_a_number_has_no_auc() {
        assert_eq!(binned(&[(true, f32::NAN), (false, 0.0)]).auc(), None);
        assert_eq!(binned(&[(true, 0.0), (false, -0.0)]).auc(), Some(0.5));
        assert_eq!(binned(&[(true, 0.0)]).auc(), None);
    }

    proptest! {
        #[test]
        fn bins_are_in_the_order_of_logits(a in -1e30_f32..1e30, b in -30_f32..30.0) {
            prop_assert_eq!(a < b, if logit_bin(a) == logit_bin(b) { a < b } else { logit_bin(a) < logit_bin(b) });
            prop_assert!(logit_bin(f32::NEG_INFINITY) <= logit_bin(a) && logit_bin(a) <= logit_bin(f32::INFINITY));
        }

        #[test]
        fn measures_are_those_of_the_logits(samples in prop::collection::vec((any::<bool>(), -9_f32..9.0), 0..80), middle in 0_usize..80) {
            let (whole, expected) = (binned(&samples), scores(&samples).compute_measures());
            prop_assert_eq!(whole.auc().is_some(), expected.auc.is_some());
            if let (Some(found), Some(expected)) = (whole.auc(), expected.auc) {
                prop_assert!((found - expected).abs() <= near_pairs(&samples) / 2.0 + 1e-12, "{} {}", found, expected);
            }
            prop_assert!(near(whole.sums.logloss(), expected.logloss));
            let (left, right) = samples.split_at(middle.min(samples.len()));
            let mut merged = binned(left);
            merged.merge(binned(right));
            prop_assert_eq!(merged.auc(), whole.auc());
            prop_assert_eq!(merged.bins.len(), whole.bins.len());
        }
    }

    fn sums(samples: &[(bool, f32)]) -> ClickSums {
        let mut sums = ClickSums::default();
        samples.iter().for_each(|(label, logit)| sums.push(*label, *logit));
        sums
    }

    #[test]
    fn no_samples_have_no_measures() {
        let none = ClickSums::default();
        assert_eq!((none.positive_rate(), none.logloss(), none.calibration_ratio()), (None, None, None));
        assert_eq!(sums(&[(true, 0.0)]).normalised_entropy(), None);
    }

    proptest! {
        #[test]
        fn sums_measure_what_scores_measure(
            samples in prop::collection::vec((any::<bool>(), -9.0_f32..9.0), 0..80), before in 0_usize..80,
        ) {
            // Sums that were added and subtracted again leave no trace.
            let earlier = &samples[..before.min(samples.len())];
            let mut found = sums(earlier);
            found.add(sums(&samples));
            found.subtract(sums(earlier));
            let expected = scores(&samples).compute_measures();
            prop_assert_eq!(found.samples, expected.samples);
            prop_assert_eq!(found.positive_rate(), expected.positive_rate);
            prop_assert!(near(found.logloss(), expected.logloss));
            prop_assert!(near(found.normalised_entropy(), expected.normalised_entropy));
            prop_assert!(near(found.calibration_ratio(), expected.calibration));
        }
    }
}
