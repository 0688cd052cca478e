//! Rows of a product, a block at a time.
//!
//! A library sums a product in an order that depends on its shape. Whether a batch goes through the network chunk by chunk or
//! layer by layer, its products are made of the same blocks of rows in the same order, so the results have the same bits.

use tch::Tensor;

use super::CHUNK;
use crate::model::{ModelError, int};

#[derive(Clone, Copy, Debug)]
pub(super) struct SampleBlocks(usize);

impl SampleBlocks {
    pub(super) const TRAINING: Self = Self(CHUNK);

    pub(super) fn new(rows: usize) -> Self {
        Self(rows)
    }

    /// Calls `work` with each block's rows of the matrices, which have equally many rows, and its number.
    pub(super) fn for_each_block<const N: usize>(
        self,
        matrices: [&Tensor; N],
        mut work: impl FnMut([&mut Tensor; N], usize) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let rows = matrices.first().map_or(0, |matrix| usize::try_from(matrix.size()[0]).unwrap_or(0));
        if rows <= self.0 {
            return work(matrices.map(Tensor::shallow_clone).each_mut(), 0);
        }
        for (block, (start, count)) in self.row_ranges(rows).enumerate() {
            let part = |matrix: &Tensor| matrix.f_narrow(0, int(start), int(count));
            let mut parts = Vec::with_capacity(N);
            for matrix in matrices {
                parts.push(part(matrix)?);
            }
            let lost = |_| ModelError::Shape { what: "a block lost a matrix" };
            let mut parts: [Tensor; N] = parts.try_into().map_err(lost)?;
            work(parts.each_mut(), block)?;
        }
        Ok(())
    }

    pub(super) fn row_ranges(self, rows: usize) -> impl Iterator<Item = (usize, usize)> {
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
