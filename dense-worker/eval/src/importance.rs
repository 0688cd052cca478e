//! Importance of features by permutation (Breiman 2001, "Random Forests", section 10): what the measures lose when the values of
//! one feature are exchanged between samples, so that they say nothing about their own sample any more.
//!
//! ```text
//! sample   feature a   feature b   score        a permuted   feature b   score
//!   1         x           u         0.9             z            u        0.4
//!   2         y           v         0.1             x            v        0.3      loss of a = AUC − AUC with a permuted
//!   3         z           w         0.3             y            w        0.2
//! ```
//!
//! A model was trained with all features: of two that say the same, each can look unimportant. Memory does not grow with the
//! samples ([`BinnedScores`]).

use std::cmp::Ordering;

use serde::Serialize;
use zagros_zip::ZipEq;

use crate::{BinnedScores, Evaluation, TargetForm, TargetScores};

/// Scores of a target of samples as they are, and with each feature permuted, some times each.
#[derive(Clone, Debug)]
pub struct PermutedScores {
    plain: TargetSums,
    /// By feature, by repeat.
    permuted: Vec<Vec<TargetSums>>,
}

/// What the measures of a target are computed from, in bounded memory.
#[derive(Clone, Debug)]
enum TargetSums {
    Click(BinnedScores),
    Other(TargetScores),
}

impl TargetSums {
    fn new(form: TargetForm) -> Self {
        match form {
            TargetForm::Click => Self::Click(BinnedScores::default()),
            other => Self::Other(TargetScores::without_curves(other)),
        }
    }

    /// Samples of which not each has as many outputs as the target are no samples of it.
    fn add(&mut self, labels: &[f32], outputs: &[f32]) {
        match self {
            Self::Click(scores) => {
                let known = labels.iter().zip_eq(outputs).filter(|(label, _)| !label.is_nan());
                known.for_each(|(label, logit)| scores.push(*label, *logit));
            }
            Self::Other(scores) => drop(scores.extend(labels, outputs, &[])),
        }
    }

    fn measures(&self) -> Evaluation {
        match self {
            Self::Click(scores) => {
                Evaluation { auc: scores.auc(), logloss: scores.sums.logloss(), ..Evaluation::default() }
            }
            // Of several classes, the logloss says the same as the mean of many AUCs.
            Self::Other(scores) => Evaluation { auc: None, ..scores.clone().compute_measures() },
        }
    }
}

/// Mean and deviation over the repeats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RepeatSpread {
    pub mean: f64,
    /// The standard deviation of one repeat; `None` of a single one.
    pub deviation: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeatureImportance {
    pub feature: String,
    /// How far the AUC falls; below zero where it rises. `None` where it is undefined.
    pub auc_loss: Option<RepeatSpread>,
    /// How far the logloss rises, nats.
    pub logloss_rise: Option<RepeatSpread>,
    /// Of a regression: how far the mean squared error rises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mse_rise: Option<RepeatSpread>,
    /// Of counts: how far the mean Poisson deviance rises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviance_rise: Option<RepeatSpread>,
}

impl PermutedScores {
    pub fn new(form: TargetForm, features: usize, repeats: usize) -> Self {
        let empty = TargetSums::new(form);
        Self { plain: empty.clone(), permuted: vec![vec![empty; repeats]; features] }
    }

    /// Adds samples as they are: a label and the outputs of each. A label that is NaN is not there.
    pub fn add_plain(&mut self, labels: &[f32], outputs: &[f32]) {
        self.plain.add(labels, outputs);
    }

    /// Adds the same samples with a feature permuted, for the given repeat.
    pub fn add_permuted(&mut self, feature: usize, repeat: usize, labels: &[f32], outputs: &[f32]) {
        self.permuted[feature][repeat].add(labels, outputs);
    }

