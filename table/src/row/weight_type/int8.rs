//! Rows of 8-bit codes with one scale. The first word of a row is the scale, an f32. The codes follow, four to a word, the first
//! one in the lowest byte:
//!
//! ```text
//! words    scale │ code 0 · code 1 · code 2 · code 3 │ code 4 · …
//! weight i = code i × scale,  −127 ≤ code ≤ 127
//! ```
//!
//! A scale has at most 17 significant bits, and a code 7. So their product is exact, the largest weight divided by 127 is the
//! scale again, and a row that is read and stored keeps every bit.
//!
//! An update keeps the scale while the largest weight uses at least half of the codes. Then a weight without a gradient keeps
//! its code, and a weight that moves by a small part of a step is rounded by a small part of a step. A new scale instead moves all
//! weights of a row between codes, and rounds them all.

use zagros_zip::ZipEq;

use super::{LANES, RowNoise};

/// All bits but the sign.
const MAGNITUDE: u32 = 0x7FFF_FFFF;
const LARGEST: f32 = 127.0;
/// A scale is kept while the largest weight is at least this many steps.
const LEAST: f32 = 64.0;
/// Bits of an f32 that are 0 in a scale.
const UNUSED: u32 = (1 << 7) - 1;
/// The largest scale of which each weight is finite.
const LARGEST_SCALE: f32 = f32::from_bits((f32::MAX / LARGEST).to_bits() & !UNUSED);
/// Fraction bits of a code before it is rounded. The largest weight then has 22 significant bits.
const FRACTION: u32 = 15;
/// From 256 to 512 the last bit of an f32 is 2⁻¹⁵: as an integer, the bits of 384 + code are a fixed-point number with
/// [`FRACTION`] bits of fraction.
const ALIGNED: f32 = 384.0;

/// Converts the codes of a row to weights, exactly.
#[inline(always)]
pub(super) fn decode(words: &[u32], weights: &mut [f32]) {
    let scale = f32::from_bits(words[0]);
    let codes: &[i8] = &bytemuck::cast_slice(&words[1..])[..weights.len()];
    let ((codes, codes_rest), (weights, weights_rest)) = (codes.as_chunks::<LANES>(), weights.as_chunks_mut::<LANES>());
    for (codes, weights) in codes.iter().zip_eq(weights) {
        // By value: the compiler need not know that the two do not overlap.
        let (codes, mut decoded) = (*codes, [0.0; LANES]);
        for lane in 0..LANES {
            decoded[lane] = f32::from(codes[lane]) * scale;
        }
        *weights = decoded;
    }
    for (code, weight) in codes_rest.iter().zip_eq(weights_rest) {
        *weight = f32::from(*code) * scale;
    }
}

/// Stores a row under a new scale. Each weight is rounded to the nearest code, ties to even.
pub(super) fn encode_nearest(weights: &[f32], words: &mut [u32]) {
    let scale = scale_of(largest(weights));
    encode(weights, words, scale, nearest_code);
}

/// Stores a row in place of `words`, and keeps their scale if it fits. Each weight is rounded to one of its two neighbours by
/// random bits.
#[inline(always)]
pub(super) fn encode_stochastic(weights: &[f32], words: &mut [u32], noise: RowNoise) {
    let scale = kept_or_new(f32::from_bits(words[0]), largest(weights));
    encode(
        weights,
        words,
        scale,
        #[inline(always)]
        |lane, steps| stochastic(steps, noise.lane(lane)),
    );
}

/// The weights as [`encode_nearest`] stores them.
pub(super) fn round_nearest(weights: &mut [f32]) {
    let scale = scale_of(largest(weights));
    if scale == 0.0 {
        return weights.fill(0.0);
    }
    let nearest = |weight: f32| f32::from(code(weight, scale, 0, &nearest_code)) * scale;
    weights.iter_mut().for_each(|weight| *weight = nearest(*weight));
}

/// The largest magnitude. It is no finite number if one of the weights is none.
#[inline(always)]
fn largest(weights: &[f32]) -> f32 {
    let (chunks, rest) = weights.as_chunks::<LANES>();
    let mut lanes = [0; LANES];
    for chunk in chunks {
        let chunk = *chunk;
        for lane in 0..LANES {
            lanes[lane] = (chunk[lane].to_bits() & MAGNITUDE).max(lanes[lane]);
        }
    }
    // Magnitudes are in the order of their bits, infinity and NaN last.
    let all = rest.iter().map(|weight| weight.to_bits() & MAGNITUDE).chain(lanes);
    f32::from_bits(all.fold(0, u32::max))
}

/// The scale at which the largest weight has the largest code. It is NaN if the largest weight is no finite number: a weight that
/// cannot be stored must not look like one that can.
#[inline(always)]
fn scale_of(largest: f32) -> f32 {
    if !largest.is_finite() {
        return f32::NAN;
    }
    let exact = (largest / LARGEST).to_bits();
    f32::from_bits((exact + UNUSED) & !UNUSED).min(LARGEST_SCALE)
}

