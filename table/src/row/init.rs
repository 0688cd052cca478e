//! The first weights of a row: a function of (seed, table, id) alone. The order of creation, threads, server count and
//! eviction therefore never change a model (invariant DP-1).

use std::f64::consts::TAU;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A truncated normal draws again beyond this many standard deviations.
const BOUND: f64 = 2.0;

/// How the weights of a new row are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Initializer {
    /// All weights are zero.
    Zero,
    /// Uniform in `[-bound, bound)`, in multiples of `bound / 2²³`.
    Uniform {
        /// Half width of the range.
        #[serde(default = "small")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        bound: f32,
    },
    /// Normal around zero.
    Normal {
        /// Standard deviation.
        #[serde(default = "small")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        deviation: f32,
    },
    /// Normal around zero. A value beyond two standard deviations is drawn again.
    TruncatedNormal {
        /// Standard deviation before the truncation.
        #[serde(default = "small")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        deviation: f32,
    },
    /// Uniform with the bound √(6 / (rows + dim)) (Glorot and Bengio 2010): a lookup is a layer with one input per row.
    Xavier {
        /// Rows that the table is expected to hold.
        #[serde(default = "million")]
        #[schemars(range(min = 1.0, max = 1e15))]
        rows: f32,
    },
    /// All weights have one value.
    Constant {
        /// First value of every weight.
        #[schemars(range(min = -1000.0, max = 1000.0))]
        value: f32,
    },
}

fn small() -> f32 {
    0.01
}

fn million() -> f32 {
    1e6
}

/// The row whose first weights are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSeed {
    pub seed: u64,
    pub table: u32,
    pub id: u64,
}

impl Initializer {
    /// Writes the first weights of a row. A wider row starts with the weights of a narrower one.
    #[inline]
    pub fn fill(&self, row: RowSeed, weights: &mut [f32]) {
        match *self {
            Self::Zero => weights.fill(0.0),
            Self::Constant { value } => weights.fill(value),
            Self::Uniform { bound } => fill_uniform(row, weights, bound),
            Self::Xavier { rows } => {
                let fans = f64::from(rows) + weights.len() as f64;
                fill_uniform(row, weights, (6.0 / fans).sqrt() as f32);
            }
            Self::Normal { deviation } => fill_by_four(weights, |block| {
                four_normals(row, block).map(|value| (f64::from(deviation) * value) as f32)
            }),
            Self::TruncatedNormal { deviation } => fill_by_four(weights, |block| {
                four_truncated(row, block).map(|value| (f64::from(deviation) * value) as f32)
            }),
        }
    }

    pub(crate) fn problem(&self) -> Option<String> {
        let (name, value) = match *self {
            Self::Zero => return None,
            Self::Constant { value } if value.is_finite() => return None,
            Self::Constant { value } => return Some(format!("constant value is {value}; expected a finite number")),
            Self::Uniform { bound } => ("uniform bound", bound),
            Self::Normal { deviation } => ("normal deviation", deviation),
            Self::TruncatedNormal { deviation } => ("truncated normal deviation", deviation),
            Self::Xavier { rows } => ("xavier rows", rows),
        };
        let good = value.is_finite() && value >= 0.0;
        (!good).then(|| format!("{name} is {value}; expected a finite number of at least 0"))
    }
}

#[inline]
fn fill_uniform(row: RowSeed, weights: &mut [f32], bound: f32) {
    fill_by_four(weights, |block| words(row, block).map(|word| bound * signed_unit(word)));
}

#[inline]
fn fill_by_four(weights: &mut [f32], values: impl Fn(u32) -> [f32; 4]) {
    for (block, four) in weights.chunks_mut(4).enumerate() {
        four.copy_from_slice(&values(block as u32)[..four.len()]);
    }
}

#[inline]
fn words(row: RowSeed, block: u32) -> [u32; 4] {
    let key = [row.seed as u32, (row.seed >> 32) as u32];
    philox4x32([block, row.table, row.id as u32, (row.id >> 32) as u32], key)
}

