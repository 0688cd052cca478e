//! Measures of a target of any kind, and what its outputs predict.
//!
//! | target | outputs `o` | prediction | measures |
//! |---|---|---|---|
//! | click | a logit | 1 / (1 + e^−o) | AUC, GAUC, logloss, normalised entropy, calibration |
//! | regression | a number | o | mean squared and absolute error |
//! | counts | a logarithm | e^o | the same, Poisson deviance, calibration |
//! | classes | a logit each | softmax of all | accuracy, logloss, mean AUC of one against the others |
//!
//! A sample whose label is NaN has none, and is not measured.

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::class_logits::ClassLogits;
use crate::scores::describe_lengths;
use crate::{BinnedScores, CalibrationMethod, Calibrator, ClickScores, Evaluation, measure};

/// With more classes, the AUC of each would take too much memory.
const MOST_CURVES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetForm {
    /// 0 or 1.
    Click,
    Regression,
    /// Numbers from 0, whose logarithm is predicted.
    Counts,
    /// Indices of so many classes.
    Classes(usize),
}

impl TargetForm {
    pub fn output_count(self) -> usize {
        if let Self::Classes(classes) = self { classes } else { 1 }
    }

    /// Adds what the outputs of a sample predict, as many values as outputs.
    pub fn predict(self, outputs: &[f32], predictions: &mut Vec<f64>) {
        let outputs = outputs.iter().map(|output| f64::from(*output));
        match self {
            Self::Click => predictions.extend(outputs.map(measure::sigmoid)),
            Self::Regression => predictions.extend(outputs),
            Self::Counts => predictions.extend(outputs.map(f64::exp)),
            Self::Classes(_) => {
                let most = outputs.clone().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = outputs.clone().map(|output| (output - most).exp()).sum();
                predictions.extend(outputs.map(|output| (output - most).exp() / sum));
            }
        }
    }
}

