//! The first target: what training measures of it step by step.

use std::f64::consts::LN_2;

use zagros_eval::measure::softplus;
use zagros_job::{Job, MissingLabel, Target, TargetKind};
use zagros_zip::ZipEq;

use crate::progress::BatchPredictions;

/// Where the labels and the output of the first target are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MainTarget {
    targets: usize,
    outputs: usize,
    is_click: bool,
    /// Whether the loss of a step is the mean over its samples of this target alone.
    is_alone: bool,
}

impl MainTarget {
    #[cfg(test)]
    pub(crate) const CLICK: Self = Self { targets: 1, outputs: 1, is_click: true, is_alone: true };

    pub(crate) fn new(job: &Job) -> Self {
        let (features, main) = (&job.features, job.features.main_target());
        let counts_once = features.weight.is_none() && main.missing == MissingLabel::Refuse && main.weight == 1.0;
        Self {
            targets: features.targets.len(),
            outputs: features.output_count(),
            is_click: main.is_click(),
            is_alone: features.targets.len() == 1 && counts_once,
        }
    }

    pub(crate) fn sample_count(self, labels: &[f32]) -> usize {
        labels.len() / self.targets.max(1)
    }

    /// Whether each sample is positive; nothing if the target is no click.
    pub(crate) fn clicks(self, labels: &[f32]) -> impl Iterator<Item = bool> {
        let labels = if self.is_click { labels } else { &[] };
        labels.iter().step_by(self.targets).filter(|label| !label.is_nan()).map(|label| *label > 0.5)
    }

    /// What the measures of training take of a step: labels `[samples, targets]`, outputs `[samples, outputs]`, and the mean
    /// loss over all targets.
    pub(crate) fn batch_predictions(self, labels: &[f32], outputs: &[f32], loss: f32) -> BatchPredictions {
        if !self.is_click {
            return BatchPredictions::unmeasured(self.sample_count(labels));
        }
        if self.is_alone {
            return BatchPredictions::new(labels, outputs, loss);
        }
        let both = labels.chunks_exact(self.targets).zip_eq(outputs.chunks_exact(self.outputs));
        let both = both.map(|(labels, outputs)| (labels[0], outputs[0])).filter(|(label, _)| !label.is_nan());
        let (labels, logits): (Vec<f32>, Vec<f32>) = both.unzip();
        let loss = |(label, logit): (&f32, &f32)| softplus(f64::from(if *label > 0.5 { -logit } else { *logit }));
        let sum: f64 = labels.iter().zip_eq(&logits).map(loss).sum();
        BatchPredictions::new(&labels, &logits, (sum / labels.len().max(1) as f64) as f32)
    }
}

/// The loss of a network that gives every class the same chance; infinite with a regression, whose loss can be anything.
pub(crate) fn loss_of_ignorance<'a>(targets: impl IntoIterator<Item = &'a Target>) -> f64 {
    let target_loss = |target: &Target| match &target.kind {
        TargetKind::Click { .. } => target.weight * LN_2,
        TargetKind::Classes { classes } => target.weight * (classes.len() as f64).ln(),
        TargetKind::Regression { .. } => f64::INFINITY,
    };
    targets.into_iter().map(target_loss).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::OverallMeasures;
    use crate::testing::{number_target, small_job};

    fn report(predicted: &BatchPredictions) -> crate::event::Evaluation {
        let mut overall = OverallMeasures::new();
        overall.add(predicted);
        overall.report()
    }

    fn two(first: Target) -> MainTarget {
        let mut job = small_job();
        job.features.targets = vec![first, Target { missing: MissingLabel::Skip, ..Target::from("other") }];
        MainTarget::new(&job)
    }

    #[test]
    fn the_first_of_several_targets_is_measured_alone() {
        let main = two(Target { missing: MissingLabel::Skip, ..Target::from("label") });
        let (labels, outputs) = ([1.0, 0.0, f32::NAN, 1.0, 0.0, 1.0], [2.0, -9.0, 0.0, 0.0, -2.0, 9.0]);
        let found = report(&main.batch_predictions(&labels, &outputs, 77.0));
        let expected = report(&MainTarget::CLICK.batch_predictions(&[1.0, 0.0], &[2.0, -2.0], softplus(-2.0) as f32));
        assert_eq!((found, main.sample_count(&labels)), (expected, 3));
        assert_eq!(main.clicks(&labels).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_regression_has_samples_and_no_measures_of_clicks() {
        let main = two(number_target("label"));
        let found = report(&main.batch_predictions(&[3.0, 1.0, 4.0, 0.0], &[3.5, 0.0, 1.0, 0.0], 0.5));
        assert_eq!((found.samples, found.logloss, found.auc, found.positive_rate), (2, None, None, None));
        assert_eq!(main.clicks(&[3.0, 1.0]).count(), 0);
    }

    #[test]
    fn ignorance_is_the_loss_of_equal_chances() {
        let classes = TargetKind::Classes { classes: ["a", "b", "c"].map(String::from).to_vec() };
        let classes = Target { kind: classes, weight: 0.5, ..Target::from("level") };
        assert_eq!(loss_of_ignorance(&[Target::from("y"), classes.clone()]), LN_2 + 0.5 * 3.0_f64.ln());
        assert_eq!(loss_of_ignorance(&[classes, number_target("x")]), f64::INFINITY);
    }
}
