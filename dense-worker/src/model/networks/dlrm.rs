//! DLRM: "Deep Learning Recommendation Model for Personalization and Recommendation Systems", Naumov et al. 2019.
//!
//! A bottom MLP maps the numeric values to a vector of the tables' dim D. The dot products of every pair of vectors (that
//! one and the features' vectors) and the vector itself are the input of a top MLP. Without numeric values there is no
//! bottom MLP, and the pairs are those of the features only.

use tch::Tensor;

use crate::model::layers::{LayerCalls, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError, int};

#[derive(Debug)]
pub(crate) struct Dlrm {
    pub(crate) bottom: Option<Mlp>,
    pub(crate) top: Mlp,
    pub(crate) features: usize,
    pub(crate) dim: usize,
    /// Positions of the strict lower triangle in a flattened `[vectors, vectors]`.
    pairs: Tensor,
}

impl Dlrm {
    pub(crate) fn new(
        shape: &InputShape,
        bottom: &[i64],
        top: &[i64],
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let (features, dim) = (shape.embeddings.len(), shape.common_dim("dlrm")?);
        let has_bottom = shape.numeric > 0;
        let vectors = features + usize::from(has_bottom);
        let pairs = strict_lower_triangle(vectors);
        let inputs = pairs.len() + if has_bottom { dim } else { 0 };
        if inputs == 0 {
            return Err(ModelError::Shape { what: "dlrm has nothing to interact: one categorical feature alone" });
        }
        let bottom_widths = [parse_widths(bottom)?, vec![dim]].concat();
        let bottom = has_bottom.then(|| Mlp::hidden("bottom", shape.numeric, &bottom_widths, weights)).transpose()?;
        let top = Mlp::logit("top", inputs, &parse_widths(top)?, weights)?;
        Ok(Self { bottom, top, features, dim, pairs: weights.column_indices(&pairs)? })
    }

    /// `[batch, numeric]` and `[batch, F·D]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let batch = numeric.size()[0];
        let vectors = embeddings.f_reshape([batch, int(self.features), int(self.dim)])?;
        let Some(bottom) = &self.bottom else {
            let interactions = calls.part([&vectors], |[vectors]| self.interactions(vectors))?;
            return self.top.forward(&interactions, calls);
        };
        let dense = bottom.forward_keeping(numeric, calls)?;
        let vectors = Tensor::f_cat(&[dense.f_unsqueeze(1)?, vectors], 1)?;
        let interactions = calls.part([&vectors], |[vectors]| self.interactions(vectors))?;
        self.top.forward(&Tensor::f_cat(&[dense, interactions], 1)?, calls)
    }

    /// `[batch, V, D]` to `[batch, V(V−1)/2]`.
    fn interactions(&self, vectors: &Tensor) -> Result<Tensor, ModelError> {
        let products = vectors.f_bmm(&vectors.f_transpose(1, 2)?)?;
        Ok(products.f_flatten(1, 2)?.f_index_select(1, &self.pairs)?)
    }
}

fn strict_lower_triangle(vectors: usize) -> Vec<i64> {
    (0..vectors).flat_map(|row| (0..row).map(move |column| int(row * vectors + column))).collect()
}