/// The scored samples of a target, from which its measures are computed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TargetScores {
    /// Of clicks, exact.
    Click(ClickScores),
    Errors(ErrorSums),
    Classes(ClassScores),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorSums {
    is_counts: bool,
    samples: u64,
    labels: f64,
    predicted: f64,
    squared: f64,
    absolute: f64,
    deviance: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassScores {
    samples: u64,
    hits: u64,
    loss: f64,
    /// Each class against the others, by the logit of its probability; none if there are too many classes.
    curves: Vec<BinnedScores>,
    /// The outputs, to which a temperature is fitted; none unless calibration is wanted.
    logits: Option<ClassLogits>,
    /// Probabilities of the sample that is added.
    #[serde(skip)]
    probabilities: Vec<f64>,
}

impl TargetScores {
    pub fn new(form: TargetForm) -> Self {
        match form {
            TargetForm::Click => Self::Click(ClickScores::new()),
            TargetForm::Regression => Self::Errors(ErrorSums::default()),
            TargetForm::Counts => Self::Errors(ErrorSums { is_counts: true, ..ErrorSums::default() }),
            TargetForm::Classes(classes) => {
                let curves = if classes > MOST_CURVES { 0 } else { classes };
                Self::Classes(ClassScores { curves: vec![BinnedScores::default(); curves], ..ClassScores::default() })
            }
        }
    }

    /// No samples. Outputs of classes are kept, so that they can be calibrated as those of clicks.
    pub fn to_calibrate(form: TargetForm) -> Self {
        match (Self::new(form), form) {
            (Self::Classes(scores), TargetForm::Classes(classes)) => {
                Self::Classes(ClassScores { logits: Some(ClassLogits::new(classes)), ..scores })
            }
            (other, _) => other,
        }
    }

    /// Fits a calibrator to samples that were not trained on: to classes a temperature, whatever the method. `None` of numbers, without
    /// samples of two classes, or with an output that is not finite.
    pub fn fit_calibrator(&mut self, method: CalibrationMethod) -> Option<Calibrator> {
        match self {
            Self::Click(scores) => Calibrator::fit(method, scores),
            Self::Classes(scores) => {
                let temperature = scores.logits.as_ref()?.fit_temperature()?;
                Some(Calibrator::Temperature { temperature })
            }
            Self::Errors(_) => None,
        }
    }

    /// Measures of the same samples with calibrated outputs, without groups and slices.
    pub fn measure_calibrated(&self, calibrator: &Calibrator) -> Option<Evaluation> {
        match self {
            Self::Click(scores) => Some(scores.apply_calibrator(calibrator).compute_measures()),
            Self::Classes(scores) => scores.measure_calibrated(calibrator),
            Self::Errors(_) => None,
        }
    }

    /// No samples, and of classes no AUC: it takes memory for each.
    pub fn without_curves(form: TargetForm) -> Self {
        match form {
            TargetForm::Classes(_) => Self::Classes(ClassScores::default()),
            other => Self::new(other),
        }
    }

    /// Adds samples: a label and the outputs of each. `groups` are those of clicks by group.
    /// Nothing is added when they are not equally many.
    pub fn extend(&mut self, labels: &[f32], outputs: &[f32], groups: &[u64]) -> Result<(), String> {
        let each =
            if let Self::Classes(_) = self { outputs.len().checked_div(labels.len()).unwrap_or(1).max(1) } else { 1 };
        if labels.len() * each != outputs.len() {
            return Err(describe_lengths("labels", labels.len(), outputs.len()));
        }
        match self {
            Self::Click(scores) => return scores.extend(labels, outputs, groups),
            Self::Errors(sums) => labels.iter().zip_eq(outputs).for_each(|(label, output)| sums.push(*label, *output)),
            Self::Classes(scores) => {
                let samples = labels.iter().zip_eq(outputs.chunks_exact(each));
                samples.for_each(|(label, outputs)| scores.push(*label, outputs));
            }
        }
        Ok(())
    }

    /// Adds the samples of another part. A part of another kind is ignored.
    pub fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Click(scores), Self::Click(other)) => scores.merge(other),
            (Self::Errors(sums), Self::Errors(other)) => sums.merge(other),
            (Self::Classes(scores), Self::Classes(other)) => scores.merge(other),
            _ => {}
        }
    }

    pub fn compute_measures(&mut self) -> Evaluation {
        match self {
            Self::Click(scores) => scores.compute_measures(),
            Self::Errors(sums) => sums.compute_measures(),
            Self::Classes(scores) => scores.compute_measures(),
        }
    }
}

impl ErrorSums {
    fn push(&mut self, label: f32, output: f32) {
        if label.is_nan() {
            return;
        }
        let (label, output) = (f64::from(label), f64::from(output));
        let prediction = if self.is_counts { output.exp() } else { output };
        let error = prediction - label;
        self.samples += 1;
        self.labels += label;
        self.predicted += prediction;
        self.squared += error * error;
        self.absolute += error.abs();
        if self.is_counts {
            let surprise = if label > 0.0 { label * (label.ln() - output) } else { 0.0 };
            self.deviance += 2.0 * (surprise + error);
        }
    }

    fn merge(&mut self, other: Self) {
        self.samples += other.samples;
        self.labels += other.labels;
        self.predicted += other.predicted;
        self.squared += other.squared;
        self.absolute += other.absolute;
        self.deviance += other.deviance;
    }

    fn compute_measures(&self) -> Evaluation {
        let mean = |sum: f64| (self.samples > 0).then(|| sum / self.samples as f64);
        Evaluation {
            samples: self.samples,
            mse: mean(self.squared),
            rmse: mean(self.squared).map(f64::sqrt),
            mae: mean(self.absolute),
            deviance: mean(self.deviance).filter(|_| self.is_counts),
            calibration: (self.is_counts && self.labels > 0.0).then(|| self.predicted / self.labels),
            ..Evaluation::default()
        }
    }
}

