//! Binary cross-entropy of logits, and its slope.

use zagros_zip::ZipEq;

/// Writes d mean loss / d logit and returns the sum of the losses: max(z, 0) − y·z + log(1 + e^−|z|), which never
/// overflows. `samples` is the number of samples of the mean.
pub(super) fn cross_entropy(logits: &[f32], labels: &[f32], samples: usize, slopes: &mut [f32]) -> f64 {
    let share = 1.0 / samples as f32;
    let mut sum = 0.0;
    for (index, (z, y)) in logits.iter().zip_eq(labels).enumerate() {
        let small = (-z.abs()).exp();
        sum += f64::from(z.max(0.0) - y * z) + f64::from(small.ln_1p());
        // The sigmoid in the form that does not overflow.
        let chance = if *z >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) };
        slopes[index] = (chance - y) * share;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_equals_the_definition_and_its_slope() {
        let (logits, labels) = ([0.3_f32, -2.0, 5.0, 0.0], [1.0, 0.0, 0.0, 1.0]);
        let mut slopes = [0.0; 4];
        let sum = cross_entropy(&logits, &labels, 4, &mut slopes);
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
        assert!((cross_entropy(&[1e30, -1e30], &[1.0, 0.0], 2, &mut slopes)).abs() < 1e-6);
        assert_eq!(slopes, [0.0, 0.0]);
        assert!(cross_entropy(&[f32::NAN], &[1.0], 1, &mut slopes).is_nan());
        assert!(cross_entropy(&[f32::INFINITY], &[1.0], 1, &mut slopes).is_nan());
    }
}
