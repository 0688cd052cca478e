//! Rows of a product, a block at a time.
//!
//! A library sums a product in an order that depends on its shape. Whether a batch goes through the network chunk by chunk or
//! layer by layer, its products are made of the same blocks of rows in the same order, so the results have the same bits.

/// Samples of a block. With fewer, the products copy the weights more often; with more, a block leaves the cache.
pub const CHUNK: usize = 1024;

/// So many rows, of which a product takes as many at a time.
#[derive(Clone, Copy, Debug)]
pub struct SampleBlocks(usize);

impl SampleBlocks {
    pub const TRAINING: Self = Self(CHUNK);

    #[must_use]
    pub fn new(rows: usize) -> Self {
        Self(rows)
    }

    /// First row and number of rows of each block.
    pub fn row_ranges(self, rows: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..rows).step_by(self.0).map(move |start| (start, self.0.min(rows - start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_rows_once() {
        let ranges = |size, rows| SampleBlocks::new(size).row_ranges(rows).collect::<Vec<_>>();
        assert_eq!(ranges(4, 10), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(ranges(4, 4), [(0, 4)]);
        assert!(ranges(4, 0).is_empty());
    }
}
