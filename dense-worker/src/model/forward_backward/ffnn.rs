//! A chunk through the feed-forward network and back.

use tch::Tensor;

use super::matrix::Matrix;
use super::stack::Stack;
use super::{BatchShare, CHUNK, ChunkProgress, ChunkStep};
use crate::model::ModelError;
use crate::model::dropout::Dropout;
use crate::model::ffnn::Ffnn;

#[derive(Debug)]
pub(in crate::model) struct FfnnForwardBackward {
    /// `[chunk, numeric + ΣD]`.
    input: Matrix,
    /// `[chunk, ΣD]`: the slopes of the numeric inputs are not needed. `None` if there are only numeric inputs.
    d_input: Option<Matrix>,
    numeric: usize,
    layers: Stack,
}

impl FfnnForwardBackward {
    /// `gradients` are those of the variables, in their order.
    pub(super) fn new(
        ffnn: &Ffnn,
        numeric: usize,
        gradients: &mut impl Iterator<Item = Tensor>,
    ) -> Result<Self, ModelError> {
        let inputs = ffnn.layers.inputs();
        let input = Matrix::aligned(CHUNK, inputs)?;
        let d_input = (inputs > numeric).then(|| Matrix::aligned(CHUNK, inputs - numeric)).transpose()?;
        Ok(Self { input, d_input, numeric, layers: Stack::new(&ffnn.layers, CHUNK, true, gradients)? })
    }
}

impl ChunkStep for FfnnForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        self.layers.refresh()
    }

    fn chunk(
        &mut self,
        mut share: BatchShare<'_>,
        progress: &mut ChunkProgress<'_>,
        dropout: &mut Dropout,
    ) -> Result<f64, ModelError> {
        let Self { input, d_input, numeric, layers } = self;
        let rows = share.samples;
        input.put_side_by_side(rows, (share.numeric, *numeric), share.embeddings);
        let loss = layers.through_loss((input, d_input.as_ref()), &mut share, progress, dropout)?;
        let Some(d_input) = d_input else { return Ok(loss) };
        d_input.copy_from_column(0, rows, share.gradients);
        Ok(loss)
    }
}