impl ClassScores {
    /// Adds a sample, unless its label is missing or no class.
    fn push(&mut self, label: f32, outputs: &[f32]) {
        if label.is_nan() || label as usize >= outputs.len() {
            return;
        }
        let class = label as usize;
        self.probabilities.clear();
        TargetForm::Classes(outputs.len()).predict(outputs, &mut self.probabilities);
        let most = outputs.iter().fold(f32::NEG_INFINITY, |most, output| most.max(*output));
        let sum: f64 = outputs.iter().map(|output| f64::from(output - most).exp()).sum();
        self.samples += 1;
        self.hits += u64::from(outputs.iter().position(|output| *output == most) == Some(class));
        self.loss += sum.ln() - f64::from(outputs[class] - most);
        for (index, curve) in self.curves.iter_mut().enumerate() {
            let probability = self.probabilities[index];
            let logit = (probability / (1.0 - probability)).ln() as f32;
            curve.push(f32::from(u8::from(index == class)), logit);
        }
        self.logits.iter_mut().for_each(|logits| logits.push(class, outputs));
    }

    fn measure_calibrated(&self, calibrator: &Calibrator) -> Option<Evaluation> {
        let curves = vec![BinnedScores::default(); self.curves.len()];
        let (mut scores, mut calibrated) = (Self { curves, ..Self::default() }, Vec::new());
        for (class, outputs) in self.logits.as_ref()?.samples() {
            calibrated.clear();
            calibrated.extend(outputs.iter().map(|output| calibrator.apply(*output)));
            scores.push(class as f32, &calibrated);
        }
        Some(scores.compute_measures())
    }

    fn merge(&mut self, other: Self) {
        self.samples += other.samples;
        self.hits += other.hits;
        self.loss += other.loss;
        if self.curves.len() == other.curves.len() {
            self.curves.iter_mut().zip_eq(other.curves).for_each(|(curve, other)| curve.merge(other));
        }
        if let (Some(logits), Some(other)) = (&mut self.logits, other.logits) {
            logits.merge(other);
        }
    }

    fn compute_measures(&self) -> Evaluation {
        let mean = |sum: f64| (self.samples > 0).then(|| sum / self.samples as f64);
        let areas: Vec<f64> = self.curves.iter().filter_map(BinnedScores::auc).collect();
        Evaluation {
            samples: self.samples,
            auc: (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64),
            logloss: mean(self.loss),
            accuracy: mean(self.hits as f64),
            ..Evaluation::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target_scores(form: TargetForm, samples: &[(f32, Vec<f32>)]) -> TargetScores {
        let mut scores = TargetScores::to_calibrate(form);
        for (label, outputs) in samples {
            scores.extend(&[*label], outputs, &[]).unwrap();
        }
        scores
    }

    fn near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-6)
    }

    #[test]
    fn errors_of_numbers_are_means() {
        let samples = [(1.0, vec![3.0]), (f32::NAN, vec![9.0]), (-1.0, vec![-2.0])];
        let report = target_scores(TargetForm::Regression, &samples).compute_measures();
        assert_eq!((report.samples, report.mse, report.mae), (2, Some(2.5), Some(1.5)));
        assert!(near(report.rmse, 2.5_f64.sqrt()));
        assert_eq!((report.auc, report.logloss, report.deviance, report.calibration), (None, None, None, None));
        assert_eq!(target_scores(TargetForm::Regression, &[]).compute_measures(), Evaluation::default());
    }

    #[test]
    fn counts_have_the_poisson_deviance() {
        let two = 2.0_f32.ln();
        let report = target_scores(TargetForm::Counts, &[(0.0, vec![two]), (3.0, vec![two])]).compute_measures();
        // 2 · (0 + 2) and 2 · (3 · ln(3/2) − 1).
        assert!(near(report.deviance, f64::midpoint(4.0, 2.0 * (3.0 * 1.5_f64.ln() - 1.0))), "{report:?}");
        assert!(near(report.mse, 2.5) && near(report.calibration, 4.0 / 3.0), "{report:?}");
        let exact = target_scores(TargetForm::Counts, &[(2.0, vec![two])]).compute_measures();
        assert!(near(exact.deviance, 0.0));
    }

