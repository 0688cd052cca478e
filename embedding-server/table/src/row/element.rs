//! How a weight is stored. Arithmetic and optimiser state are f32 throughout.

mod narrow;
mod noise;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

pub(crate) use noise::{Noise, RowNoise};

/// Type of a stored weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// Exact: 32 bits.
    #[default]
    F32,
    /// Half the bytes, rounded stochastically: 11 significant bits (IEEE 754 half precision), largest value 65504.
    F16,
    /// Half the bytes, rounded stochastically: 8 significant bits, the range of f32 (bfloat16).
    Bf16,
}

impl Element {
    /// Bytes of a weight.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Words of 32 bits that hold `dim` weights; an odd narrow one leaves half a word unused.
    #[must_use]
    pub fn words(self, dim: usize) -> usize {
        (dim * self.bytes()).div_ceil(size_of::<u32>())
    }

    /// Name in files and settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// The nearest number that there is, as [`Self::encode`] stores it.
    #[must_use]
    pub fn nearest(self, weight: f32) -> f32 {
        match self {
            Self::F32 => weight,
            Self::F16 => narrow::f16_to_f32(narrow::nearest_f16(weight)),
            Self::Bf16 => narrow::bf16_to_f32(narrow::nearest_bf16(weight)),
        }
    }

    /// Widens `weights.len()` weights, exactly.
    ///
    /// # Panics
    /// When `words` are fewer than [`Self::words`] says.
    #[inline(always)]
    pub fn decode(self, words: &[u32], weights: &mut [f32]) {
        match self {
            Self::F32 => copy(&bytemuck::cast_slice(words)[..weights.len()], weights),
            Self::F16 => narrow::decode(halves(words, weights.len()), weights, narrow::f16_to_f32),
            Self::Bf16 => narrow::decode(halves(words, weights.len()), weights, narrow::bf16_to_f32),
        }
    }

    /// Stores weights, each rounded to the nearest that there is, ties to even; one beyond the largest becomes it.
    ///
    /// # Panics
    /// As [`Self::decode`].
    pub fn encode(self, weights: &[f32], words: &mut [u32]) {
        match self {
            Self::F32 => words[..weights.len()].copy_from_slice(bytemuck::cast_slice(weights)),
            Self::F16 => {
                narrow::encode(weights, halves_mut(words, weights.len()), |_, value| narrow::nearest_f16(value))
            }
            Self::Bf16 => {
                narrow::encode(weights, halves_mut(words, weights.len()), |_, value| narrow::nearest_bf16(value))
            }
        }
    }

    /// Stores weights, each rounded to one of its two neighbours, to the nearer one the likelier: right on average
    /// however small the steps are that a weight takes. One beyond the largest becomes it.
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
        }
    }
}

/// Values of the widest vector that every x86-64 of the last ten years has.
const LANES: usize = 8;

/// Copies in vectors of known length: rows are too short for a call of `memcpy`.
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

    const ALL: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

    #[test]
    fn narrow_weights_share_words() {
        assert_eq!(ALL.map(|element| element.words(5)), [5, 3, 3]);
        assert_eq!(Element::Bf16.words(16), 8);
    }

    proptest! {
        #[test]
        fn what_a_format_can_hold_comes_back_as_it_was(
            small in prop::collection::vec(-128_i16..128, 0..40),
            step: u64,
            key: u64,
        ) {
            // Eighths up to 16: exact in eight bits.
            let weights: Vec<f32> = small.into_iter().map(|value| f32::from(value) / 8.0).collect();
            for element in ALL {
                let mut words = vec![u32::MAX; element.words(weights.len())];
                let mut back = vec![f32::NAN; weights.len()];
                element.encode(&weights, &mut words);
                element.decode(&words, &mut back);
                prop_assert_eq!(&back, &weights, "{}", element.name());
                element.encode_stochastic(&weights, &mut words, Noise::new(1, 2, step).row(key));
                element.decode(&words, &mut back);
                prop_assert_eq!(&back, &weights, "{}", element.name());
            }
        }

        /// What lies behind the weights is the optimiser's.
        #[test]
        fn no_other_word_is_touched(dim in 0_usize..20) {
            for element in ALL {
                let mut words = vec![7; element.words(dim) + 3];
                element.encode(&vec![1.0; dim], &mut words);
                prop_assert_eq!(&words[element.words(dim)..], &[7; 3]);
                element.encode_stochastic(&vec![0.3; dim], &mut words, Noise::new(1, 2, 3).row(4));
                prop_assert_eq!(&words[element.words(dim)..], &[7; 3]);
            }
        }
    }
}
