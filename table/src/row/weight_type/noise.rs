//! Random words for stochastic rounding. A word is a function of (seed, table, step, row, lane) alone. A run is
//! therefore the same for any number of servers, threads and vector lanes (invariant DP-6).

use crate::key::key_of;

/// Odd constants from the golden ratio. Their multiples are spread evenly over all words.
const GOLDEN_64: u64 = 0x9E37_79B9_7F4A_7C15;
const GOLDEN_32: u32 = 0x9E37_79B9;

/// The part of the random words that all rows of a push share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepNoise {
    salt: u64,
}

/// The random words of one row and push.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNoise {
    first: u32,
    second: u32,
}

impl StepNoise {
    pub(crate) fn new(seed: u64, table: u32, step: u64) -> Self {
        let table = key_of(seed.wrapping_add(u64::from(table).wrapping_mul(GOLDEN_64)));
        Self { salt: key_of(table.wrapping_add(step.wrapping_mul(GOLDEN_64))) }
    }

    #[inline(always)]
    pub(crate) fn row(self, key: u64) -> RowNoise {
        let bits = key_of(key ^ self.salt);
        RowNoise { first: bits as u32, second: (bits >> 32) as u32 }
    }
}

impl RowNoise {
    /// Returns 32 random bits. The function uses two 32-bit multiplications, which compilers vectorise. They do not
    /// vectorise 64-bit generators or generators with state.
    #[inline(always)]
    pub(crate) fn lane(self, lane: u32) -> u32 {
        let mut word = self.first.wrapping_add(lane.wrapping_mul(GOLDEN_32));
        word = (word ^ (word >> 16)).wrapping_mul(0x7FEB_352D);
        word = (word ^ (word >> 15) ^ self.second).wrapping_mul(0x846C_A68B);
        word ^ (word >> 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The low bits of the words, as fractions. They decide how a weight is rounded.
    fn low_bits(words: impl Iterator<Item = u32>) -> Vec<f64> {
        words.map(|word| f64::from(word & 0xFFFF) / 65536.0).collect()
    }

    /// The mean is 1/2, and consecutive words are uncorrelated along lanes, rows and steps.
    #[test]
    fn words_look_random_along_lanes_rows_and_steps() {
        const COUNT: u64 = 40_000;
        let row = StepNoise::new(1, 2, 3).row(4);
        let sequences = [
            low_bits((0..COUNT as u32).map(|lane| row.lane(lane))),
            low_bits((0..COUNT).map(|id| StepNoise::new(1, 2, 3).row(key_of(id)).lane(5))),
            low_bits((0..COUNT).map(|step| StepNoise::new(1, 2, step).row(4).lane(5))),
            low_bits((0..COUNT as u32).map(|table| StepNoise::new(1, table, 3).row(4).lane(5))),
            low_bits((0..COUNT).map(|seed| StepNoise::new(seed, 2, 3).row(4).lane(5))),
        ];
        for (which, values) in sequences.iter().enumerate() {
            let mean = values.iter().sum::<f64>() / COUNT as f64;
            // The standard error of the mean of a uniform number: 0.2887 / 200.
            assert!((mean - 0.5).abs() < 0.006, "{which}: mean {mean}");
            let products = values.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5));
            let correlation = products.sum::<f64>() / COUNT as f64 * 12.0;
            assert!(correlation.abs() < 0.02, "{which}: correlation {correlation}");
        }
    }

    #[test]
    fn each_bit_is_set_half_of_the_time() {
        let words: Vec<u32> = (0..4000)
            .flat_map(|step| {
                let row = StepNoise::new(9, 0, step).row(7);
                (0..4).map(move |lane| row.lane(lane))
            })
            .collect();
        for bit in 0..32 {
            let set = words.iter().filter(|word| *word >> bit & 1 == 1).count();
            // 8000 are expected, with standard deviation 63.
            assert!((7700..8300).contains(&set), "bit {bit}: {set}");
        }
    }

    /// Pinned: a change of these words changes every model trained with narrow rows.
    #[test]
    fn words_are_pinned() {
        let row = StepNoise::new(1, 2, 3).row(key_of(4));
        assert_eq!([0, 1, 2].map(|lane| row.lane(lane)), [1_630_038_491, 1_389_134_289, 1_070_430_399]);
    }
}
