//! The scores of a scored part, from which the measures are computed.

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::{ClickSums, GroupedScores, SlicedScores, measure};

/// Logits by class. 4 bytes per sample, so 100 M test samples take 400 MB. The order of samples is not kept.
///
/// Results depend neither on the order of samples nor on that of merges, to the last bit, because the logits are sorted
/// before they are summed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClickScores {
    pub(crate) positives: Vec<f32>,
    pub(crate) negatives: Vec<f32>,
    is_sorted: bool,
    /// The same samples by group, if groups are wanted.
    pub(crate) grouped: Option<GroupedScores>,
    /// The same samples by their values in some columns, if slices are wanted.
    pub(crate) sliced: Option<SlicedScores>,
}

/// All measures of a scored part. `None` if a measure is undefined (no samples, or one class only).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub samples: u64,
    /// Share of positive samples, 0..1.
    pub positive_rate: Option<f64>,
    /// Area under the ROC curve, ties counting one half.
    pub auc: Option<f64>,
    /// Mean cross-entropy of clicks or classes, nats.
    pub logloss: Option<f64>,
    /// Logloss divided by the entropy of the positive rate. Below 1 the model beats a constant (He et al. 2014).
    pub normalised_entropy: Option<f64>,
    /// Mean predicted probability divided by the share of positives.
    pub calibration: Option<f64>,
    /// Expected calibration error, 0..1: the mean difference between predicted probabilities and frequencies over bins of the score
    /// ([`measure::calibration_error`]); `None` where it is not computed, as for training rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ece: Option<f64>,
    /// Mean AUC within groups, weighted by their samples ([`crate::GroupedScores`]); `None` unless groups are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gauc: Option<f64>,
    /// Groups with both classes. `gauc` is their mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<u64>,
    /// Share of all groups that were measured, chosen by a hash; below 1 if there were too many samples to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_share: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mse: Option<f64>,
    /// Its square root, in the unit of the labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rmse: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mae: Option<f64>,
    /// Mean Poisson deviance of a regression of counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviance: Option<f64>,
    /// Share of samples whose class has the highest probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}

impl ClickScores {
    pub fn new() -> Self {
        Self::default()
    }

    /// No samples. Samples are added with their groups ([`Self::extend`]); at most `capacity` are kept by group.
    pub fn by_group(capacity: usize) -> Self {
        Self { grouped: Some(GroupedScores::new(capacity)), ..Self::default() }
    }

    /// Samples are also added with their values in so many columns ([`Self::sliced_scores_mut`]).
    #[must_use]
    pub fn by_slice(self, columns: usize) -> Self {
        Self { sliced: Some(SlicedScores::new(columns)), ..self }
    }

    pub fn sliced_scores(&self) -> Option<&SlicedScores> {
        self.sliced.as_ref()
    }

    pub fn sliced_scores_mut(&mut self) -> Option<&mut SlicedScores> {
        self.sliced.as_mut()
    }

    /// Logits of positive and of negative samples, ascending.
    pub(crate) fn sorted_logits(&mut self) -> (&[f32], &[f32]) {
        if !self.is_sorted {
            self.positives.sort_unstable_by(f32::total_cmp);
            self.negatives.sort_unstable_by(f32::total_cmp);
            self.is_sorted = true;
        }
        (&self.positives, &self.negatives)
    }

    /// Adds a sample: positive when `label` is above one half.
    #[inline]
    pub fn push(&mut self, label: f32, logit: f32) {
        let class = if label > 0.5 { &mut self.positives } else { &mut self.negatives };
        // −0 becomes +0, so that the two tie.
        class.push(logit + 0.0);
        self.is_sorted = false;
    }

    /// Adds the samples of a batch with the group of each; those without a label (NaN) do not count. Without [`Self::by_group`] the groups
    /// are ignored. Nothing is added when they are not equally many.
    pub fn extend(&mut self, labels: &[f32], logits: &[f32], groups: &[u64]) -> Result<(), String> {
        if labels.len() != logits.len() {
            return Err(describe_lengths("labels", labels.len(), logits.len()));
        }
        if let Some(grouped) = &mut self.grouped {
            if groups.len() != logits.len() {
                return Err(describe_lengths("groups", groups.len(), logits.len()));
            }
            let samples = groups.iter().zip_eq(labels.iter().zip_eq(logits));
            for (group, (label, logit)) in samples.filter(|(_, (label, _))| !label.is_nan()) {
                grouped.push(*group, *label, *logit);
            }
        }
        for (label, logit) in labels.iter().zip_eq(logits).filter(|(label, _)| !label.is_nan()) {
            self.push(*label, *logit);
        }
        Ok(())
    }

    /// Adds the samples of another part. The result equals that of scoring both in one.
    pub fn merge(&mut self, mut other: Self) {
        if let (Some(grouped), Some(others)) = (&mut self.grouped, other.grouped.take()) {
            grouped.merge(others);
        }
        if let (Some(sliced), Some(others)) = (&mut self.sliced, other.sliced.take()) {
            sliced.merge(others);
        }
        self.positives.append(&mut other.positives);
        self.negatives.append(&mut other.negatives);
        self.is_sorted = false;
    }

