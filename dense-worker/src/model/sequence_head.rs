//! What networks of sequences have in common: an MLP over numeric values, vectors, and what the network makes of each sequence.

use tch::Tensor;

use super::dropout::Dropout;
use super::mlp::{Mlp, Weights, widths};
use super::shape::InputShape;
use super::{ModelError, int};

/// A score that leaves nothing of a position after a softmax, and stays finite.
pub(super) const NEVER: f64 = -1e30;

/// The MLP, and where the vectors are.
#[derive(Debug)]
pub(super) struct SequenceHead {
    layers: Mlp,
    /// ΣD of the vectors, without the sequences.
    vectors: usize,
}

impl SequenceHead {
    /// `outputs` are the values that the network makes of all sequences of a sample.
    pub(super) fn new(
        shape: &InputShape,
        outputs: usize,
        hidden: &[i64],
        weights: &mut Weights,
    ) -> Result<Self, ModelError> {
        let inputs = shape.numeric + shape.vectors() + outputs;
        let layers = Mlp::logit("layers", inputs, &widths(hidden)?, weights)?;
        Ok(Self { layers, vectors: shape.vectors() })
    }

    /// `[batch, numeric]`, `[batch, width]` and `[batch, outputs]` of each sequence to `[batch, 1]`.
    pub(super) fn forward(
        &self,
        numeric: &Tensor,
        input: &Tensor,
        sequences: impl Iterator<Item = Result<Tensor, ModelError>>,
        dropout: Option<&mut Dropout>,
    ) -> Result<Tensor, ModelError> {
        let mut parts = vec![numeric.shallow_clone(), input.f_narrow(1, 0, int(self.vectors))?];
        for sequence in sequences {
            parts.push(sequence?);
        }
        self.layers.forward(&Tensor::f_cat(&parts, 1)?, dropout)
    }
}
