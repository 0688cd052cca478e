//! Dice, the activation of DIN (Zhou et al. 2018, equation 5): a leaky unit whose bend is smooth and at the mean of its values.
//!
//! ```text
//!  f(x) = p·x + (1 − p)·α·x,   p = σ((x − E[x]) / √(Var[x] + ε))      α: learned for each unit, at first 0
//! ```
//!
//! Mean and variance are those of the worker's batch in training, and running averages when samples are scored
//! ([`super::batch_norm`] says how these are kept). ε is the paper's.

use tch::{Kind, Tensor};

use super::batch_norm::{LentBuffers, MOMENTUM, RunningStatistics};
use super::layer_calls::LayerNumber;
use crate::model::ModelError;

const EPSILON: f64 = 1e-8;

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
    pub(crate) fn forward(&self, x: &Tensor, real: Option<&Tensor>) -> Result<Tensor, ModelError> {
        let running = self.lent.running_statistics(self.first)?;
        let (mean, variance) = match running.is_training {
            true => of_batch(x, real, running)?,
            false => (running.mean, running.variance),
        };
        let p = x.f_sub(&mean)?.f_div(&variance.f_add_scalar(EPSILON)?.f_sqrt()?)?.f_sigmoid()?;
        // x·(α + p·(1 − α)).
        let rest = self.slopes.f_neg()?.f_add_scalar(1.0)?;
        Ok(x.f_mul(&p.f_mul(&rest)?.f_add(&self.slopes)?)?)
    }
}

/// Mean and variance of the rows that count. The running averages move towards them, and stay where they are if no row counts.
fn of_batch(x: &Tensor, real: Option<&Tensor>, mut running: RunningStatistics) -> Result<(Tensor, Tensor), ModelError> {
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
