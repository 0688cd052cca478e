//! The rows of each batch.

/// Samples per batch.
pub(crate) const SAMPLES: usize = 4096;
/// Ids per sample.
const FEATURES: usize = 26;
/// The Zipf exponent, as in click logs.
const EXPONENT: f64 = 1.05;

/// Numbers of rows by rank: the inverse of the continuous Zipf distribution.
pub(crate) struct Zipf {
    rows: usize,
    state: u64,
}

impl Zipf {
    pub(crate) fn new(rows: usize) -> Self {
        Self { rows, state: 1 }
    }

    /// The distinct rows of one batch, in arbitrary order.
    pub(crate) fn batch(&mut self) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..SAMPLES * FEATURES).map(|_| self.next()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn next(&mut self) -> u32 {
        // splitmix64
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        let last = (self.rows as f64 + 1.0).powf(1.0 - EXPONENT);
        let rank = (1.0 + uniform * (last - 1.0)).powf(1.0 / (1.0 - EXPONENT)) as usize;
        // The most popular rows are not the first rows. The map is one-to-one unless `rows` is a multiple of the prime.
        let number = (rank.clamp(1, self.rows) as u64).wrapping_mul(2_654_435_761) % self.rows as u64;
        number as u32
    }
}
