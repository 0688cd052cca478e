//! How a weight is stored. Computations and optimiser state always use f32.

mod int8;
mod narrow;
mod noise;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

pub(crate) use noise::{RowNoise, StepNoise};

/// Number format of a stored weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightType {
    /// Exact: 32 bits.
    #[default]
    F32,
    /// Half the bytes, rounded stochastically: 11 significant bits (IEEE 754 half precision), largest value 65504.
    F16,
    /// Half the bytes, rounded stochastically: 8 significant bits, the range of f32 (bfloat16).
    Bf16,
    /// A byte a weight, and 4 bytes a row for its scale, rounded stochastically: whole numbers from −127 to 127 times the scale, which
    /// follows the largest weight of the row.
    Int8,
}

impl WeightType {
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// Bytes of a weight, without the scale of its row.
    pub fn weight_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Words before the weights of a row: the scale, an f32, if the format has one.
    pub fn scale_words(self) -> usize {
        usize::from(self == Self::Int8)
    }

    /// Words of 32 bits that hold `dim` weights and their scale. The last word of narrow weights may be used in part.
    pub fn words(self, dim: usize) -> usize {
        self.scale_words() + (dim * self.weight_bytes()).div_ceil(size_of::<u32>())
    }

    /// Name of the format in files and settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Whether [`Self::encode`] stores a weight as its nearest number: it is finite, and not beyond the largest number by more than half
    /// of its last bit.
    pub fn can_store(self, weight: f32) -> bool {
        let limit = match self {
            Self::F32 | Self::Int8 => f32::INFINITY,
            Self::F16 => narrow::F16_BEYOND,
            Self::Bf16 => narrow::BF16_BEYOND,
        };
        weight.abs() < limit
    }

    /// Rounds the weights of a row to the numbers that [`Self::encode`] stores.
    pub fn round_nearest(self, weights: &mut [f32]) {
        let each = |weights: &mut [f32], nearest: fn(f32) -> f32| {
            weights.iter_mut().for_each(|weight| *weight = nearest(*weight));
        };
        match self {
            Self::F32 => {}
            Self::F16 => each(weights, |weight| narrow::f16_to_f32(narrow::nearest_f16(weight))),
            Self::Bf16 => each(weights, |weight| narrow::bf16_to_f32(narrow::nearest_bf16(weight))),
            Self::Int8 => int8::round_nearest(weights),
        }
    }

    /// Converts `weights.len()` weights to f32, exactly.
    /// Panics if `words` is shorter than [`Self::words`] of the number of weights.
    #[inline(always)]
    pub fn decode(self, words: &[u32], weights: &mut [f32]) {
        match self {
            Self::F32 => copy(&bytemuck::cast_slice(words)[..weights.len()], weights),
            Self::F16 => narrow::decode(halves(words, weights.len()), weights, narrow::f16_to_f32),
            Self::Bf16 => narrow::decode(halves(words, weights.len()), weights, narrow::bf16_to_f32),
            Self::Int8 => int8::decode(words, weights),
        }
    }

    /// Stores weights. Each is rounded to the nearest number of the format, ties to even. A weight beyond the largest
    /// number becomes the largest number. In `int8` a weight that is no finite number makes its row NaN.
    pub fn encode(self, weights: &[f32], words: &mut [u32]) {
        match self {
            Self::F32 => words[..weights.len()].copy_from_slice(bytemuck::cast_slice(weights)),
            Self::F16 => {
                narrow::encode(weights, halves_mut(words, weights.len()), |_, value| narrow::nearest_f16(value))
            }
            Self::Bf16 => {
                narrow::encode(weights, halves_mut(words, weights.len()), |_, value| narrow::nearest_bf16(value))
            }
            Self::Int8 => int8::encode_nearest(weights, words),
        }
    }

    /// Stores weights with stochastic rounding in place of the row in `words`. Each becomes one of its two neighbours, and
    /// the nearer one is more likely, so that the mean is right even when a weight moves in tiny steps. A weight beyond the
    /// largest number becomes the largest number. `int8` keeps the scale of `words` where it fits.
    #[inline(always)]
    pub(crate) fn encode_stochastic(self, weights: &[f32], words: &mut [u32], noise: RowNoise) {
        match self {
            Self::F32 => copy(weights, &mut bytemuck::cast_slice_mut(words)[..weights.len()]),
            Self::F16 => narrow::encode(
                weights,
                halves_mut(words, weights.len()),
                #[inline(always)]
                |lane, value| narrow::stochastic_f16(value, noise.lane(lane)),
            ),
            Self::Bf16 => narrow::encode(
                weights,
                halves_mut(words, weights.len()),
                #[inline(always)]
                |lane, value| narrow::stochastic_bf16(value, noise.lane(lane)),
            ),
            Self::Int8 => int8::encode_stochastic(weights, words, noise),
        }
    }
}