    /// The importance of each feature, the most important first.
    pub fn rank_features(&self, features: &[String]) -> Vec<FeatureImportance> {
        let plain = self.plain.measures();
        let feature_importance = |(feature, repeats): (&String, &Vec<TargetSums>)| {
            let permuted: Vec<_> = repeats.iter().map(TargetSums::measures).collect();
            let rise = |of: fn(&Evaluation) -> Option<f64>| {
                spread(permuted.iter().map(|measures| Some(of(measures)? - of(&plain)?)))
            };
            FeatureImportance {
                feature: feature.clone(),
                auc_loss: spread(permuted.iter().map(|measures| Some(plain.auc? - measures.auc?))),
                logloss_rise: rise(|of| of.logloss),
                mse_rise: rise(|of| of.mse),
                deviance_rise: rise(|of| of.deviance),
            }
        };
        let mut report: Vec<_> = features.iter().zip_eq(&self.permuted).map(feature_importance).collect();
        report.sort_by(|one, other| {
            let (one, other) = (ranking_key(one), ranking_key(other));
            other
                .iter()
                .zip_eq(one)
                .map(|(other, one)| other.total_cmp(&one))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        report
    }
}

/// By which features are ordered: the measure that a target has counts first.
fn ranking_key(of: &FeatureImportance) -> [f64; 4] {
    let mean = |spread: Option<RepeatSpread>| spread.map_or(f64::NEG_INFINITY, |spread| spread.mean);
    [of.auc_loss, of.logloss_rise, of.deviance_rise, of.mse_rise].map(mean)
}

/// `None` if one of the values is undefined.
fn spread(values: impl Iterator<Item = Option<f64>>) -> Option<RepeatSpread> {
    let values: Vec<f64> = values.collect::<Option<_>>()?;
    if values.is_empty() {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
    Some(RepeatSpread { mean, deviation })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [f32; 4] = [1.0, 1.0, 0.0, 0.0];

    #[test]
    fn the_feature_that_the_scores_come_from_is_first() {
        let mut scores = PermutedScores::new(TargetForm::Click, 2, 2);
        scores.add_plain(&LABELS, &[2.0, 1.0, -1.0, -2.0]);
        for repeat in 0..2 {
            scores.add_permuted(0, repeat, &LABELS, &[2.0, 1.0, -1.0, -2.0]);
        }
        scores.add_permuted(1, 0, &LABELS, &[-1.0, -2.0, 2.0, 1.0]);
        scores.add_permuted(1, 1, &LABELS, &[-2.0, 2.0, 1.0, -1.0]);
        let report = scores.rank_features(&["noise".to_owned(), "user".to_owned()]);
        assert_eq!([&report[0].feature, &report[1].feature], ["user", "noise"]);
        let found = report[0].auc_loss.unwrap();
        // AUC 1 falls to 0 and to one half.
        assert!((found.mean - 0.75).abs() < 1e-12 && (found.deviation.unwrap() - 0.125_f64.sqrt()).abs() < 1e-12);
        assert!(report[0].logloss_rise.unwrap().mean > 1.0);
        let none = Some(RepeatSpread { mean: 0.0, deviation: Some(0.0) });
        assert_eq!((report[1].auc_loss, report[1].logloss_rise), (none, none));
    }

    #[test]
    fn one_class_has_no_auc_and_one_repeat_no_deviation() {
        let mut scores = PermutedScores::new(TargetForm::Click, 1, 1);
        scores.add_plain(&[1.0], &[0.0]);
        scores.add_permuted(0, 0, &[1.0], &[0.0]);
        let report = scores.rank_features(&["a".to_owned()]);
        let spread = RepeatSpread { mean: 0.0, deviation: None };
        assert_eq!((report[0].auc_loss, report[0].logloss_rise), (None, Some(spread)));
        assert_eq!(PermutedScores::new(TargetForm::Click, 1, 1).rank_features(&["a".to_owned()])[0].logloss_rise, None);
    }

    #[test]
    fn other_targets_have_their_own_measures_and_labels_that_are_not_there_do_not_count() {
        let names = ["noise".to_owned(), "size".to_owned()];
        let mut numbers = PermutedScores::new(TargetForm::Regression, 2, 1);
        let labels = [1.0, 2.0, f32::NAN];
        numbers.add_plain(&labels, &[1.0, 2.0, 9.0]);
        numbers.add_permuted(0, 0, &labels, &[1.0, 2.0, 9.0]);
        numbers.add_permuted(1, 0, &labels, &[2.0, 1.0, 9.0]);
        let report = numbers.rank_features(&names);
        assert_eq!((report[0].feature.as_str(), report[0].mse_rise.unwrap().mean), ("size", 1.0));
        assert_eq!((report[1].mse_rise.unwrap().mean, report[1].auc_loss, report[1].logloss_rise), (0.0, None, None));
        let mut classes = PermutedScores::new(TargetForm::Classes(2), 2, 1);
        let sure = [5.0, 0.0, 0.0, 5.0];
        classes.add_plain(&[0.0, 1.0], &sure);
        classes.add_permuted(0, 0, &[0.0, 1.0], &sure);
        classes.add_permuted(1, 0, &[0.0, 1.0], &[0.0, 5.0, 5.0, 0.0]);
        let report = classes.rank_features(&names);
        assert!(report[0].feature == "size" && report[0].logloss_rise.unwrap().mean > 4.0, "{report:?}");
        assert_eq!(report[0].mse_rise, None);
    }
}
