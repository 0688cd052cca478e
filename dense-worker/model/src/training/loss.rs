//! The loss of samples over all targets, and its slope at each output of the network.
//!
//! The loss of a sample is the sum over its targets, each times the target's weight. A target whose label is missing (NaN)
//! adds nothing. The loss of a batch is the mean over its samples by their weights, also over those without a label of some
//! target: so the shares of workers add up (invariant RK-1), whatever labels each of them has.
//!
//! A target that is given another one (ESMM, "Entire Space Multi-Task Model", Ma et al. 2018) has the output b of its own
//! tower, and a is that of the target it is given. Its chance over all samples is p = σ(a)·σ(b), whose logit is
//! z = −ln(e^−a + e^−b + e^−(a+b)): what is learned, measured and predicted is z.

use zagros_job::{MissingLabel, RegressionLoss, Target, TargetKind};
use zagros_network::OutputLoss;
use zagros_zip::ZipEq;

#[derive(Clone, Debug)]
pub struct TargetLosses {
    targets: Vec<TargetLoss>,
    outputs: usize,
}

#[derive(Clone, Debug)]
struct TargetLoss {
    kind: LossKind,
    /// Its first output.
    first: usize,
    weight: f32,
    may_be_missing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LossKind {
    Click,
    /// A click that needs another one, whose output is this.
    ClickGiven(usize),
    Squared,
    Huber(f32),
    Poisson,
    Classes(usize),
}

/// Samples with their labels, all row-major.
#[derive(Clone, Copy, Debug)]
pub struct LabelledSamples<'a> {
    /// `[batch, numeric]`.
    pub numeric: &'a [f32],
    /// `[batch, ΣD]`.
    pub embeddings: &'a [f32],
    /// `[batch, targets]`; NaN where a label is missing.
    pub labels: &'a [f32],
    /// How much each sample counts, `[batch]`; empty if each counts once.
    pub weights: &'a [f32],
}

impl<'a> LabelledSamples<'a> {
    pub fn unweighted(numeric: &'a [f32], embeddings: &'a [f32], labels: &'a [f32]) -> Self {
        Self { numeric, embeddings, labels, weights: &[] }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanLoss<'a> {
    pub(crate) losses: &'a TargetLosses,
    /// Factor of a sample of weight 1 in the mean; 0 if all samples together have no weight.
    pub(crate) factor: f32,
}

impl TargetLosses {
    pub fn new(targets: &[Target]) -> Self {
        let mut outputs = 0;
        let mut losses: Vec<TargetLoss> = Vec::with_capacity(targets.len());
        for target in targets {
            let kind = match &target.kind {
                TargetKind::Click { given: None, .. } => LossKind::Click,
                TargetKind::Click { given: Some(index), .. } => LossKind::ClickGiven(losses[*index].first),
                TargetKind::Regression { loss: RegressionLoss::Mse } => LossKind::Squared,
                TargetKind::Regression { loss: RegressionLoss::Huber { delta } } => LossKind::Huber(*delta as f32),
                TargetKind::Regression { loss: RegressionLoss::Poisson } => LossKind::Poisson,
                TargetKind::Classes { classes } => LossKind::Classes(classes.len()),
            };
            let may_be_missing = target.missing == MissingLabel::Skip;
            losses.push(TargetLoss { kind, first: outputs, weight: target.weight as f32, may_be_missing });
            outputs += target.output_count();
        }
        Self { targets: losses, outputs }
    }

    fn finish_row(&self, outputs: &mut [f32]) {
        for target in &self.targets {
            if let LossKind::ClickGiven(given) = target.kind {
                // A target that others are given is never given one itself, so its output is still its own.
                outputs[target.first] = joint(outputs[given], outputs[target.first]).0;
            }
        }
    }
}

impl OutputLoss for TargetLosses {
    fn output_count(&self) -> usize {
        self.outputs
    }

    fn target_count(&self) -> usize {
        self.targets.len()
    }