#[inline]
fn four_normals(row: RowSeed, block: u32) -> [f64; 4] {
    let words = words(row, block);
    let ([a, b], [c, d]) = (normal_pair(words[0], words[1]), normal_pair(words[2], words[3]));
    [a, b, c, d]
}

/// Draws four values within two standard deviations. Each keeps its first draw within them. The counter holds the
/// number of the draw above the 16 bits of the block number, because a row has at most 2¹⁶ weights.
fn four_truncated(row: RowSeed, block: u32) -> [f64; 4] {
    const DRAWS: u32 = 1 << 5;
    let mut values = four_normals(row, block);
    for draw in 1..DRAWS {
        if values.iter().all(|value| value.abs() <= BOUND) {
            return values;
        }
        let stale = four_normals(row, block | draw << 16);
        for lane in 0..4 {
            values[lane] = if values[lane].abs() <= BOUND { values[lane] } else { stale[lane] };
        }
    }
    // One draw in 22 is repeated, so no machine ever gets here.
    values.map(|value| value.clamp(-BOUND, BOUND))
}

/// The top 24 bits as a number in `[-1, 1)`. Every result is exact in f32.
#[inline]
fn signed_unit(word: u32) -> f32 {
    const HALF: f32 = (1_u32 << 23) as f32;
    ((word >> 8) as f32 - HALF) / HALF
}

