//! Random words for stochastic rounding: a function of (seed, table, step, row, lane) alone, so that a run is the same
//! on any number of servers and threads and with vectors of any width (invariant DP-6).

use crate::key::key_of;

/// Odd constants of the golden ratio: multiples of them spread over all words.
const GOLDEN_64: u64 = 0x9E37_79B9_7F4A_7C15;
const GOLDEN_32: u32 = 0x9E37_79B9;

/// What the rows of one push have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    salt: u64,
}

/// The random words of one row and push.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNoise {
    first: u32,
    second: u32,
}

impl Noise {
    pub(crate) fn new(seed: u64, table: u32, step: u64) -> Self {
        let table = key_of(seed.wrapping_add(u64::from(table).wrapping_mul(GOLDEN_64)));
        Self { salt: key_of(table.wrapping_add(step.wrapping_mul(GOLDEN_64))) }
    }

    /// The words of the row with this key.
    #[inline(always)]
    pub(crate) fn row(self, key: u64) -> RowNoise {
        let bits = key_of(key ^ self.salt);
        RowNoise { first: bits as u32, second: (bits >> 32) as u32 }
    }
}

impl RowNoise {
    /// A word of 32 random bits. Two multiplications of 32 bits, which vectorise, as no generator of 64 bits or with a
    /// state of its own does.
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

    /// The low bits decide how a weight is rounded.
    fn low_bits(words: impl Iterator<Item = u32>) -> Vec<f64> {
        words.map(|word| f64::from(word & 0xFFFF) / 65536.0).collect()
    }

    /// Mean of 1/2 and no correlation from one to the next, in every direction that a counter can move.
    #[test]
    fn words_look_random_along_lanes_rows_and_steps() {
        const COUNT: u64 = 40_000;
        let row = Noise::new(1, 2, 3).row(4);
        let sequences = [
            low_bits((0..COUNT as u32).map(|lane| row.lane(lane))),
            low_bits((0..COUNT).map(|id| Noise::new(1, 2, 3).row(key_of(id)).lane(5))),
            low_bits((0..COUNT).map(|step| Noise::new(1, 2, step).row(4).lane(5))),
            low_bits((0..COUNT as u32).map(|table| Noise::new(1, table, 3).row(4).lane(5))),
            low_bits((0..COUNT).map(|seed| Noise::new(seed, 2, 3).row(4).lane(5))),
        ];
        for (which, values) in sequences.iter().enumerate() {
            let mean = values.iter().sum::<f64>() / COUNT as f64;
            // Deviation of a uniform number over that of the mean of so many: 0.2887 / 200.
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
                let row = Noise::new(9, 0, step).row(7);
                (0..4).map(move |lane| row.lane(lane))
            })
            .collect();
        for bit in 0..32 {
            let set = words.iter().filter(|word| *word >> bit & 1 == 1).count();
            // 8000 expected, deviation 63.
            assert!((7700..8300).contains(&set), "bit {bit}: {set}");
        }
    }

    /// Pinned: a change here changes every model trained with narrow rows.
    #[test]
    fn words_are_pinned() {
        let row = Noise::new(1, 2, 3).row(key_of(4));
        assert_eq!([0, 1, 2].map(|lane| row.lane(lane)), [1_630_038_491, 1_389_134_289, 1_070_430_399]);
    }
}