/// The scale of the row before, or a new one if the largest weight is beyond its codes or uses less than half of them.
#[inline(always)]
fn kept_or_new(before: f32, largest: f32) -> f32 {
    let fits = largest <= LARGEST * before && largest >= LEAST * before;
    if fits { before } else { scale_of(largest) }
}

#[inline(always)]
fn encode(weights: &[f32], words: &mut [u32], scale: f32, round: impl Fn(u32, f32) -> i32) {
    words[0] = scale.to_bits();
    let codes: &mut [i8] = &mut bytemuck::cast_slice_mut(&mut words[1..])[..weights.len()];
    if scale == 0.0 || scale.is_nan() {
        return codes.fill(0);
    }
    let ((weights, weights_rest), (codes, codes_rest)) = (weights.as_chunks::<LANES>(), codes.as_chunks_mut::<LANES>());
    let mut first = 0;
    for (weights, codes) in weights.iter().zip_eq(codes) {
        let (weights, mut encoded) = (*weights, [0; LANES]);
        for lane in 0..LANES {
            encoded[lane] = code(weights[lane], scale, first + lane as u32, &round);
        }
        *codes = encoded;
        first += LANES as u32;
    }
    for (weight, stored) in weights_rest.iter().zip_eq(codes_rest) {
        *stored = code(*weight, scale, first, &round);
        first += 1;
    }
}

/// The code of a weight. `round` gets the position, and the weight in steps of the scale.
#[inline(always)]
fn code(weight: f32, scale: f32, position: u32, round: &impl Fn(u32, f32) -> i32) -> i8 {
    round(position, (weight / scale).clamp(-LARGEST, LARGEST)) as i8
}

/// Ties go to the even code.
fn nearest_code(_: u32, steps: f32) -> i32 {
    steps.round_ties_even() as i32
}

