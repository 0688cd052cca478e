//! A logistic regression that learns row by row, in one pass: what a linear model makes of the same rows.
//!
//! It is FTRL-proximal with hashed weights (McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches"). Each weight has a rate of
//! its own. Of a weight are kept z, the sum of its gradients less what its own moves explain, and n, the sum of their squares:
//!
//! ```text
//! weight = −(z − sign(z)·λ₁) / ((β + √n) / α + λ₂)      and 0 while |z| ≤ λ₁
//! g = (prediction − label)·input     z += g − (√(n + g²) − √n)/α · weight     n += g²
//! ```

use zagros_zip::ZipEq;

use crate::measure::sigmoid;

const ALPHA: f32 = 0.3;
const BETA: f32 = 1.0;
const L1: f32 = 0.5;
const L2: f32 = 1.0;
/// 8 MiB of weights. Categories whose hashes collide share one.
const SLOT_BITS: u32 = 20;
/// Larger numbers count as this: one row must not outweigh all others.
const LARGEST: f32 = 10.0;

/// A weight by its slot, and what it is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearInput {
    slot: usize,
    value: f32,
}

impl LinearInput {
    pub const BIAS: Self = Self { slot: 0, value: 1.0 };

    /// One of so many categories that a feature has in a row.
    pub fn from_category(feature: usize, id: u64, count: usize) -> Self {
        let mixed = (id ^ (feature as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let slot = (mixed ^ (mixed >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb) >> (64 - SLOT_BITS);
        Self { slot: slot as usize, value: 1.0 / (count as f32).sqrt() }
    }

    /// A number that is not finite counts as 0.
    pub fn from_number(feature: usize, number: f32) -> Self {
        let value = if number.is_finite() { number.clamp(-LARGEST, LARGEST) } else { 0.0 };
        Self { value, ..Self::from_category(usize::MAX - feature, 0, 1) }
    }
}

#[derive(Clone, Debug)]
pub struct LogisticRegression {
    /// z and n of each weight.
    sums: Vec<[f32; 2]>,
    /// The weights of one row, used again for each.
    weights: Vec<f32>,
}

impl Default for LogisticRegression {
    /// Nothing is learned yet.
    fn default() -> Self {
        Self { sums: vec![[0.0; 2]; 1 << SLOT_BITS], weights: Vec::new() }
    }
}

impl LogisticRegression {
    /// The logit of a row.
    pub fn score_row(&self, inputs: &[LinearInput]) -> f32 {
        inputs.iter().map(|input| input.value * weight_from_sums(self.sums[input.slot])).sum()
    }

    /// Learns from a row that counts `share` times.
    pub fn learn_row(&mut self, inputs: &[LinearInput], is_positive: bool, share: f32) {
        self.weights.clear();
        self.weights.extend(inputs.iter().map(|input| weight_from_sums(self.sums[input.slot])));
        let logit: f32 = inputs.iter().zip_eq(&self.weights).map(|(input, weight)| input.value * weight).sum();
        let error = (sigmoid(f64::from(logit)) as f32 - f32::from(u8::from(is_positive))) * share;
        for (input, weight) in inputs.iter().zip_eq(&self.weights) {
            let [z, n] = &mut self.sums[input.slot];
            let gradient = error * input.value;
            let grown = *n + gradient * gradient;
            *z += gradient - (grown.sqrt() - n.sqrt()) / ALPHA * weight;
            *n = grown;
        }
    }
}

fn weight_from_sums([z, n]: [f32; 2]) -> f32 {
    if z.abs() <= L1 { 0.0 } else { (L1.copysign(z) - z) / ((BETA + n.sqrt()) / ALPHA + L2) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClickScores;

    /// Uniform in −1 .. 1, by its place.
    fn draw(place: u64) -> f32 {
        let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 29)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Two categories of 100 values each and a number; the planted logit, and a click by its probability.
    fn planted_row(row: u64) -> (Vec<LinearInput>, f32, bool) {
        let [first, second] = [1, 2].map(|column| ((draw(row * 8 + column) + 1.0) * 50.0) as u64);
        let number = draw(row * 8 + 3);
        let logit = 1.5 * draw(1_000_000_000 + first) + 1.5 * draw(2_000_000_000 + second) + number - 1.0;
        let categories = [(0, first), (1, second)].map(|(feature, id)| LinearInput::from_category(feature, id, 1));
        let inputs = [&categories[..], &[LinearInput::BIAS, LinearInput::from_number(0, number)]].concat();
        let chance = (f64::from(draw(row * 8 + 4)) + 1.0) / 2.0;
        (inputs, logit, chance < sigmoid(f64::from(logit)))
    }

    #[test]
    fn a_planted_linear_model_is_found_in_one_pass_over_20_000_rows() {
        let mut model = LogisticRegression::default();
        for (inputs, _, is_positive) in (0..20_000).map(planted_row) {
            model.learn_row(&inputs, is_positive, 1.0);
        }
        let (mut found, mut best) = (ClickScores::new(), ClickScores::new());
        for (inputs, logit, is_positive) in (20_000..40_000).map(planted_row) {
            let label = f32::from(u8::from(is_positive));
            found.push(label, model.score_row(&inputs));
            best.push(label, logit);
        }
        let (found, best) = (found.compute_measures(), best.compute_measures());
        assert!(found.auc.unwrap() > best.auc.unwrap() - 0.01, "{found:?} {best:?}");
        assert!(found.logloss.unwrap() < best.logloss.unwrap() + 0.02, "{found:?} {best:?}");
    }

    #[test]
    fn no_number_is_larger_than_its_bound_and_an_undefined_one_is_nothing() {
        let value = |number| LinearInput::from_number(0, number).value;
        assert_eq!([1e9, -1e9, f32::NAN, f32::INFINITY, 0.5].map(value), [LARGEST, -LARGEST, 0.0, 0.0, 0.5]);
    }
}
