//! What networks of sequences have in common: an MLP over numeric values, vectors, and what the network makes of each sequence.

use tch::Tensor;

use super::shape::InputShape;
use crate::model::layers::{LayerCalls, Mlp, WeightBuilder, parse_widths};
use crate::model::{ModelError, int};

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
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let inputs = shape.numeric + shape.vectors_width() + outputs;
        let layers = Mlp::logit("layers", inputs, &parse_widths(hidden)?, weights)?;
        Ok(Self { layers, vectors: shape.vectors_width() })
    }

    /// The vectors of a batch's input without the sequences, `[batch, width]` to `[batch, ΣD]`.
    pub(super) fn feature_vectors<'n>(
        &'n self,
        input: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        calls.part([input], |[input]| Ok(input.f_narrow(1, 0, int(self.vectors))?))
    }

    /// `[batch, numeric]`, the vectors and `[batch, outputs]` of each sequence to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        vectors: Tensor,
        sequences: Vec<Tensor>,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let mut parts = vec![numeric.shallow_clone(), vectors];
        parts.extend(sequences);
        self.layers.forward(&Tensor::f_cat(&parts, 1)?, calls)
    }
}
