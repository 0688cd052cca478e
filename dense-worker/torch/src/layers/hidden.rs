//! What is between a hidden layer's sums and its outputs: norms and activations.
//!
//! # Batch norm (Ioffe and Szegedy 2015)
//!
//! In training each unit gets mean 0 and variance 1 over the samples of the worker's batch, then a learned scale and shift. Running
//! averages of mean and variance take the place of the batch when samples are scored. They are buffers of the network
//! ([`super::buffers`]): forward reads and changes copies of them, which count once the step is made. Workers of a process group
//! add up their changes, so each counts by its share of the samples.
//!
//! # Dice, the activation of DIN (Zhou et al. 2018, equation 5)
//!
//! A leaky unit whose bend is smooth and at the mean of its values:
//!
//! ```text
//!  f(x) = p·x + (1 − p)·α·x,   p = σ((x − E[x]) / √(Var[x] + ε))      α: learned for each unit, at first 0
//! ```
//!
//! Mean and variance are those of the worker's batch in training, and running averages when samples are scored, as those of a
//! batch norm. ε is the paper's.

use std::sync::{Arc, Mutex, PoisonError};

use tch::{Kind, Tensor};
use zagros_job::MlpActivation;

use super::layer_calls::LayerNumber;
use crate::error::{TorchError, TorchResult};

/// Layer norm (Ba et al. 2016): each vector gets mean 0 and variance 1, then a learned scale and shift of each value.
#[derive(Debug)]
pub(crate) struct LayerNorm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) layer: LayerNumber,
}

impl LayerNorm {
    /// `[…, width]` to the same shape.
    pub(crate) fn forward(&self, x: &Tensor) -> TorchResult<Tensor> {
        let (width, weight, bias) = (self.weight.size(), Some(&self.weight), Some(&self.bias));
        Ok(x.f_layer_norm(width, weight, bias, NORM_EPSILON, true)?)
    }
}

/// What is between a hidden layer and its activation.
#[derive(Debug)]
pub(super) enum HiddenNorm {
    Layer(LayerNorm),
    Batch(BatchNorm),
}

impl HiddenNorm {
    pub(crate) fn layer(&self) -> LayerNumber {
        match self {
            Self::Layer(norm) => norm.layer,
            Self::Batch(norm) => norm.layer,
        }
    }

    /// `[batch, width]` to the same shape.
    pub(crate) fn forward(&self, x: &Tensor) -> TorchResult<Tensor> {
        match self {
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
    pub(super) fn apply_plain(&self, x: Tensor) -> TorchResult<Tensor> {
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

/// Weight of the batch in the running averages of a batch norm, and what all norms add to the variance, as in PyTorch.
const MOMENTUM: f64 = 0.1;
const NORM_EPSILON: f64 = 1e-5;

/// The copies of all buffers for the next forward, which all layers of a network share.
#[derive(Clone, Debug, Default)]
pub(crate) struct LentBuffers(Arc<Mutex<LentState>>);

/// Running mean and variance of a layer's units, which forward may change in place, and whether forward is one of a step.
pub(super) struct RunningStatistics {
    pub(crate) mean: Tensor,
    pub(crate) variance: Tensor,
    pub(crate) is_training: bool,
}

#[derive(Debug, Default)]
struct LentState {
    buffers: Vec<Tensor>,
    is_training: bool,
}

impl LentBuffers {
    pub(crate) fn lend_buffers(&self, buffers: Vec<Tensor>, is_training: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = LentState { buffers, is_training };
    }

    /// After forward: the copies as it left them.
    pub(crate) fn take_buffers(&self) -> Vec<Tensor> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).buffers)
    }

    /// During forward: those whose mean is buffer `first`, and whose variance is the next one.
    pub(super) fn running_statistics(&self, first: usize) -> TorchResult<RunningStatistics> {
        let lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let what = "a layer has no running averages";
        let both = lent.buffers.get(first..first + 2).and_then(|both| both.first_chunk());
        let [mean, variance] = both.ok_or_else(|| TorchError::shape(what))?;
        let (mean, variance) = (mean.shallow_clone(), variance.shallow_clone());
        Ok(RunningStatistics { mean, variance, is_training: lent.is_training })
    }
}

#[derive(Debug)]
pub(super) struct BatchNorm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) layer: LayerNumber,
    /// Position of the running mean among the buffers. The variance follows.
    pub(crate) first: usize,
    pub(crate) lent: LentBuffers,
}

