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

use serde::Serialize;
use zagros_zip::ZipEq;

use crate::BinnedScores;

/// Scores of samples as they are, and with each feature permuted, some times each.
#[derive(Clone, Debug, PartialEq)]
pub struct PermutedScores {
    plain: BinnedScores,
    /// By feature, by repeat.
    permuted: Vec<Vec<BinnedScores>>,
}

/// Mean and deviation over the repeats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of one repeat; `None` of a single one.
    pub deviation: Option<f64>,
}

/// What the measures lose without a feature.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeatureImportance {
    /// Its column.
    pub feature: String,
    /// How far the AUC falls; below zero where it rises. `None` where it is undefined.
    pub auc_loss: Option<Spread>,
    /// How far the logloss rises, nats.
    pub logloss_rise: Option<Spread>,
}

impl PermutedScores {
    /// No samples.
    #[must_use]
    pub fn new(features: usize, repeats: usize) -> Self {
        Self { plain: BinnedScores::default(), permuted: vec![vec![BinnedScores::default(); repeats]; features] }
    }

    /// Adds samples as they are.
    pub fn add_plain(&mut self, labels: &[f32], logits: &[f32]) {
        add(&mut self.plain, labels, logits);
    }

    /// Adds the same samples with a feature permuted, for the given repeat.
    pub fn add_permuted(&mut self, feature: usize, repeat: usize, labels: &[f32], logits: &[f32]) {
        add(&mut self.permuted[feature][repeat], labels, logits);
    }

    /// The importance of each feature, the most important first.
    #[must_use]
    pub fn report(&self, features: &[String]) -> Vec<FeatureImportance> {
        let (auc, logloss) = (self.plain.auc(), self.plain.logloss());
        let of = |(feature, repeats): (&String, &Vec<BinnedScores>)| FeatureImportance {
            feature: feature.clone(),
            auc_loss: spread(repeats.iter().map(|scores| Some(auc? - scores.auc()?))),
            logloss_rise: spread(repeats.iter().map(|scores| Some(scores.logloss()? - logloss?))),
        };
        let mut report: Vec<_> = features.iter().zip_eq(&self.permuted).map(of).collect();
        let merit = |of: &FeatureImportance| {
            let mean = |spread: Option<Spread>| spread.map_or(f64::NEG_INFINITY, |spread| spread.mean);
            (mean(of.auc_loss), mean(of.logloss_rise))
        };
        report.sort_by(|one, other| {
            let (one, other) = (merit(one), merit(other));
            other.0.total_cmp(&one.0).then(other.1.total_cmp(&one.1))
        });
        report
    }
}

fn add(scores: &mut BinnedScores, labels: &[f32], logits: &[f32]) {
    labels.iter().zip_eq(logits).for_each(|(label, logit)| scores.push(*label, *logit));
}

/// `None` if one of the values is undefined.
fn spread(values: impl Iterator<Item = Option<f64>>) -> Option<Spread> {
    let values: Vec<f64> = values.collect::<Option<_>>()?;
    if values.is_empty() {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
    Some(Spread { mean, deviation })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [f32; 4] = [1.0, 1.0, 0.0, 0.0];

    #[test]
    fn the_feature_that_the_scores_come_from_is_first() {
        let mut scores = PermutedScores::new(2, 2);
        scores.add_plain(&LABELS, &[2.0, 1.0, -1.0, -2.0]);
        for repeat in 0..2 {
            scores.add_permuted(0, repeat, &LABELS, &[2.0, 1.0, -1.0, -2.0]);
        }
        scores.add_permuted(1, 0, &LABELS, &[-1.0, -2.0, 2.0, 1.0]);
        scores.add_permuted(1, 1, &LABELS, &[-2.0, 2.0, 1.0, -1.0]);
        let report = scores.report(&["noise".to_owned(), "user".to_owned()]);
        assert_eq!([&report[0].feature, &report[1].feature], ["user", "noise"]);
        let found = report[0].auc_loss.unwrap();
        // AUC 1 falls to 0 and to one half.
        assert!((found.mean - 0.75).abs() < 1e-12 && (found.deviation.unwrap() - 0.125_f64.sqrt()).abs() < 1e-12);
        assert!(report[0].logloss_rise.unwrap().mean > 1.0);
        let none = Some(Spread { mean: 0.0, deviation: Some(0.0) });
        assert_eq!((report[1].auc_loss, report[1].logloss_rise), (none, none));
    }

    #[test]
    fn one_class_has_no_auc_and_one_repeat_no_deviation() {
        let mut scores = PermutedScores::new(1, 1);
        scores.add_plain(&[1.0], &[0.0]);
        scores.add_permuted(0, 0, &[1.0], &[0.0]);
        let report = scores.report(&["a".to_owned()]);
        assert_eq!((report[0].auc_loss, report[0].logloss_rise), (None, Some(Spread { mean: 0.0, deviation: None })));
        assert_eq!(PermutedScores::new(1, 1).report(&["a".to_owned()])[0].logloss_rise, None);
    }
}
