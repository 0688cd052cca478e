//! The matrix products of a layer, in f32 or in bf16, a block of rows at a time.
//!
//! A library sums a product in an order that depends on its shape. Whether a batch goes through the network chunk by chunk or
//! layer by layer, its products are made of the same blocks of rows in the same order, so the results have the same bits.

use zagros_zip::ZipEq;

use super::{StepBuilder, StepChunk};
use crate::matrix::{LINE, Matrix, View, ViewMut};
use crate::{ProductKernel, RoundedProducts, StepResult};

/// Samples of a block. With fewer, the products copy the weights more often; with more, a block leaves the cache.
pub const CHUNK: usize = 1024;

/// First row and number of rows of each block.
pub(super) fn row_blocks(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(CHUNK).map(move |start| (start, CHUNK.min(rows - start)))
}

#[derive(Debug)]
pub(super) struct LayerProducts {
    outputs: usize,
    inputs: usize,
    sum: SumMemory,
    rounded: Option<Box<dyn RoundedProducts>>,
}

/// Where the weight's gradient is while chunks add to it.
#[derive(Debug)]
enum SumMemory {
    /// In the gradient itself.
    Gradient,
    /// In a matrix of its own, whose rows start at cache lines: they are written a fifth faster. Nothing as large as a streamed layer
    /// stays after a batch.
    Aligned { sum: Option<Matrix>, stays: bool },
}

#[derive(Clone, Copy)]
pub(super) struct ProductContext<'a> {
    pub(super) kernel: &'a dyn ProductKernel,
    /// Whether earlier chunks of the batch left gradients.
    pub(super) earlier: bool,
    pub(super) last: bool,
}

impl ProductContext<'_> {
    /// `out` = a·b, or with `adds` that is added to it, by blocks of rows.
    pub(super) fn multiply_rows(self, a: View<'_>, b: View<'_>, mut out: ViewMut<'_>, adds: bool) -> StepResult {
        for (start, rows) in row_blocks(a.rows) {
            self.kernel.multiply(a.narrow_rows(start, rows), b, out.reborrow().narrow_rows(start, rows), adds)?;
        }
        Ok(())
    }

    /// Adds slopesᵀ·input, block by block, to that of earlier chunks.
    pub(super) fn add_gradient(self, slopes: View<'_>, input: View<'_>, mut sum: ViewMut<'_>) -> StepResult {
        for (block, (start, rows)) in row_blocks(slopes.rows).enumerate() {
            let (slopes, input) = (slopes.narrow_rows(start, rows), input.narrow_rows(start, rows));
            self.kernel.multiply(slopes.transposed(), input, sum.reborrow(), self.earlier || block > 0)?;
        }
        Ok(())
    }
}

impl LayerProducts {
    /// For a weight `[outputs, inputs]`; with `rounds`, in bf16.
    pub(super) fn new([outputs, inputs]: [usize; 2], rounds: bool, builder: &StepBuilder<'_>) -> StepResult<Self> {
        let rounded = rounds.then(|| builder.form.kernel.rounded([outputs, inputs], builder.form.rows)).transpose()?;
        let is_wide = inputs > LINE && !inputs.is_multiple_of(LINE);
        let sum = match rounded.is_none() && is_wide {
            false => SumMemory::Gradient,
            true => SumMemory::Aligned { sum: None, stays: !builder.form.is_streamed },
        };
        Ok(Self { outputs, inputs, sum, rounded })
    }

    /// Weights of `[outputs, inputs]`.
    pub(super) fn weight_count(&self) -> usize {
        self.outputs * self.inputs
    }

    /// Reads the changed weight. Call it before each batch.
    pub(super) fn refresh(&mut self, weight: &[f32]) -> StepResult {
        self.rounded.as_mut().map_or(Ok(()), |rounded| rounded.refresh(weight))
    }

    /// `output` = `input`·Wᵀ.
    pub(super) fn forward(
        &mut self,
        weight: &[f32],
        input: View<'_>,
        output: ViewMut<'_>,
        context: ProductContext<'_>,
    ) -> StepResult {
        match &mut self.rounded {
            None => {
                let weight = View::dense(weight, (self.outputs, self.inputs));
                context.multiply_rows(input, weight.transposed(), output, false)
            }
            Some(rounded) => rounded.forward(input, output),
        }
    }

    /// Adds slopesᵀ·input to that of earlier chunks. After the last chunk, `gradient` holds the whole sum. `input` is that
    /// of the last [`Self::forward`].
    pub(super) fn weight_gradient(
        &mut self,
        slopes: View<'_>,
        input: View<'_>,
        gradient: &mut [f32],
        context: ProductContext<'_>,
    ) -> StepResult {
        if let Some(rounded) = &mut self.rounded {
            return rounded.weight_gradient(slopes, gradient, context.earlier);
        }
        let (outputs, inputs) = (self.outputs, self.inputs);
        let SumMemory::Aligned { sum: memory, stays } = &mut self.sum else {
            return context.add_gradient(slopes, input, ViewMut::dense(gradient, (outputs, inputs)));
        };
        let sum = memory.get_or_insert_with(|| Matrix::aligned(outputs, inputs));
        context.add_gradient(slopes, input, sum.view_mut(outputs))?;
        if context.last {
            let stride = sum.stride;
            for (into, row) in gradient.chunks_exact_mut(inputs).zip_eq(sum.values(outputs).chunks_exact(stride)) {
                into.copy_from_slice(&row[..inputs]);
            }
            if !*stays {
                *memory = None;
            }
        }
        Ok(())
    }

    /// `d_input` = slopes·W, or with `adds` that is added to it, with the slopes of the last [`Self::weight_gradient`], for the last
    /// inputs: as many as `d_input` has columns.
    pub(super) fn input_gradient(
        &mut self,
        weight: &[f32],
        slopes: View<'_>,
        d_input: ViewMut<'_>,
        adds: bool,
        context: ProductContext<'_>,
    ) -> StepResult {
        if let Some(rounded) = &mut self.rounded {
            return rounded.input_gradient(d_input, adds);
        }
        let weight = View::dense(weight, (self.outputs, self.inputs));
        let weight = weight.narrow_columns(self.inputs - d_input.columns, d_input.columns);
        context.multiply_rows(slopes, weight, d_input, adds)
    }
}

impl<'a> StepChunk<'a> {
    pub(super) fn products(&self) -> ProductContext<'a> {
        ProductContext { kernel: self.kernel, earlier: self.earlier, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_rows_once() {
        let blocks = |rows| row_blocks(rows).collect::<Vec<_>>();
        assert_eq!(blocks(2 * CHUNK + 2), [(0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, 2)]);
        assert_eq!(blocks(CHUNK), [(0, CHUNK)]);
        assert!(blocks(0).is_empty());
    }
}
