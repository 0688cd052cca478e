//! DeepFM: "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", Guo et al. 2017.
//!
//! The logit is ⟨w, x⟩ + Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j (equation 2) plus a deep MLP over all fields' vectors v_i x_i. An id is
//! a feature with value 1. Its row on the embedding servers holds both of its parameters: the first value is w_i, the
//! others are v_i. The first-order term is therefore looked up, learned and stored like any other value of a row, and a
//! table of dim D has D − 1 factors. A field with several ids pools their rows, including their first-order weights.
//! Numeric column i has its w_i and v_i in the dense network.

use tch::{Kind, Tensor};

use crate::model::layers::{LayerCalls, LayerNumber, LinearLayer, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError, int};

#[derive(Debug)]
pub(crate) struct DeepFm {
    /// The first-order term of numeric columns, and the bias; `None` without numeric columns.
    pub(crate) first_order: Option<LinearLayer>,
    /// `[numeric, K]`: the columns' v_i.
    pub(crate) factors: Option<Tensor>,
    factors_layer: LayerNumber,
    pub(crate) deep: Mlp,
    pub(crate) features: usize,
    pub(crate) dim: usize,
}

impl DeepFm {
    pub(crate) fn new(shape: &InputShape, hidden: &[i64], weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        let (features, dim) = (shape.embeddings.len(), shape.common_dim("deepfm")?);
        if dim < 2 {
            return Err(ModelError::Shape { what: "deepfm has no factors: the first of a row's values is its weight" });
        }
        let columns = (shape.numeric > 0).then_some(shape.numeric);
        let first_order = columns.map(|columns| weights.linear("first_order", 0, columns, 1)).transpose()?;
        let factors = columns.map(|columns| weights.factors("factors", columns, dim - 1)).transpose()?;
        let deep = Mlp::logit("deep", (shape.numeric + features) * (dim - 1), &parse_widths(hidden)?, weights)?;
        let factors_layer = weights.layer_of("factors.weight");
        Ok(Self { first_order, factors, factors_layer, deep, features, dim })
    }

    /// `[batch, numeric]` and `[batch, F·D]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let rows = embeddings.f_reshape([numeric.size()[0], int(self.features), int(self.dim)])?;
        let mut first = rows.f_select(2, 0)?.f_sum_dim_intlist(1_i64, true, Kind::Float)?;
        let mut fields = rows.f_narrow(2, 1, int(self.dim - 1))?;
        if let (Some(first_order), Some(factors)) = (&self.first_order, &self.factors) {
            first = first.f_add(&first_order.forward(numeric, calls)?)?;
            let product = |[numeric]: [&Tensor; 1]| Ok(numeric.f_unsqueeze(2)?.f_mul(factors)?);
            let columns = calls.layer(self.factors_layer, [numeric], product)?;
            fields = Tensor::f_cat(&[columns, fields], 1)?;
        }
        let deep = self.deep.forward(&fields.f_flatten(1, 2)?, calls)?;
        Ok(first.f_add(&second_order(&fields)?)?.f_add(&deep)?)
    }
}

/// `[batch, fields, K]` to `[batch, 1]`: Σ_{i<j} ⟨f_i, f_j⟩ as ½ Σ_k ((Σ_i f_ik)² − Σ_i f_ik²), which is linear in the
/// number of fields (Rendle 2010, lemma 3.1).
fn second_order(fields: &Tensor) -> Result<Tensor, ModelError> {
    let sum_squared = fields.f_sum_dim_intlist(1_i64, false, Kind::Float)?.f_square()?;
    let squares = fields.f_square()?.f_sum_dim_intlist(1_i64, false, Kind::Float)?;
    Ok(sum_squared.f_sub(&squares)?.f_sum_dim_intlist(1_i64, true, Kind::Float)?.f_mul_scalar(0.5)?)
}