/// f32 values of an AVX vector. Nearly every x86-64 processor of the last ten years has AVX.
const LANES: usize = 8;

/// Copies in vectors of known length. A row is too short for a call of `memcpy` to pay off.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
    for (from, to) in from.iter().zip_eq(to) {
        *to = *from;
    }
    for (from, to) in from_rest.iter().zip_eq(to_rest) {
        *to = *from;
    }
}

#[inline(always)]
fn halves(words: &[u32], dim: usize) -> &[u16] {
    &bytemuck::cast_slice(words)[..dim]
}

#[inline(always)]
fn halves_mut(words: &mut [u32], dim: usize) -> &mut [u16] {
    &mut bytemuck::cast_slice_mut(words)[..dim]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOATS: [WeightType; 3] = [WeightType::F32, WeightType::F16, WeightType::Bf16];

    #[test]
    fn narrow_weights_share_words() {
        assert_eq!(WeightType::ALL.map(|element| element.words(5)), [5, 3, 3, 3]);
        assert_eq!(WeightType::ALL.map(|element| element.words(16)), [16, 8, 8, 5]);
    }

    #[test]
    fn a_format_holds_what_rounds_to_one_of_its_finite_numbers() {
        for element in WeightType::ALL {
            assert!(![f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().any(|weight| element.can_store(*weight)));
            assert!(element.can_store(0.0) && element.can_store(-65504.0) && element.can_store(f32::from_bits(1)));
        }
        let held = |weight: f32| WeightType::ALL.map(|element| element.can_store(weight));
        assert_eq!(held(65519.996), [true; 4]);
        // Half-way to 2¹⁶, ties go to even, which is infinity.
        assert_eq!(held(-65520.0), [true, false, true, true]);
        let brain = half::bf16::MAX.to_f32();
        assert_eq!(held(brain), [true, false, true, true]);
        assert_eq!(held(f32::MAX), [true, false, false, true]);
        for weight in [65520.0, -f32::from_bits(0x7F7F_8000)] {
            let element =
                if weight > 0.0 { half::f16::from_f32(weight).to_f32() } else { half::bf16::from_f32(weight).to_f32() };
            assert!(element.is_infinite() && half::f16::from_f32(65519.996).to_f32() == 65504.0, "{weight}");
        }
    }

    proptest! {
        #[test]
        fn numbers_of_a_format_are_stored_exactly(
            small in prop::collection::vec(-128_i16..128, 0..40),
            step: u64,
            key: u64,
        ) {
            // Eighths up to 16 are exact in eight significant bits.
            let weights: Vec<f32> = small.into_iter().map(|value| f32::from(value) / 8.0).collect();
            for element in FLOATS {
                let mut words = vec![u32::MAX; element.words(weights.len())];
                let mut back = vec![f32::NAN; weights.len()];
                element.encode(&weights, &mut words);
                element.decode(&words, &mut back);
                prop_assert_eq!(&back, &weights, "{}", element.name());
                element.encode_stochastic(&weights, &mut words, StepNoise::new(1, 2, step).row(key));
                element.decode(&words, &mut back);
                prop_assert_eq!(&back, &weights, "{}", element.name());
            }
        }

        /// The words after the weights belong to the optimiser.
        #[test]
        fn no_other_word_is_touched(dim in 0_usize..20) {
            for element in WeightType::ALL {
                let mut words = vec![7; element.words(dim) + 3];
                element.encode(&vec![1.0; dim], &mut words);
                prop_assert_eq!(&words[element.words(dim)..], &[7; 3]);
                element.encode_stochastic(&vec![0.3; dim], &mut words, StepNoise::new(1, 2, 3).row(4));
                prop_assert_eq!(&words[element.words(dim)..], &[7; 3]);
            }
        }

        /// A row that is read before it is made has the weights of the row that is made.
        #[test]
        fn rounded_weights_are_those_that_are_stored(weights in prop::collection::vec(any::<f32>(), 0..40)) {
            for element in WeightType::ALL {
                let (mut words, mut stored) = (vec![0; element.words(weights.len())], vec![f32::NAN; weights.len()]);
                element.encode(&weights, &mut words);
                element.decode(&words, &mut stored);
                let mut rounded = weights.clone();
                element.round_nearest(&mut rounded);
                let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&rounded), bits(&stored), "{}", element.name());
            }
        }
    }
}