    /// Sum of the losses of samples, each times its weight. Writes `factor` times its slope at each output. The outputs of a
    /// target that is given another one become its logits. `outputs` and `slopes` are `[samples, outputs]`, `labels` is
    /// `[samples, targets]`, and `weights` is `[samples]` or empty.
    fn sum_losses(
        &self,
        outputs: &mut [f32],
        (labels, weights): (&[f32], &[f32]),
        factor: f32,
        slopes: &mut [f32],
    ) -> f64 {
        if let [TargetLoss { kind: LossKind::Click, weight: 1.0, may_be_missing: false, .. }] = self.targets[..]
            && weights.is_empty()
        {
            return cross_entropy(outputs, labels, factor, slopes);
        }
        let mut sum = 0.0;
        slopes.fill(0.0);
        let rows = outputs.chunks_exact_mut(self.outputs).zip_eq(slopes.chunks_exact_mut(self.outputs));
        for (row, ((outputs, slopes), labels)) in rows.zip_eq(labels.chunks_exact(self.targets.len())).enumerate() {
            let weight = weights.get(row).copied().unwrap_or(1.0);
            for (target, label) in self.targets.iter().zip_eq(labels) {
                // A weight of 0 times a loss that is infinite would be no number.
                if !label.is_nan() && weight > 0.0 {
                    let weight = weight * target.weight;
                    sum += f64::from(weight) * target.loss(*label, outputs, weight * factor, slopes);
                }
            }
            self.finish_row(outputs);
        }
        sum
    }

    /// Turns the outputs of the network into those that are measured and predicted, `[samples, outputs]`.
    fn finish_outputs(&self, outputs: &mut [f32]) {
        if self.targets.iter().any(|target| matches!(target.kind, LossKind::ClickGiven(_))) {
            outputs.chunks_exact_mut(self.outputs).for_each(|row| self.finish_row(row));
        }
    }
}

impl TargetLoss {
    /// The loss of a sample. Adds `factor` times its slopes to those of the sample's outputs.
    #[inline]
    fn loss(&self, label: f32, outputs: &[f32], factor: f32, slopes: &mut [f32]) -> f64 {
        let first = self.first;
        let (output, y) = (outputs[first], label);
        match self.kind {
            LossKind::Click => {
                let (loss, slope) = click(output, y);
                slopes[first] += factor * slope;
                loss
            }
            LossKind::ClickGiven(given) => {
                let (logit, at_given, at_own) = joint(outputs[given], output);
                let (loss, slope) = click(logit, y);
                slopes[given] += factor * slope * at_given;
                slopes[first] += factor * slope * at_own;
                loss
            }
            LossKind::Squared => {
                let error = output - y;
                slopes[first] += factor * 2.0 * error;
                f64::from(error) * f64::from(error)
            }
            LossKind::Huber(delta) => {
                let error = output - y;
                slopes[first] += factor * error.clamp(-delta, delta);
                let (size, delta) = (f64::from(error.abs()), f64::from(delta));
                if size <= delta { size * size / 2.0 } else { delta * (size - delta / 2.0) }
            }
            LossKind::Poisson => {
                let expected = output.exp();
                slopes[first] += factor * (expected - y);
                f64::from(expected) - f64::from(y) * f64::from(output)
            }
            LossKind::Classes(classes) => {
                let outputs = &outputs[first..first + classes];
                let most = outputs.iter().fold(f32::NEG_INFINITY, |most, output| most.max(*output));
                let sum: f32 = outputs.iter().map(|output| (output - most).exp()).sum();
                for (class, (output, slope)) in outputs.iter().zip_eq(&mut slopes[first..first + classes]).enumerate() {
                    let is_label = f32::from(u8::from(class == y as usize));
                    *slope += factor * ((output - most).exp() / sum - is_label);
                }
                let own = outputs.get(y as usize).copied().unwrap_or(f32::NAN);
                f64::from(sum).ln() - f64::from(own - most)
            }
        }
    }
}

/// How much so many samples count together, and the factor of a sample of weight 1 in their mean loss: 0 if they have no
/// weight.
pub fn mean_over(weights: &[f32], samples: usize) -> (f64, f32) {
    let each = || weights.iter().map(|weight| f64::from(*weight)).sum();
    let weight = if weights.is_empty() { samples as f64 } else { each() };
    (weight, if weight > 0.0 { 1.0 / weight as f32 } else { 0.0 })
}

/// Binary cross-entropy of a logit, and its slope.
#[inline]
fn click(z: f32, y: f32) -> (f64, f32) {
    let small = (-z.abs()).exp();
    // The sigmoid in the form that does not overflow.
    let chance = if z >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) };
    (f64::from(z.max(0.0) - y * z) + f64::from(small.ln_1p()), chance - y)
}

