//! The fields of a factorisation machine, and the products of all pairs of them.

use tch::{Kind, Tensor};

use crate::error::TorchError;
use crate::int;
use crate::layers::{LayerCalls, LayerNumber};

/// A field of each number, the number times its factors, and one of each vector, without its first value.
#[derive(Debug)]
pub(super) struct FactorFields {
    /// The block of the numbers, and their factors `[numeric, K]` with the number of their layer.
    pub(super) factors: Option<(usize, (Tensor, LayerNumber))>,
    pub(super) features: usize,
    pub(super) dim: usize,
}

impl FactorFields {
    /// `[batch, fields · K]`.
    pub(super) fn forward<'n>(
        &'n self,
        vectors: &Tensor,
        values: &[Tensor],
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, TorchError> {
        let rows = vectors.f_reshape([-1, int(self.features), int(self.dim)])?;
        let fields = rows.f_narrow(2, 1, int(self.dim - 1))?;
        let Some((numbers, (factors, layer))) = &self.factors else { return Ok(fields.f_flatten(1, 2)?) };
        let product = |[numeric]: [&Tensor; 1]| Ok(numeric.f_unsqueeze(2)?.f_mul(factors)?);
        let columns = calls.layer(*layer, [&values[*numbers]], product)?;
        Ok(Tensor::f_cat(&[columns, fields], 1)?.f_flatten(1, 2)?)
    }
}

/// `[batch, fields · K]` to `[batch, 1]`: Σ_{i<j} ⟨f_i, f_j⟩ as ½ Σ_k ((Σ_i f_ik)² − Σ_i f_ik²), which is linear in the
/// number of fields (Rendle 2010, lemma 3.1).
pub(super) fn second_order(fields: &Tensor, factors: usize) -> Result<Tensor, TorchError> {
    let fields = fields.f_reshape([fields.size()[0], -1, int(factors)])?;
    let sum_squared = fields.f_sum_dim_intlist(1_i64, false, Kind::Float)?.f_square()?;
    let squares = fields.f_square()?.f_sum_dim_intlist(1_i64, false, Kind::Float)?;
    Ok(sum_squared.f_sub(&squares)?.f_sum_dim_intlist(1_i64, true, Kind::Float)?.f_mul_scalar(0.5)?)
}