    /// The measures. O(n log n), in place.
    ///
    /// The normalised entropy is the logloss divided by that of the best constant (He et al. 2014, "Practical Lessons from
    /// Predicting Clicks on Ads at Facebook", section 3). Below 1 the model knows more than the base rate.
    pub fn compute_measures(&mut self) -> Evaluation {
        let grouped = self.grouped.as_mut().map(GroupedScores::gauc);
        let (positives, negatives) = self.sorted_logits();
        let mut sums = ClickSums::of_class(true, positives);
        sums.add(ClickSums::of_class(false, negatives));
        Evaluation {
            samples: sums.samples,
            positive_rate: sums.positive_rate(),
            auc: measure::auc(positives, negatives),
            logloss: sums.logloss(),
            normalised_entropy: sums.normalised_entropy(),
            calibration: sums.calibration_ratio(),
            ece: measure::calibration_error(positives, negatives),
            gauc: grouped.and_then(|grouped| grouped.value),
            groups: grouped.map(|grouped| grouped.groups),
            group_share: grouped.map(|grouped| grouped.share),
            ..Evaluation::default()
        }
    }
}

/// What is wrong with values that are not as many as the logits.
pub(crate) fn describe_lengths(what: &str, found: usize, logits: usize) -> String {
    format!("{found} {what} but {logits} logits: the model must score each sample once")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{auc_by_pairs, quarters, scores};

    fn samples() -> impl Strategy<Value = Vec<(bool, f32)>> {
        prop::collection::vec((any::<bool>(), quarters()), 0..60)
    }

    #[test]
    fn a_batch_of_unequal_lengths_adds_nothing() {
        let mut scores = ClickScores::new();
        let refused = scores.extend(&[1.0, 0.0], &[0.5], &[]).unwrap_err();
        assert_eq!(refused, "2 labels but 1 logits: the model must score each sample once");
        assert_eq!(scores.compute_measures().samples, 0);
    }

    #[test]
    fn positive_and_negative_zero_tie() {
        assert_eq!(scores(&[(true, 0.0), (false, -0.0)]).compute_measures().auc, Some(0.5));
    }

    #[test]
    fn a_constant_at_the_base_rate_has_normalised_entropy_one() {
        let constant = (0.25_f32 / 0.75).ln();
        let mut scores = scores(&[(true, constant), (false, constant), (false, constant), (false, constant)]);
        let report = scores.compute_measures();
        assert!((report.normalised_entropy.unwrap() - 1.0).abs() < 1e-7);
        assert!((report.calibration.unwrap() - 1.0).abs() < 1e-7);
        assert_eq!((report.auc, report.positive_rate), (Some(0.5), Some(0.25)));
    }

    #[test]
    fn no_samples_have_no_measures() {
        assert_eq!(ClickScores::new().compute_measures(), Evaluation::default());
    }

    #[test]
    fn groups_are_measured_beside_the_whole_and_merged_with_it() {
        let mut first = ClickScores::by_group(100);
        first.extend(&[1.0, 0.0], &[0.5, 0.1], &[1, 1]).unwrap();
        let mut second = ClickScores::by_group(100);
        second.extend(&[1.0, 0.0], &[-2.0, -1.0], &[2, 2]).unwrap();
        assert!(second.extend(&[1.0], &[0.0], &[]).is_err());
        first.merge(second);
        let report = first.compute_measures();
        assert_eq!((report.samples, report.gauc, report.auc), (4, Some(0.5), Some(0.5)));
        assert_eq!((report.groups, report.group_share), (Some(2), Some(1.0)));
        let none = ClickScores::by_group(100).compute_measures();
        assert_eq!((none.gauc, none.groups), (None, Some(0)));
    }

    proptest! {
        #[test]
        fn auc_equals_its_definition(samples in samples()) {
            let (fast, slow) = (scores(&samples).compute_measures().auc, auc_by_pairs(&samples));
            prop_assert_eq!(fast.is_some(), slow.is_some());
            prop_assert!(fast.zip(slow).is_none_or(|(fast, slow)| (fast - slow).abs() < 1e-12), "{fast:?} {slow:?}");
        }

        #[test]
        fn merged_parts_equal_the_whole_to_the_last_bit(first in samples(), second in samples()) {
            let mut whole = scores(&[first.clone(), second.clone()].concat());
            let mut merged = scores(&second);
            // A rank may report before its scores are merged.
            let _ = merged.compute_measures();
            merged.merge(scores(&first));
            prop_assert_eq!(whole.compute_measures(), merged.compute_measures());
        }

        #[test]
        fn logloss_is_the_mean_of_minus_log_likelihoods(samples in samples()) {
            let loss = |(label, logit): &(bool, f32)| {
                let click = 1.0 / (1.0 + (-f64::from(*logit)).exp());
                -(if *label { click } else { 1.0 - click }).ln()
            };
            let total: f64 = samples.iter().map(loss).sum();
            match scores(&samples).compute_measures().logloss {
                Some(logloss) => prop_assert!((logloss - total / samples.len() as f64).abs() < 1e-12),
                None => prop_assert!(samples.is_empty()),
            }
        }
    }
}
