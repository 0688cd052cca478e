//! The outputs of samples with their classes, to which a temperature is fitted.

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

/// Most outputs that are kept: 256 MiB.
const MOST_VALUES: usize = 1 << 26;

/// Outputs and classes of samples. If there are too many, every second one is dropped, as often as needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClassLogits {
    classes: usize,
    /// One of so many samples is kept: a power of two.
    stride: u64,
    seen: u64,
    labels: Vec<u32>,
    /// `[labels, classes]`.
    outputs: Vec<f32>,
    most: usize,
}

impl ClassLogits {
    pub(crate) fn new(classes: usize) -> Self {
        Self { classes, stride: 1, seen: 0, labels: Vec::new(), outputs: Vec::new(), most: MOST_VALUES }
    }

    pub(crate) fn push(&mut self, class: usize, outputs: &[f32]) {
        if self.seen.is_multiple_of(self.stride) {
            self.labels.push(u32::try_from(class).unwrap_or(u32::MAX));
            self.outputs.extend_from_slice(outputs);
        }
        self.seen += 1;
        while self.outputs.len() > self.most {
            self.halve();
        }
    }

    pub(crate) fn merge(&mut self, mut other: Self) {
        while self.stride != other.stride {
            if self.stride < other.stride { self.halve() } else { other.halve() }
        }
        self.seen += other.seen;
        self.labels.append(&mut other.labels);
        self.outputs.append(&mut other.outputs);
        while self.outputs.len() > self.most {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.labels = self.labels.iter().step_by(2).copied().collect();
        self.outputs = self.outputs.chunks_exact(self.classes).step_by(2).flatten().copied().collect();
        self.stride *= 2;
    }

    pub(crate) fn samples(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.labels.iter().map(|class| *class as usize).zip_eq(self.outputs.chunks_exact(self.classes))
    }

    /// The temperature with the least logloss; `None` without samples of two classes, or with an output that is not finite.
    pub(crate) fn fit_temperature(&self) -> Option<f64> {
        let first = self.labels.first()?;
        let is_fit =
            self.labels.iter().any(|class| class != first) && self.outputs.iter().all(|output| output.is_finite());
        is_fit.then(|| 1.0 / best_scale(|scale| self.loss_slope(scale)))
    }

    /// First and second derivative of the summed loss by the scale: the mean of the outputs by their probabilities without the label's, and
    /// their variance.
    fn loss_slope(&self, scale: f64) -> (f64, f64) {
        let mut sums = (0.0, 0.0);
        for (class, outputs) in self.samples() {
            let most = outputs.iter().fold(f32::NEG_INFINITY, |most, output| most.max(*output));
            let (mut whole, mut mean, mut square) = (0.0, 0.0, 0.0);
            for output in outputs {
                let below = f64::from(*output) - f64::from(most);
                let share = (scale * below).exp();
                whole += share;
                mean += share * below;
                square += share * below * below;
            }
            mean /= whole;
            let label = f64::from(outputs[class]) - f64::from(most);
            sums.0 += mean - label;
            sums.1 += square / whole - mean * mean;
        }
        sums
    }
}

/// Bounds of the inverse of a temperature.
const SCALES: (f64, f64) = (1e-3, 1e3);

/// Halvings of the interval that is left for the scale: 2⁻⁶⁰ of it is less than its rounding.
const MOST_STEPS: usize = 60;

/// The factor of all logits with the least loss, between [`SCALES`]. `slope` is the loss's first and second derivative by the factor.
/// The loss is convex, so Newton's steps between the bounds find it.
pub(crate) fn best_scale(slope: impl Fn(f64) -> (f64, f64)) -> f64 {
    let ((mut low, mut high), mut scale) = (SCALES, 1.0);
    for _ in 0..MOST_STEPS {
        let (first, second) = slope(scale);
        if first > 0.0 {
            high = scale;
        } else {
            low = scale;
        }
        let newton = scale - first / second;
        // Newton's step can leave the interval in which the slope changes its sign. Its geometric middle cannot.
        let next = if newton > low && newton < high { newton } else { (low * high).sqrt() };
        if (next - scale).abs() <= 1e-12 * scale {
            return next;
        }
        scale = next;
    }
    scale
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn logits(samples: &[(usize, [f32; 3])]) -> ClassLogits {
        let mut logits = ClassLogits::new(3);
        samples.iter().for_each(|(class, outputs)| logits.push(*class, outputs));
        logits
    }

    fn samples() -> impl Strategy<Value = Vec<(usize, [f32; 3])>> {
        prop::collection::vec((0_usize..3, prop::array::uniform3(-4_f32..4.0)), 2..60)
    }

    /// Ten samples whose classes are as frequent as 5 : 3 : 2; outputs are logarithms of that times a factor.
    fn certain(factor: f32) -> ClassLogits {
        let outputs = [0.5_f32, 0.3, 0.2].map(|share| share.ln() * factor);
        logits(&[0, 0, 0, 0, 0, 1, 1, 1, 2, 2].map(|class| (class, outputs)))
    }

    #[test]
    fn a_model_that_is_three_times_too_certain_is_found_out() {
        for factor in [1.0, 3.0, 0.25] {
            let temperature = certain(factor).fit_temperature().unwrap();
            assert!((temperature - f64::from(factor)).abs() < 1e-5, "{factor} is taken for {temperature}");
        }
    }

    #[test]
    fn samples_of_one_class_or_without_a_number_are_not_fitted() {
        assert_eq!(logits(&[]).fit_temperature(), None);
        assert_eq!(logits(&[(1, [0.0; 3]), (1, [1.0; 3])]).fit_temperature(), None);
        assert_eq!(logits(&[(1, [0.0; 3]), (2, [f32::NAN, 0.0, 0.0])]).fit_temperature(), None);
    }

    #[test]
    fn of_too_many_samples_every_second_is_kept() {
        let mut few = ClassLogits { most: 24, ..ClassLogits::new(3) };
        (0..100_u16).for_each(|sample| few.push(usize::from(sample % 3), &[f32::from(sample); 3]));
        let kept: Vec<f32> = few.outputs.chunks_exact(3).map(|outputs| outputs[0]).collect();
        assert_eq!((few.stride, kept), (16, vec![0.0, 16.0, 32.0, 48.0, 64.0, 80.0, 96.0]));
        // Parts of different strides: each sample of the merged part stands for as many.
        let mut other = ClassLogits { most: 24, ..ClassLogits::new(3) };
        (0..8_u16).for_each(|_| other.push(1, &[0.0; 3]));
        other.merge(few);
        assert_eq!((other.stride, other.seen, other.labels.len()), (16, 108, 8));
    }

    proptest! {
        #[test]
        fn no_temperature_is_better(samples in samples(), other in 0.01_f64..100.0) {
            let logits = logits(&samples);
            let Some(best) = logits.fit_temperature() else { return Ok(()) };
            let loss = |temperature: f64| -> f64 {
                // Below the largest output: an exponential of more than 709 is infinite.
                let sample_loss = |(class, outputs): (usize, &[f32])| {
                    let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let below = |output: f32| (f64::from(output) - f64::from(most)) / temperature;
                    outputs.iter().map(|output| below(*output).exp()).sum::<f64>().ln() - below(outputs[class])
                };
                logits.samples().map(sample_loss).sum()
            };
            prop_assert!(loss(best) <= loss(other) + 1e-9, "{best} {other}");
        }

        #[test]
        fn merged_parts_equal_the_whole(first in samples(), second in samples()) {
            let mut merged = logits(&first);
            merged.merge(logits(&second));
            prop_assert_eq!(merged, logits(&[first, second].concat()));
        }
    }

    #[test]
    fn the_least_of_a_convex_loss_is_found_and_the_bounds_are_kept() {
        // (s − 5)² / 2.
        assert!((best_scale(|scale| (scale - 5.0, 1.0)) - 5.0).abs() < 1e-9);
        // Falling or rising everywhere, without a curvature.
        assert!(best_scale(|_| (-1.0, 0.0)) > 0.99 * SCALES.1);
        assert!(best_scale(|_| (1.0, 0.0)) < 1.01 * SCALES.0);
    }
}