/// The logit of σ(a)·σ(b), and its slopes at a and b.
#[inline]
fn joint(a: f32, b: f32) -> (f32, f32, f32) {
    let powers = [-a, -b, -a - b];
    let most = powers.iter().fold(f32::NEG_INFINITY, |most, power| most.max(*power));
    let [of_a, of_b, of_both] = powers.map(|power| (power - most).exp());
    let sum = of_a + of_b + of_both;
    (-(most + sum.ln()), (of_a + of_both) / sum, (of_b + of_both) / sum)
}

/// Binary cross-entropy of logits: writes `factor` times the slope at each, and returns the sum of the losses:
/// max(z, 0) − y·z + log(1 + e^−|z|), which never overflows.
fn cross_entropy(logits: &[f32], labels: &[f32], factor: f32, slopes: &mut [f32]) -> f64 {
    let mut sum = 0.0;
    for (index, (z, y)) in logits.iter().zip_eq(labels).enumerate() {
        let (loss, slope) = click(*z, *y);
        sum += loss;
        slopes[index] = slope * factor;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(kind: TargetKind) -> Target {
        Target { kind, ..Target::from("y") }
    }

    fn regression(loss: RegressionLoss) -> Target {
        target(TargetKind::Regression { loss })
    }

    fn click_given(given: Option<usize>) -> Target {
        target(TargetKind::Click { positive: vec!["1".into()], negative: vec!["0".into()], given })
    }

    fn classes(count: usize) -> Target {
        target(TargetKind::Classes { classes: (0..count).map(|class| class.to_string()).collect() })
    }

    /// All kinds: outputs 0 and 1 are a click and a click given it, 2 to 4 numbers, 5 to 7 classes.
    fn all() -> TargetLosses {
        let half = Target { weight: 0.5, missing: MissingLabel::Skip, ..regression(RegressionLoss::Mse) };
        let huber = regression(RegressionLoss::Huber { delta: 1.5 });
        let poisson = regression(RegressionLoss::Poisson);
        TargetLosses::new(&[click_given(None), click_given(Some(0)), half, huber, poisson, classes(3)])
    }

    /// The definitions, in f64.
    fn defined(outputs: [f64; 8], labels: [f64; 6]) -> f64 {
        let chance = |z: f64| 1.0 / (1.0 + (-z).exp());
        let entropy = |p: f64, y: f64| -(y * p.ln() + (1.0 - y) * (1.0 - p).ln());
        let first = entropy(chance(outputs[0]), labels[0]);
        let second = entropy(chance(outputs[0]) * chance(outputs[1]), labels[1]);
        let squared = if labels[2].is_nan() { 0.0 } else { (outputs[2] - labels[2]).powi(2) / 2.0 };
        let error = (outputs[3] - labels[3]).abs();
        let huber = if error <= 1.5 { error * error / 2.0 } else { 1.5 * (error - 0.75) };
        let poisson = outputs[4].exp() - labels[4] * outputs[4];
        let softmax: f64 = outputs[5..].iter().map(|output| output.exp()).sum::<f64>().ln();
        first + second + squared + huber + poisson + softmax - outputs[5 + labels[5] as usize]
    }

    proptest! {
        #[test]
        fn losses_and_slopes_are_those_of_the_definitions(
            outputs in prop::array::uniform8(-3_f32..3.0), clicks in prop::array::uniform2(0_u8..2),
            numbers in prop::array::uniform2(-4_f32..4.0), count in 0_u8..5, class in 0_u8..3, missing: bool,
            weight in 0.1_f32..4.0,
        ) {
            let number = if missing { f32::NAN } else { numbers[0] };
            let [click, second] = clicks.map(f32::from);
            let labels = [click, second, number, numbers[1], f32::from(count), f32::from(class)];
            let (mut found, mut slopes) = (outputs, [9.0; 8]);
            let sum = all().sum_losses(&mut found, (&labels, &[weight]), 0.25, &mut slopes);
            let (wide, labels) = (outputs.map(f64::from), labels.map(f64::from));
            let loss = |outputs| f64::from(weight) * defined(outputs, labels);
            prop_assert!((sum - loss(wide)).abs() < 1e-4 * (1.0 + sum.abs()), "{} {}", sum, loss(wide));
            for (index, slope) in slopes.into_iter().enumerate() {
                let (mut above, mut below) = (wide, wide);
                above[index] += 1e-5;
                below[index] -= 1e-5;
                let expected = 0.25 * (loss(above) - loss(below)) / 2e-5;
                prop_assert!((f64::from(slope) - expected).abs() < 1e-3, "{index}: {slope} {expected}");
            }
            let mut finished = outputs;
            all().finish_outputs(&mut finished);
            prop_assert_eq!(finished, found);
            let joint = 1.0 / (1.0 + (-wide[0]).exp()) / (1.0 + (-wide[1]).exp());
            prop_assert!((f64::from(found[1]) - (joint / (1.0 - joint)).ln()).abs() < 1e-4);
        }

        /// A sample of weight 2 counts as two, and one of weight 0 not at all.
        #[test]
        fn weights_count_samples(
            samples in prop::collection::vec((-3_f32..3.0, 0_u8..2, 0_u8..4), 1..20),
        ) {
            let losses = TargetLosses::new(&[click_given(None)]);
            let (mut outputs, labels): (Vec<f32>, Vec<f32>) = samples.iter().map(|sample| (sample.0, f32::from(sample.1))).unzip();
            let weights: Vec<f32> = samples.iter().map(|sample| f32::from(sample.2)).collect();
            let mut slopes = vec![0.0; outputs.len()];
            let sum = losses.sum_losses(&mut outputs, (&labels, &weights), 1.0, &mut slopes);
            let mut expected = 0.0;
            for (index, (output, label, times)) in samples.iter().enumerate() {
                let mut slope = [0.0];
                let once = losses.sum_losses(&mut [*output], (&[f32::from(*label)], &[]), 1.0, &mut slope);
                expected += once * f64::from(*times);
                prop_assert!((slopes[index] - slope[0] * f32::from(*times)).abs() < 1e-5);
            }
            prop_assert!((sum - expected).abs() < 1e-4);
        }
    }

    #[test]
    fn it_equals_the_definition_and_its_slope() {
        let (logits, labels) = ([0.3_f32, -2.0, 5.0, 0.0], [1.0, 0.0, 0.0, 1.0]);
        let mut slopes = [0.0; 4];
        let sum = cross_entropy(&logits, &labels, 0.25, &mut slopes);
        let loss = |z: f64, y: f64| z.exp().ln_1p() - y * z;
        let expected: f64 = logits.iter().zip_eq(labels).map(|(z, y)| loss(f64::from(*z), f64::from(y))).sum();
        assert!((sum - expected).abs() < 1e-6, "{sum} is not {expected}");
        for (index, slope) in slopes.into_iter().enumerate() {
            let (z, y) = (f64::from(logits[index]), f64::from(labels[index]));
            let difference = (loss(z + 1e-5, y) - loss(z - 1e-5, y)) / 2e-5 / 4.0;
            assert!((f64::from(slope) - difference).abs() < 1e-6, "{slope} is not {difference}");
        }
    }

    #[test]
    fn large_logits_stay_finite_and_a_nan_stays_one() {
        let mut slopes = [0.0; 2];
        assert!((cross_entropy(&[1e30, -1e30], &[1.0, 0.0], 0.5, &mut slopes)).abs() < 1e-6);
        assert_eq!(slopes, [0.0, 0.0]);
        assert!(cross_entropy(&[f32::NAN], &[1.0], 1.0, &mut slopes).is_nan());
        assert!(cross_entropy(&[f32::INFINITY], &[1.0], 1.0, &mut slopes).is_nan());
        for (a, b) in [(80.0, 80.0), (-80.0, 80.0), (80.0, -80.0), (-80.0, -80.0)] {
            let (logit, at_a, at_b) = joint(a, b);
            assert!(logit.is_finite() && (0.0..=1.0).contains(&at_a) && (0.0..=1.0).contains(&at_b));
        }
    }
}
