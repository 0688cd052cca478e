//! Batch norm (Ioffe and Szegedy 2015) between a hidden layer and its activation.
//!
//! In training each unit gets mean 0 and variance 1 over the samples of the worker's batch, then a learned scale and shift. Running
//! averages of mean and variance take the place of the batch when samples are scored. They are buffers of the network
//! ([`super::buffers`]): forward reads and changes copies of them, which count once the step is made. Workers of a process group
//! add up their changes, so each counts by its share of the samples.

use std::sync::{Arc, Mutex, PoisonError};

use tch::Tensor;

use super::layer_calls::LayerNumber;
use crate::model::ModelError;

/// Weight of the batch in the running averages, and what is added to the variance, as in PyTorch's `nn.BatchNorm1d`.
pub(super) const MOMENTUM: f64 = 0.1;
const EPSILON: f64 = 1e-5;

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
    pub(super) fn running_statistics(&self, first: usize) -> Result<RunningStatistics, ModelError> {
        let lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let what = "a layer has no running averages";
        let both = lent.buffers.get(first..first + 2).and_then(|both| both.first_chunk());
        let [mean, variance] = both.ok_or(ModelError::Shape { what })?;
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
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let RunningStatistics { mean, variance, is_training } = self.lent.running_statistics(self.first)?;
        let of_batch = is_training && x.size()[0] > 1;
        let (weight, bias) = (Some(&self.weight), Some(&self.bias));
        Ok(x.f_batch_norm(weight, bias, Some(&mean), Some(&variance), of_batch, MOMENTUM, EPSILON, false)?)
    }
}
