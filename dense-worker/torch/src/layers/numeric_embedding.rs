//! Vectors in place of single numbers: PLR, the periodic embedding with a linear layer and a ReLU (Gorishniy et al. 2022, "On Embeddings for
//! Numerical Features in Tabular Deep Learning", section 3).
//!
//! ```text
//! x of feature i ─► 2π·x·cᵢ₁ … 2π·x·cᵢₖ ─► sines, cosines: 2k values ─► Wᵢ, bᵢ: d values ─► ReLU ─► vector i
//! ```
//!
//! The frequencies c are learned, from a normal distribution at first. The network reads the vectors in place of their numbers, and the other
//! inputs as they are.

use std::f64::consts::TAU;

use tch::Tensor;
use zagros_network::wiring::NumberEmbedding;

use super::layer_calls::{LayerCalls, LayerNumber};
use super::mlp::BlockTensors;
use crate::error::TorchResult;
use crate::int;

#[derive(Debug)]
pub(crate) struct NumericEmbeddings {
    /// Which inputs are embedded, n.
    embedded: Tensor,
    others: Option<PlainInputs>,
    /// `[n, k]`.
    frequencies: Tensor,
    /// `[n, 2k, d]`.
    weight: Tensor,
    /// `[n, d]`.
    bias: Tensor,
    layer: LayerNumber,
}

#[derive(Debug)]
struct PlainInputs {
    inputs: Tensor,
    /// Of all vectors and then these inputs side by side, the places in the order of the features.
    order: Tensor,
}

impl NumericEmbeddings {
    /// Of `inputs` numbers.
    pub(crate) fn new(
        embedding: &NumberEmbedding,
        inputs: usize,
        tensors: &mut BlockTensors<'_, '_>,
    ) -> TorchResult<Self> {
        let NumberEmbedding { embedded, dim, .. } = embedding;
        let (count, mut others, mut order, mut vectors) = (embedded.len(), Vec::new(), Vec::new(), 0);
        for input in 0..inputs {
            if embedded.contains(&input) {
                order.extend((vectors * dim..(vectors + 1) * dim).map(int));
                vectors += 1;
            } else {
                order.push(int(count * dim + others.len()));
                others.push(int(input));
            }
        }
        let others = match others.is_empty() {
            true => None,
            false => {
                Some(PlainInputs { inputs: tensors.column_indices(&others)?, order: tensors.column_indices(&order)? })
            }
        };
        let embedded: Vec<i64> = embedded.iter().copied().map(int).collect();
        let ((frequencies, layer), (weight, _), (bias, _)) = (tensors.matrix()?, tensors.matrix()?, tensors.matrix()?);
        Ok(Self { embedded: tensors.column_indices(&embedded)?, others, frequencies, weight, bias, layer })
    }

    /// `[batch, inputs]` to `[batch, n·d + others]`.
    pub(crate) fn forward<'n>(&'n self, numeric: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        calls.layer(self.layer, [numeric], |[numeric]| self.vectors(numeric))
    }

    fn vectors(&self, numeric: &Tensor) -> TorchResult<Tensor> {
        // [n, batch, 1]
        let numbers = numeric.f_index_select(1, &self.embedded)?.f_transpose(0, 1)?.f_unsqueeze(2)?;
        let phases = numbers.f_mul(&self.frequencies.f_unsqueeze(1)?)?.f_mul_scalar(TAU)?;
        let periodic = Tensor::f_cat(&[phases.f_sin()?, phases.f_cos()?], 2)?;
        let vectors = periodic.f_matmul(&self.weight)?.f_add(&self.bias.f_unsqueeze(1)?)?.f_relu()?;
        let side_by_side = vectors.f_transpose(0, 1)?.f_reshape([numeric.size()[0], -1])?;
        let Some(PlainInputs { inputs, order }) = &self.others else { return Ok(side_by_side) };
        let all = Tensor::f_cat(&[side_by_side, numeric.f_index_select(1, inputs)?], 1)?;
        Ok(all.f_index_select(1, order)?)
    }
}
