//! A linear layer with one output, over the numeric values: a term of a logit.

use tch::Tensor;
use zagros_zip::ZipEq;

use super::ChunkProgress;
use super::layer::{LayerUse, StepParts};
use crate::model::ModelError;
use crate::model::layers::LinearLayer;
use crate::model::weights::{values, values_mut};

#[derive(Debug)]
pub(super) struct LinearTerm {
    present: LayerUse,
    /// `[1, numeric]` and `[1]`, the variables themselves without autograd.
    weight: Tensor,
    bias: Tensor,
    d_weight: Tensor,
    d_bias: Tensor,
}

impl LinearTerm {
    pub(super) fn new(linear: &LinearLayer, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let (weight, bias) = linear.parts();
        let (present, [weight, bias]) = parts.next_layer([weight, bias])?;
        Ok(Self { present, weight: weight.value, bias: bias.value, d_weight: weight.gradient, d_bias: bias.gradient })
    }

    /// Adds the term of each sample of `[samples, numeric]`.
    pub(super) fn add_to(&mut self, logits: &mut [f32], numeric: &[f32]) -> Result<(), ModelError> {
        self.present.forward()?;
        let (weight, bias) = (values(&self.weight), values(&self.bias)[0]);
        for (logit, numbers) in logits.iter_mut().zip_eq(numeric.chunks_exact(weight.len())) {
            *logit += bias + weight.iter().zip_eq(numbers).map(|(weight, number)| weight * number).sum::<f32>();
        }
        self.present.forward_done()
    }

    /// Adds the gradients to those of earlier chunks of the batch. `slopes` are those of the logits.
    pub(super) fn backward(
        &mut self,
        slopes: &[f32],
        numeric: &[f32],
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        self.present.backward()?;
        let (d_weight, d_bias) = (values_mut(&mut self.d_weight), values_mut(&mut self.d_bias));
        if !progress.earlier {
            d_weight.fill(0.0);
            d_bias.fill(0.0);
        }
        let inputs = d_weight.len();
        for (slope, numbers) in slopes.iter().zip_eq(numeric.chunks_exact(inputs)) {
            d_bias[0] += slope;
            d_weight.iter_mut().zip_eq(numbers).for_each(|(sum, number)| *sum += slope * number);
        }
        progress.finished(inputs + 1);
        self.present.backward_done()
    }
}