/// The Box–Muller method (1958): two independent standard normals from two uniforms.
///
/// Logarithm, sine and cosine come from `libm`, so a model starts from the same rows on every machine. The platform's C
/// library may round differently.
#[inline]
fn normal_pair(first: u32, second: u32) -> [f64; 2] {
    const WORDS: f64 = 4_294_967_296.0;
    // The argument is in (0, 1], so the logarithm is finite.
    let radius = (-2.0 * libm::log((f64::from(first) + 1.0) / WORDS)).sqrt();
    let angle = TAU * (f64::from(second) / WORDS);
    [radius * libm::cos(angle), radius * libm::sin(angle)]
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The golden ratio and √3 − 1: the paper's Weyl increments of the key.
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1,
/// 2, 3" (SC 2011). It returns 128 random bits as a pure function of a 128-bit counter and a 64-bit key.
///
/// Four random words for one counter under one key.
#[inline]
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 1..ROUNDS {
        counter = round(counter, key);
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    round(counter, key)
}

#[inline]
fn round(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
    let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
    [high(second) ^ counter[1] ^ key[0], second as u32, high(first) ^ counter[3] ^ key[1], first as u32]
}

#[inline]
fn high(product: u64) -> u32 {
    (product >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drawn(init: Initializer, row: RowSeed, dim: usize) -> Vec<f32> {
        let mut weights = vec![f32::NAN; dim];
        init.fill(row, &mut weights);
        weights
    }

    fn row() -> impl Strategy<Value = RowSeed> {
        (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(seed, table, id)| RowSeed { seed, table, id })
    }

    fn moments(init: Initializer) -> (f64, f64) {
        let values: Vec<f64> =
            (0..4000).flat_map(|id| drawn(init, RowSeed { seed: 7, table: 1, id }, 16)).map(f64::from).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count)
    }

    proptest! {
        #[test]
        fn uniform_stays_inside_its_half_open_range(row in row(), bound in 1e-6_f32..1e6) {
            let values = drawn(Initializer::Uniform { bound }, row, 33);
            prop_assert!(values.iter().all(|value| (-bound..bound).contains(value)), "{values:?}");
        }

        #[test]
        fn a_longer_row_begins_with_the_shorter_one(row in row(), short in 0_usize..40, more in 0_usize..40) {
            let inits = [
                Initializer::Uniform { bound: 0.5 },
                Initializer::Normal { deviation: 2.0 },
                Initializer::TruncatedNormal { deviation: 2.0 },
                Initializer::Constant { value: -0.25 },
            ];
            for init in inits {
                let long = drawn(init, row, short + more);
                prop_assert_eq!(&drawn(init, row, short)[..], &long[..short]);
                prop_assert!(long.iter().all(|value| value.is_finite()));
            }
        }

        #[test]
        fn a_truncated_normal_stays_within_two_deviations_and_is_the_normal_there(row in row(), id in 0_u64..1000) {
            let row = RowSeed { id, ..row };
            let cut = drawn(Initializer::TruncatedNormal { deviation: 0.5 }, row, 64);
            let whole = drawn(Initializer::Normal { deviation: 0.5 }, row, 64);
            for index in 0..64 {
                prop_assert!(cut[index].abs() <= 1.0);
                prop_assert!(whole[index].abs() > 1.0 || whole[index] == cut[index]);
            }
        }

        #[test]
        fn xavier_is_uniform_with_its_bound(row in row(), rows in 0.0_f32..1e9, dim in 1_usize..40) {
            let bound = (6.0 / (f64::from(rows) + dim as f64)).sqrt() as f32;
            let uniform = drawn(Initializer::Uniform { bound }, row, dim);
            prop_assert_eq!(drawn(Initializer::Xavier { rows }, row, dim), uniform);
        }

        #[test]
        fn seed_table_and_id_each_matter(row in row(), bit in 0_u32..32) {
            let init = Initializer::Uniform { bound: 1.0 };
            let base = drawn(init, row, 16);
            prop_assert_ne!(&base, &drawn(init, RowSeed { seed: row.seed ^ (1 << (2 * bit)), ..row }, 16));
            prop_assert_ne!(&base, &drawn(init, RowSeed { table: row.table ^ (1 << bit), ..row }, 16));
            prop_assert_ne!(&base, &drawn(init, RowSeed { id: row.id ^ (1 << (2 * bit)), ..row }, 16));
        }
    }

    #[test]
    fn moments_are_those_of_the_distribution() {
        // With 64,000 draws the standard error of the mean is deviation / 253.
        let (mean, variance) = moments(Initializer::Normal { deviation: 0.5 });
        assert!(mean.abs() < 0.01 && (variance - 0.25).abs() < 0.01, "normal: mean {mean}, variance {variance}");
        // A normal truncated at two standard deviations has 0.774 of its variance.
        let (mean, variance) = moments(Initializer::TruncatedNormal { deviation: 0.5 });
        assert!(mean.abs() < 0.01 && (variance - 0.1934).abs() < 0.005, "cut: mean {mean}, variance {variance}");
        let (mean, variance) = moments(Initializer::Uniform { bound: 0.5 });
        assert!(mean.abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.003, "uniform: {mean}, variance {variance}");
    }

    /// Pinned: a change of these values changes every model trained from a seed.
    #[test]
    fn first_values_are_pinned() {
        let row = RowSeed { seed: 0, table: 0, id: 0 };
        // The words 6627e8d5 e169c58d bc57ac4c are from the generator's known answers.
        let uniform = drawn(Initializer::Uniform { bound: 1.0 }, row, 3);
        assert_eq!(uniform, [-0.201_907_16, 0.761_040_33, 0.471_425_53]);
        let words = [0x6627_e8d5_u32, 0xe169_c58d];
        let unit = words.map(|word| f64::from(word) / 4_294_967_296.0);
        let radius = (-2.0 * unit[0].ln()).sqrt();
        let normal = drawn(Initializer::Normal { deviation: 1.0 }, row, 2);
        assert!((f64::from(normal[0]) - radius * (TAU * unit[1]).cos()).abs() < 1e-6, "{normal:?}");
        assert!((f64::from(normal[1]) - radius * (TAU * unit[1]).sin()).abs() < 1e-6, "{normal:?}");
    }

    #[test]
    fn the_largest_word_stays_below_one_and_the_smallest_is_minus_one() {
        assert_eq!(signed_unit(0), -1.0);
        assert!(signed_unit(u32::MAX) < 1.0);
        assert!(normal_pair(0, 0)[0].is_finite());
    }

    /// The three `philox4x32 10` lines of Random123's `kat_vectors`.
    #[test]
    fn known_answers_of_random123() {
        let known = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in known {
            assert_eq!(philox4x32(counter, key), answer, "counter {counter:x?} key {key:x?}");
        }
    }
}