impl BatchNorm {
    /// `[batch, width]` to the same shape. A batch of one sample has no variance, so it uses the running averages.
    pub(crate) fn forward(&self, x: &Tensor) -> TorchResult<Tensor> {
        let RunningStatistics { mean, variance, is_training } = self.lent.running_statistics(self.first)?;
        let of_batch = is_training && x.size()[0] > 1;
        let (weight, bias) = (Some(&self.weight), Some(&self.bias));
        Ok(x.f_batch_norm(weight, bias, Some(&mean), Some(&variance), of_batch, MOMENTUM, NORM_EPSILON, false)?)
    }
}

const DICE_EPSILON: f64 = 1e-8;

#[derive(Debug)]
pub(crate) struct Dice {
    /// α, `[width]`.
    pub(crate) slopes: Tensor,
    pub(crate) layer: LayerNumber,
    /// Position of the running mean among the buffers. The variance follows.
    pub(crate) first: usize,
    pub(crate) lent: LentBuffers,
}

impl Dice {
    /// `[rows, width]` to the same shape. `real` is `[rows, 1]` with 1 for the rows that count in mean and variance, and 0 for padding;
    /// without it all rows count.
    pub(crate) fn forward(&self, x: &Tensor, real: Option<&Tensor>) -> TorchResult<Tensor> {
        let running = self.lent.running_statistics(self.first)?;
        let (mean, variance) = match running.is_training {
            true => of_batch(x, real, running)?,
            false => (running.mean, running.variance),
        };
        let p = x.f_sub(&mean)?.f_div(&variance.f_add_scalar(DICE_EPSILON)?.f_sqrt()?)?.f_sigmoid()?;
        // x·(α + p·(1 − α)).
        let rest = self.slopes.f_neg()?.f_add_scalar(1.0)?;
        Ok(x.f_mul(&p.f_mul(&rest)?.f_add(&self.slopes)?)?)
    }
}

/// Mean and variance of the rows that count. The running averages move towards them, and stay where they are if no row counts.
fn of_batch(x: &Tensor, real: Option<&Tensor>, mut running: RunningStatistics) -> TorchResult<(Tensor, Tensor)> {
    let rows = x.size()[0];
    let real = match real {
        Some(real) => real.shallow_clone(),
        None => Tensor::f_ones([rows, 1], (Kind::Float, x.device()))?,
    };
    let count = real.f_sum(Kind::Float)?;
    let shares = real.f_div(&count.f_clamp_min(1.0)?)?;
    let over_rows = |values: &Tensor| values.f_mul(&shares)?.f_sum_dim_intlist(0, false, Kind::Float);
    let mean = over_rows(x)?;
    let variance = over_rows(&x.f_sub(&mean)?.f_square()?)?;
    // The running variance is the unbiased one, as that of PyTorch's batch norm.
    let unbiased = variance.f_detach()?.f_mul(&count)?.f_div(&count.f_sub_scalar(1.0)?.f_clamp_min(1.0)?)?;
    let step = count.f_clamp_max(1.0)?.f_mul_scalar(MOMENTUM)?;
    for (average, of_batch) in [(&mut running.mean, &mean.f_detach()?), (&mut running.variance, &unbiased)] {
        let change = of_batch.f_sub(average)?.f_mul(&step)?;
        drop(average.f_add_(&change)?);
    }
    Ok((mean, variance))
}