    #[test]
    fn classes_are_counted_and_ranked() {
        let samples = [(0.0, vec![2.0, 1.0, 0.0]), (1.0, vec![0.0, 3.0, 1.0]), (2.0, vec![0.0, 1.0, 0.5])];
        let report = target_scores(TargetForm::Classes(3), &samples).compute_measures();
        assert!(near(report.accuracy, 2.0 / 3.0), "{report:?}");
        let loss = |outputs: [f64; 3], class: usize| outputs.map(f64::exp).iter().sum::<f64>().ln() - outputs[class];
        let sum = loss([2.0, 1.0, 0.0], 0) + loss([0.0, 3.0, 1.0], 1) + loss([0.0, 1.0, 0.5], 2);
        assert!(near(report.logloss, sum / 3.0), "{report:?}");
        assert!(near(report.auc, 1.0), "{report:?}");
        assert!(TargetScores::new(TargetForm::Classes(3)).extend(&[1.0, 0.0], &[0.5; 5], &[]).is_err());
    }

    #[test]
    fn calibrated_classes_are_measured_as_outputs_divided_by_the_temperature() {
        let samples = [(0.0, vec![2.0, 1.0, 0.0]), (1.0, vec![0.0, 3.0, 1.0]), (2.0, vec![0.0, 1.0, 0.5])];
        let mut scores = target_scores(TargetForm::Classes(3), &samples);
        let calibrator = scores.fit_calibrator(CalibrationMethod::Isotonic).unwrap();
        let divide = |outputs: &[f32]| outputs.iter().map(|output| calibrator.apply(*output)).collect();
        let divided = samples.each_ref().map(|(label, outputs)| (*label, divide(outputs)));
        let (before, after) = (scores.compute_measures(), scores.measure_calibrated(&calibrator).unwrap());
        assert_eq!(after, target_scores(TargetForm::Classes(3), &divided).compute_measures());
        assert!(after.logloss < before.logloss && after.accuracy == before.accuracy, "{before:?} {after:?}");
        // Numbers have none, and neither have classes whose outputs are not kept.
        let mut numbers = target_scores(TargetForm::Regression, &[(1.0, vec![0.5])]);
        assert_eq!(numbers.fit_calibrator(CalibrationMethod::Isotonic), None);
        assert_eq!(TargetScores::new(TargetForm::Classes(3)).fit_calibrator(CalibrationMethod::Temperature), None);
    }

    #[test]
    fn outputs_become_predictions() {
        let predict = |form: TargetForm, outputs: &[f32]| {
            let mut found = Vec::new();
            form.predict(outputs, &mut found);
            found
        };
        assert_eq!(predict(TargetForm::Click, &[0.0]), [0.5]);
        assert_eq!(predict(TargetForm::Regression, &[-2.5]), [-2.5]);
        assert_eq!(predict(TargetForm::Counts, &[0.0]), [1.0]);
        assert_eq!(predict(TargetForm::Classes(2), &[1000.0, 1000.0]), [0.5, 0.5]);
    }

    proptest! {
        #[test]
        fn merged_parts_equal_the_whole(
            samples in prop::collection::vec((0_u8..3, prop::array::uniform3(-8_f32..8.0)), 0..40),
            cut in 0_usize..40, kind in 0_usize..4,
        ) {
            let form = [TargetForm::Click, TargetForm::Regression, TargetForm::Counts, TargetForm::Classes(3)][kind];
            let sample = |(label, outputs): (u8, [f32; 3])| (f32::from(label), outputs[..form.output_count()].to_vec());
            let samples: Vec<(f32, Vec<f32>)> = samples.into_iter().map(sample).collect();
            let (first, second) = samples.split_at(cut.min(samples.len()));
            let mut merged = target_scores(form, first);
            merged.merge(target_scores(form, second));
            let (found, expected) = (merged.compute_measures(), target_scores(form, &samples).compute_measures());
            prop_assert_eq!((found.samples, found.auc), (expected.samples, expected.auc));
            for (found, expected) in [(found.logloss, expected.logloss), (found.mse, expected.mse)] {
                prop_assert!(found.is_some() == expected.is_some() && expected.is_none_or(|value| near(found, value)));
            }
            let mut whole = target_scores(form, &samples);
            let temperature = CalibrationMethod::Temperature;
            prop_assert_eq!(merged.fit_calibrator(temperature), whole.fit_calibrator(temperature));
        }
    }
}
