//! A chunk through the feed-forward network and back.

use super::layer::StepParts;
use super::stack::LayerStack;
use super::{BatchShare, ChunkProgress, ChunkStep};
use crate::model::ModelError;
use crate::model::networks::Ffnn;
use crate::model::weights::Matrix;

#[derive(Debug)]
pub(in crate::model) struct FfnnForwardBackward {
    /// `[chunk, numeric + ΣD]`.
    input: Matrix,
    /// `[chunk, ΣD]`: the slopes of the numeric inputs are not needed. `None` if there are only numeric inputs.
    d_input: Option<Matrix>,
    numeric: usize,
    layers: LayerStack,
}

impl FfnnForwardBackward {
    pub(super) fn new(ffnn: &Ffnn, numeric: usize, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let inputs = ffnn.layers.input_count();
        let input = Matrix::aligned(parts.rows, inputs)?;
        let d_input = (inputs > numeric).then(|| Matrix::aligned(parts.rows, inputs - numeric)).transpose()?;
        Ok(Self { input, d_input, numeric, layers: LayerStack::new(&ffnn.layers, true, parts)? })
    }
}

impl ChunkStep for FfnnForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        self.layers.refresh()
    }

    fn chunk(&mut self, mut share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError> {
        let Self { input, d_input, numeric, layers } = self;
        let rows = share.samples;
        input.put_side_by_side(rows, (share.numeric, *numeric), share.embeddings);
        let loss = layers.through_loss(&[], (input, d_input.as_ref()), &mut share, progress)?;
        let Some(d_input) = d_input.as_ref().filter(|_| !progress.ends_at_outputs()) else { return Ok(loss) };
        d_input.copy_from_column(0, rows, share.gradients);
        Ok(loss)
    }
}