/// Adds random bits below the last bit of the code. The larger the fraction is, the likelier the carry rounds up. The addition in
/// place of a conversion is what compilers vectorise on every processor.
#[inline(always)]
fn stochastic(steps: f32, random: u32) -> i32 {
    let fixed = (steps + ALIGNED).to_bits() as i32 - ALIGNED.to_bits() as i32;
    (fixed + (random & ((1 << FRACTION) - 1)) as i32) >> FRACTION
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::weight_type::{StepNoise, WeightType};

    fn stored(weights: &[f32], words: &mut [u32], step: u64) -> Vec<f32> {
        encode_stochastic(weights, words, StepNoise::new(1, 2, step).row(3));
        read(words, weights.len())
    }

    fn read(words: &[u32], dim: usize) -> Vec<f32> {
        let mut weights = vec![f32::NAN; dim];
        decode(words, &mut weights);
        weights
    }

    fn empty(dim: usize) -> Vec<u32> {
        vec![0; WeightType::Int8.words(dim)]
    }

    fn scale(words: &[u32]) -> f32 {
        f32::from_bits(words[0])
    }

    /// Rows with weights of every size, and of very different sizes in one row.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let finite = || any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite());
        prop_oneof![
            prop::collection::vec(-1.0_f32..1.0, 1..40),
            prop::collection::vec(prop_oneof![Just(0.0), -1e-3_f32..1e-3, -3.0_f32..3.0], 1..40),
            prop::collection::vec(finite(), 1..40),
            prop::collection::vec(-1e-41_f32..1e-41, 1..40),
        ]
    }

    #[test]
    fn the_scale_comes_first_and_four_codes_share_a_word() {
        let mut words = empty(6);
        encode_nearest(&[127.0, -127.0, 1.0, -1.0, 2.0, 0.4], &mut words);
        assert_eq!(words, [1.0_f32.to_bits(), 0xff01_817f, 0x0000_0002]);
    }

    proptest! {
        /// Half of the codes or more are in use, as after any update.
        #[test]
        fn a_row_that_is_read_and_stored_keeps_every_bit(
            codes in prop::collection::vec(-127_i8..=127, 1..40),
            most in prop_oneof![Just(127_i8), -127_i8..=-64, 64_i8..=127],
            fraction: u16,
            exponent in -126_i32..120,
            step: u64,
        ) {
            let scale = (1.0 + f32::from(fraction) / 65536.0) * 2.0_f32.powi(exponent);
            let codes: Vec<i8> = codes.into_iter().chain([most]).collect();
            let weights: Vec<f32> = codes.iter().map(|code| f32::from(*code) * scale).collect();
            let mut words = empty(weights.len());
            words[0] = scale.to_bits();
            prop_assert_eq!(&stored(&weights, &mut words, step), &weights);
            prop_assert_eq!(words[0], scale.to_bits());
            if most.unsigned_abs() == 127 {
                // The same without a row before.
                let mut words = empty(weights.len());
                encode_nearest(&weights, &mut words);
                prop_assert_eq!((read(&words, weights.len()), words[0]), (weights, scale.to_bits()));
            }
        }

        #[test]
        fn each_weight_becomes_a_neighbour_and_stays_finite(weights in rows(), before in rows(), step: u64) {
            let dim = weights.len();
            let mut words = empty(dim);
            words[0] = scale_of(largest(&before)).to_bits();
            let found = stored(&weights, &mut words, step);
            let most = weights.iter().map(|weight| weight.abs()).fold(0.0, f32::max);
            // Scales are multiples of 2⁻¹⁴².
            let step = f64::from(scale(&words));
            prop_assert!(step <= f64::from(most) / 63.99 + 2.0_f64.powi(-142), "{} {}", step, most);
            let mut near = empty(dim);
            encode_nearest(&weights, &mut near);
            let (near, least) = (read(&near, dim), f64::from(scale(&near)));
            for index in 0..dim {
                let error = |found: f32| (f64::from(found) - f64::from(weights[index])).abs();
                // Of the quotient, and of weights next to the largest f32. Weights without a scale become zero.
                let rounding = f64::from(weights[index].abs()) * 2.0_f64.powi(-16) + 2.0_f64.powi(-142);
                prop_assert!(found[index].is_finite() && near[index].is_finite());
                prop_assert!(error(found[index]) <= step + rounding, "{} {}", found[index], weights[index]);
                prop_assert!(error(near[index]) <= least / 2.0 + rounding, "{} {}", near[index], weights[index]);
            }
        }

        /// The mean over all random words is the weight itself.
        #[test]
        fn rounding_is_right_on_average(steps in -127.0_f32..127.0) {
            let sum: f64 = (0..1 << 12).map(|random| f64::from(stochastic(steps, random << 3 | 4))).sum();
            let mean = sum / f64::from(1 << 12);
            prop_assert!((mean - f64::from(steps)).abs() <= 1.0 / 4096.0, "{} {}", mean, steps);
        }
    }

    #[test]
    fn a_row_of_zeros_has_scale_zero_and_learns() {
        for zeros in [vec![0.0; 5], vec![-0.0; 8], vec![0.0]] {
            let mut words = empty(zeros.len());
            assert!(stored(&zeros, &mut words, 1).iter().all(|weight| weight.to_bits() == 0));
            assert_eq!(words[0], 0);
            let moved = vec![0.25; zeros.len()];
            let found = stored(&moved, &mut words, 2);
            assert!(found.iter().all(|weight| (weight - 0.25).abs() < 0.0021), "{found:?}");
        }
    }

    #[test]
    fn beside_a_huge_weight_small_ones_are_zero_or_a_step() {
        let weights = [f32::MAX, 1.0, -f32::MAX, 0.0];
        let mut words = empty(4);
        encode_nearest(&weights, &mut words);
        let found = read(&words, 4);
        assert_eq!((found[1], found[3], found[2]), (0.0, 0.0, -found[0]));
        assert!(found[0].is_finite() && found[0] > 0.9999 * f32::MAX, "{}", found[0]);
        // After the huge weight has gone the others have their resolution again.
        let found = stored(&[0.5, 1.0, -1.0, 0.0], &mut words, 1);
        assert!((found[0] - 0.5).abs() < 0.008 && scale(&words) < 0.008, "{found:?}");
    }

    /// It is seen at the next lookup, as with the other formats.
    #[test]
    fn a_weight_that_is_no_number_makes_its_row_no_number() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0xFF80_0001)] {
            for position in [0, 3, 9] {
                let mut weights = vec![0.5; 10];
                weights[position] = bad;
                let mut words = empty(10);
                encode_nearest(&[1.0; 10], &mut words);
                assert!(stored(&weights, &mut words, 1).iter().all(|weight| weight.is_nan()), "{bad} at {position}");
                // No code is kept from a row that is no number.
                assert_eq!(stored(&[127.0; 10], &mut words, 2), [127.0; 10]);
            }
        }
    }

    #[test]
    fn the_scale_changes_only_if_it_must() {
        let mut words = empty(3);
        encode_nearest(&[127.0, 10.0, -3.0], &mut words);
        // The others keep their weights, whatever the random words are.
        for (step, most) in [127.0, 100.5, 64.0, 126.9].into_iter().enumerate() {
            let found = stored(&[most, 10.0, -3.0], &mut words, step as u64);
            assert_eq!((scale(&words), &found[1..]), (1.0, &[10.0, -3.0][..]), "{most}");
        }
        stored(&[127.5, 10.0, -3.0], &mut words, 9);
        assert!((scale(&words) - 127.5 / 127.0).abs() < 2e-5, "{}", scale(&words));
        stored(&[63.5, 10.0, -3.0], &mut words, 9);
        assert!((scale(&words) - 0.5).abs() < 2e-5, "{}", scale(&words));
    }
}
