//! A feed-forward network over all features side by side.

use tch::Tensor;

use crate::model::layers::{LayerCalls, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(crate) struct Ffnn {
    pub(crate) layers: Mlp,
}

impl Ffnn {
    pub(crate) fn new(shape: &InputShape, hidden: &[i64], weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        let inputs = shape.numeric + shape.width();
        if inputs == 0 {
            return Err(ModelError::Shape { what: "the network has no input: no numeric and no categorical feature" });
        }
        Ok(Self { layers: Mlp::logit("layers", inputs, &parse_widths(hidden)?, weights)? })
    }

    /// `[batch, numeric]` and `[batch, ΣD]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        self.layers.forward(&Tensor::f_cat(&[numeric, embeddings], 1)?, calls)
    }
}
