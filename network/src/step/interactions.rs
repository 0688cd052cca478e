//! DLRM's interactions: the dot products of all pairs of vectors, and the vector of the numeric values itself.

use super::pairs::{PairProducts, PairsPlace};
use super::{BlockStep, BlockValues, ChunkContext, ReadValue, SlopeUse};
use crate::StepError;
use crate::step::join::put_rows;

#[derive(Debug)]
pub(super) struct InteractionsStep {
    /// The vector of the numeric values.
    dense: Option<ReadValue>,
    pairs: PairProducts,
    dim: usize,
    /// Of the feature vectors.
    vectors: SlopeUse,
}

impl InteractionsStep {
    /// So many vectors, with the dense one, of `dim` values.
    pub(super) fn new(dense: Option<ReadValue>, (count, dim): (usize, usize), vectors: SlopeUse) -> Self {
        Self { dense, pairs: PairProducts::new(count, dim), dim, vectors }
    }

    fn place(&self, own: &BlockValues) -> PairsPlace {
        PairsPlace { stride: own.output.stride, offset: own.output.columns - self.pairs.count() }
    }
}

impl BlockStep for InteractionsStep {
    fn forward(
        &mut self,
        before: &[BlockValues],
        own: &mut BlockValues,
        context: &mut ChunkContext<'_>,
    ) -> Result<(), StepError> {
        let (rows, place) = (context.rows, self.place(own));
        let dense = match &self.dense {
            Some(dense) => {
                let dense = dense.view(before, rows);
                put_rows(dense, own.output.view_mut(rows), false);
                dense.values
            }
            None => &[],
        };
        self.pairs.forward(dense, context.vectors, own.output.values_mut(rows), place);
        Ok(())
    }

    fn backward(
        &mut self,
        before: &mut [BlockValues],
        own: &mut BlockValues,
        context: &mut ChunkContext<'_>,
    ) -> Result<(), StepError> {
        let (rows, place) = (context.rows, self.place(own));
        let slopes = own.slopes.values(rows);
        debug_assert!(self.vectors != SlopeUse::Added, "the pairs alone read whole vectors");
        let Some(dense) = &self.dense else {
            self.pairs.backward((&[], context.vectors), (slopes, place), &mut [], context.d_vectors);
            return Ok(());
        };
        let (dim, pairs) = (self.dim, &mut self.pairs);
        dense.with_slopes(before, rows, |dense, d_dense| {
            let Some((d_dense, adds)) = d_dense else { return };
            let d_dense = d_dense.values;
            put_rows(own.slopes.view(rows).narrow_columns(0, dim), super::ViewMut::dense(d_dense, (rows, dim)), adds);
            pairs.backward((dense.values, context.vectors), (slopes, place), d_dense, context.d_vectors);
        });
        Ok(())
    }
}
