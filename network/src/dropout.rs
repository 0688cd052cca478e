//! Dropout of hidden units, whose draws are a function of the seed and the step.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{RngCore, SeedableRng};
use zagros_zip::ZipEq;

/// Drops each unit with one probability and scales up the others, so that the expected sum stays the same (Srivastava et
/// al. 2014, inverted form).
#[derive(Debug)]
pub struct UnitDropout {
    /// Of dropped units, 0 .. 1.
    pub share: f64,
    seed: u64,
    step: u64,
    /// By number of a layer, once it has drawn in this step.
    layers: Vec<Option<Pcg64Mcg>>,
}

impl UnitDropout {
    /// `stream` distinguishes dropouts of the same step.
    pub fn new(share: f64, seed: u64, stream: u64) -> Self {
        // Another stream than that of the first weights.
        let seed = !seed ^ stream.rotate_left(32);
        Self { share, seed, step: 0, layers: Vec::new() }
    }

    /// Sets the draws of a step: they are a function of seed, stream and step, so there is no state to keep.
    pub fn draw_for(&mut self, step: u64) {
        if self.share > 0.0 {
            self.step = step;
            self.layers.clear();
        }
    }

    /// Appends the factors of the next `count` units of a layer, which are numbered in the order of the forward; nothing if no unit is
    /// ever dropped. Each layer draws from a generator of its own, so it does not matter whether a batch goes through the network
    /// chunk by chunk or layer by layer.
    pub fn draw_factors(&mut self, layer: usize, count: usize, mask: &mut Vec<f32>) {
        if self.share <= 0.0 {
            return;
        }
        let seed = self.seed_of(self.step).wrapping_add((layer as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03));
        if self.layers.len() <= layer {
            self.layers.resize(layer + 1, None);
        }
        let kept = (1.0 / (1.0 - self.share)) as f32;
        let threshold = (self.share * f64::from(u32::MAX)) as u32;
        let random = self.layers[layer].get_or_insert_with(|| Pcg64Mcg::seed_from_u64(seed));
        mask.extend((0..count).map(|_| if random.next_u32() < threshold { 0.0 } else { kept }));
    }

    /// Odd constants, so that neighbouring steps of neighbouring seeds differ in many bits.
    fn seed_of(&self, step: u64) -> u64 {
        self.seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Multiplies by what dropout drew. An empty mask drops nothing.
pub fn apply_mask(values: &mut [f32], mask: &[f32]) {
    if !mask.is_empty() {
        values.iter_mut().zip_eq(mask).for_each(|(value, factor)| *value *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropout_keeps_the_expectation() {
        let mut values = Vec::new();
        UnitDropout::new(0.25, 7, 0).draw_factors(0, 40_000, &mut values);
        let zeros = values.iter().filter(|value| **value == 0.0).count() as f64 / values.len() as f64;
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        // Binomial: 5 standard deviations of 40,000 draws.
        assert!((zeros - 0.25).abs() < 5.0 * (0.25_f64 * 0.75 / 40_000.0).sqrt(), "{zeros}");
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!(values.iter().all(|value| *value == 0.0 || (value - 4.0 / 3.0).abs() < 1e-6));
        let mut none = Vec::new();
        UnitDropout::new(0.0, 7, 0).draw_factors(0, 2, &mut none);
        assert!(none.is_empty());
    }
}
