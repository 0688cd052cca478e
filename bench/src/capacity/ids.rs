//! The rows of each batch.

use crate::args::IdLaw;

pub(super) const SAMPLES: usize = 4096;
const FEATURES: usize = 26;
/// The Zipf exponent, as in click logs.
const EXPONENT: f64 = 1.05;

/// Draws the rows of batches, the same ones in each run.
pub(super) struct RowDraws {
    law: IdLaw,
    rows: usize,
    state: u64,
}

impl RowDraws {
    pub(super) fn new(law: IdLaw, rows: usize) -> Self {
        Self { law, rows, state: 1 }
    }

    /// The numbers of the distinct rows of one batch, in arbitrary order.
    pub(super) fn next_batch(&mut self) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..SAMPLES * FEATURES).map(|_| self.next()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn next(&mut self) -> u32 {
        let uniform = self.uniform();
        let rank = match self.law {
            IdLaw::Uniform => return (uniform * self.rows as f64) as u32,
            // The inverse of the continuous Zipf distribution.
            IdLaw::Zipf => {
                let last = (self.rows as f64 + 1.0).powf(1.0 - EXPONENT);
                (1.0 + uniform * (last - 1.0)).powf(1.0 / (1.0 - EXPONENT)) as u64
            }
        };
        // The most popular rows are not the first rows. The map is one-to-one unless `rows` is a multiple of the prime.
        (rank.clamp(1, self.rows as u64).wrapping_mul(2_654_435_761) % self.rows as u64) as u32
    }

    /// From 0, below 1 (SplitMix64).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_distinct_rows_of_the_table_and_zipf_repeats_more_than_uniform() {
        let rows = |law| {
            let mut draws = RowDraws::new(law, 50_000);
            let batch = draws.next_batch();
            assert!(batch.is_sorted_by(|one, other| one < other) && batch.iter().all(|row| *row < 50_000));
            assert_ne!(draws.next_batch(), batch);
            batch.len()
        };
        // 50,000 × (1 − e^(−106,496 ÷ 50,000)) rows are expected.
        assert!((43_700..44_400).contains(&rows(IdLaw::Uniform)));
        assert!(rows(IdLaw::Zipf) < 25_000);
    }
}
