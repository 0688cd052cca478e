//! What is between a hidden layer's sums and its outputs: norms and activations.

use tch::Tensor;
use zagros_job::MlpActivation;

use super::batch_norm::BatchNorm;
use super::dice::Dice;
use super::layer_calls::LayerNumber;
use crate::model::ModelError;

/// Layer norm (Ba et al. 2016): each vector gets mean 0 and variance 1, then a learned scale and shift of each value.
#[derive(Debug)]
pub(crate) struct LayerNorm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) layer: LayerNumber,
}

impl LayerNorm {
    /// Added to the variance, as in PyTorch's `nn.LayerNorm`.
    const EPSILON: f64 = 1e-5;

    /// `[…, width]` to the same shape.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let (width, weight, bias) = (self.weight.size(), Some(&self.weight), Some(&self.bias));
        Ok(x.f_layer_norm(width, weight, bias, Self::EPSILON, true)?)
    }
}

/// What is between a hidden layer and its activation.
#[derive(Debug)]
pub(super) enum HiddenNorm {
    None,
    Layer(LayerNorm),
    Batch(BatchNorm),
}

impl HiddenNorm {
    pub(crate) fn layer(&self) -> Option<LayerNumber> {
        match self {
            Self::None => None,
            Self::Layer(norm) => Some(norm.layer),
            Self::Batch(norm) => Some(norm.layer),
        }
    }

    /// `[batch, width]` to the same shape.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        match self {
            Self::None => Ok(x.shallow_clone()),
            Self::Layer(norm) => norm.forward(x),
            Self::Batch(norm) => norm.forward(x),
        }
    }
}

#[derive(Debug)]
pub(super) enum HiddenActivation {
    Plain(MlpActivation),
    Dice(Dice),
}

impl HiddenActivation {
    /// `[batch, width]` to the same shape, of a function without weights. As PyTorch's modules of the same names, with their defaults.
    pub(super) fn apply_plain(&self, x: Tensor) -> Result<Tensor, ModelError> {
        Ok(match self {
            Self::Dice(_) => x,
            // Dice has weights, so it is never plain.
            Self::Plain(MlpActivation::Relu | MlpActivation::Dice) => x.f_relu()?,
            Self::Plain(MlpActivation::LeakyRelu) => x.f_leaky_relu()?,
            Self::Plain(MlpActivation::Elu) => x.f_elu()?,
            Self::Plain(MlpActivation::Gelu) => x.f_gelu("none")?,
            Self::Plain(MlpActivation::Silu) => x.f_silu()?,
            Self::Plain(MlpActivation::Tanh) => x.f_tanh()?,
        })
    }
}
