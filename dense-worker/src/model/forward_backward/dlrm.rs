//! A chunk through DLRM ([`crate::model::networks::dlrm`]) and back.

use zagros_zip::ZipEq;

use super::blocks::SampleBlocks;
use super::layer::StepParts;
use super::pairs::{PairProducts, PairsPlace};
use super::stack::{InputSlopes, LayerStack};
use super::{BatchShare, ChunkProgress, ChunkStep};
use crate::model::ModelError;
use crate::model::networks::Dlrm;
use crate::model::weights::Matrix;

#[derive(Debug)]
pub(in crate::model) struct DlrmForwardBackward {
    bottom: Option<BottomMlp>,
    pairs: PairProducts,
    /// `[chunk, D + pairs]`: the bottom's output, if there is a bottom, and the dot products.
    input: Matrix,
    d_input: Matrix,
    top: LayerStack,
}

#[derive(Debug)]
struct BottomMlp {
    numeric: Matrix,
    stack: LayerStack,
    dim: usize,
}

impl DlrmForwardBackward {
    pub(super) fn new(dlrm: &Dlrm, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let dim = dlrm.dim;
        let bottom = match &dlrm.bottom {
            Some(mlp) => {
                let numeric = Matrix::dense(parts.rows, mlp.input_count())?;
                Some(BottomMlp { numeric, stack: LayerStack::new(mlp, false, parts)?, dim })
            }
            None => None,
        };
        let pairs = PairProducts::new(dlrm.features + usize::from(bottom.is_some()), dim);
        let inputs = pairs.count() + if bottom.is_some() { dim } else { 0 };
        let (input, d_input) = (Matrix::aligned(parts.rows, inputs)?, Matrix::aligned(parts.rows, inputs)?);
        let top = LayerStack::new(&dlrm.top, true, parts)?;
        Ok(Self { bottom, pairs, input, d_input, top })
    }
}

impl ChunkStep for DlrmForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        self.bottom.as_mut().map_or(Ok(()), |bottom| bottom.stack.refresh())?;
        self.top.refresh()
    }

    fn chunk(&mut self, mut share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError> {
        let Self { bottom, pairs, input, d_input, top } = self;
        let (rows, place) = (share.samples, PairsPlace { stride: input.stride, offset: input.columns - pairs.count() });
        let dense = match bottom {
            Some(bottom) => bottom.forward(share.numeric, rows, progress.blocks, input)?,
            None => &[],
        };
        pairs.forward(dense, share.embeddings, input.values_mut(rows), place);
        let loss = top.through_loss(&[], (input, Some(d_input)), &mut share, progress)?;
        if progress.ends_at_outputs() {
            return Ok(loss);
        }
        let slopes = d_input.values(rows);
        match bottom {
            Some(bottom) => bottom.backward(pairs, (share.embeddings, share.gradients), (slopes, place), progress)?,
            None => pairs.backward((&[], share.embeddings), (slopes, place), &mut [], share.gradients),
        }
        Ok(loss)
    }
}

impl BottomMlp {
    /// Forward through the bottom. Returns its output and copies it to the start of each row of `input`.
    fn forward(
        &mut self,
        numeric: &[f32],
        rows: usize,
        by: SampleBlocks,
        input: &mut Matrix,
    ) -> Result<&[f32], ModelError> {
        let stride = input.stride;
        self.numeric.values_mut(rows).copy_from_slice(numeric);
        self.stack.forward(&self.numeric.rows(rows)?, rows, by, None)?;
        let output = self.stack.output(rows);
        for (into, vector) in input.values_mut(rows).chunks_exact_mut(stride).zip_eq(output.chunks_exact(self.dim)) {
            into[..self.dim].copy_from_slice(vector);
        }
        Ok(output)
    }

    fn backward(
        &mut self,
        pairs: &mut PairProducts,
        (embeddings, gradients): (&[f32], &mut [f32]),
        (slopes, place): (&[f32], PairsPlace),
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let rows = slopes.len() / place.stride;
        let (dense, d_dense) = self.stack.output_and_slopes(rows);
        for (into, slopes) in d_dense.chunks_exact_mut(self.dim).zip_eq(slopes.chunks_exact(place.stride)) {
            into.copy_from_slice(&slopes[..self.dim]);
        }
        pairs.backward((dense, embeddings), (slopes, place), d_dense, gradients);
        self.stack.backward(&self.numeric.rows(rows)?, rows, progress, InputSlopes::Unread)
    }
}
