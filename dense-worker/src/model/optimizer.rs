//! How the dense network learns: clip, schedule, optimiser.
//!
//! SGD, Adam and AdamW are libtorch's; Adagrad, which tch does not offer, is written out here.

use tch::Tensor;
use tch::nn::{self, Optimizer, OptimizerConfig, VarStore};
use zagros_job::{DenseOptimizer, DenseUpdates, Schedule};

use super::ModelError;

/// The optimiser of a network, its state, and what its gradients go through before.
#[derive(Debug)]
pub(super) struct Updater {
    rule: Rule,
    /// Learning rate before the schedule.
    lr: f64,
    updates: DenseUpdates,
}

#[derive(Debug)]
enum Rule {
    Torch(Optimizer),
    Adagrad(Adagrad),
}

impl Updater {
    pub(super) fn new(
        optimizer: &DenseOptimizer,
        updates: DenseUpdates,
        variables: &VarStore,
    ) -> Result<Self, ModelError> {
        let (rule, lr) = match *optimizer {
            DenseOptimizer::Adam { lr, weight_decay } => {
                (Rule::Torch(nn::adam(0.9, 0.999, weight_decay).build(variables, lr)?), lr)
            }
            DenseOptimizer::AdamW { lr, weight_decay } => {
                (Rule::Torch(nn::adamw(0.9, 0.999, weight_decay).build(variables, lr)?), lr)
            }
            DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
                (Rule::Torch(nn::sgd(momentum, 0.0, weight_decay, false).build(variables, lr)?), lr)
            }
            DenseOptimizer::Adagrad { lr, epsilon, initial_accumulator, weight_decay } => {
                let weights = variables.trainable_variables();
                let accumulators = weights.iter().map(|weight| weight.f_full_like(initial_accumulator));
                let accumulators = accumulators.collect::<Result<_, _>>()?;
                (Rule::Adagrad(Adagrad { accumulators, epsilon, weight_decay }), lr)
            }
        };
        Ok(Self { rule, lr, updates })
    }

    /// Clips the gradients, which are finite, as [`Self::apply`] does before the rule.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(super) fn clip(&self, variables: &VarStore) -> Result<(), ModelError> {
        tch::no_grad(|| clip(&variables.trainable_variables(), &self.updates))
    }

    /// Clips the gradients, which are finite, and applies them at the rate of `step`, counted from 0.
    ///
    /// # Errors
    /// When libtorch fails, or the gradients' norm is wanted and beyond f32; the weights are then what they were.
    pub(super) fn apply(&mut self, step: u64, variables: &VarStore) -> Result<(), ModelError> {
        let weights = variables.trainable_variables();
        tch::no_grad(|| clip(&weights, &self.updates))?;
        let lr = self.lr * factor(self.updates.schedule, step);
        match &mut self.rule {
            Rule::Torch(optimizer) => {
                if self.updates.schedule != Schedule::Constant {
                    optimizer.set_lr(lr);
                }
                optimizer.step();
                Ok(())
            }
            Rule::Adagrad(adagrad) => tch::no_grad(|| adagrad.apply(lr, weights)),
        }
    }
}

/// Duchi et al. 2011, element-wise: a ← a + g²; w ← w − lr·g / (√a + ε).
#[derive(Debug)]
struct Adagrad {
    /// Shaped as the weights, in their order.
    accumulators: Vec<Tensor>,
    epsilon: f64,
    weight_decay: f64,
}

impl Adagrad {
    fn apply(&mut self, lr: f64, weights: Vec<Tensor>) -> Result<(), ModelError> {
        for (mut weight, accumulator) in weights.into_iter().zip(&mut self.accumulators) {
            let mut gradient = weight.f_grad()?;
            if !gradient.defined() {
                continue;
            }
            if self.weight_decay > 0.0 {
                gradient = gradient.f_add(&weight.f_mul_scalar(self.weight_decay)?)?;
            }
            let _ = accumulator.f_addcmul_(&gradient, &gradient)?;
            let root = accumulator.f_sqrt()?.f_add_scalar_(self.epsilon)?;
            let _ = weight.f_addcdiv_(&gradient.f_mul_scalar(-lr)?, &root)?;
        }
        Ok(())
    }
}

/// By value first, then all together by their Euclidean norm.
fn clip(weights: &[Tensor], updates: &DenseUpdates) -> Result<(), ModelError> {
    // A parameter that a module of the user's does not use has none.
    let mut gradients = weights.iter().map(Tensor::f_grad).collect::<Result<Vec<_>, _>>()?;
    gradients.retain(Tensor::defined);
    if let Some(limit) = updates.clip_value {
        for gradient in &mut gradients {
            let _ = gradient.f_clamp_(-limit, limit)?;
        }
    }
    let Some(limit) = updates.clip_norm else { return Ok(()) };
    let norm = norm(&gradients)?;
    if !norm.is_finite() {
        return Err(ModelError::NotFinite { what: "the norm of the dense network's gradients" });
    }
    if norm > limit {
        for gradient in &mut gradients {
            let _ = gradient.f_mul_scalar_(limit / norm)?;
        }
    }
    Ok(())
}

fn norm(gradients: &[Tensor]) -> Result<f64, ModelError> {
    let mut squares = 0.0;
    for gradient in gradients {
        squares += gradient.f_norm()?.f_double_value(&[])?.powi(2);
    }
    Ok(squares.sqrt())
}

/// The tables' schedules, so that rows and dense network can go at one pace.
fn factor(schedule: Schedule, step: u64) -> f64 {
    let schedule = match schedule {
        Schedule::Constant => zagros_table::Schedule::Constant,
        Schedule::Linear { warmup, decay, floor } => {
            zagros_table::Schedule::Linear { warmup, steps: warmup + decay, floor }
        }
        Schedule::Cosine { warmup, decay, floor } => {
            zagros_table::Schedule::Cosine { warmup, steps: warmup + decay, floor }
        }
        Schedule::Step { warmup, every, factor } => zagros_table::Schedule::Step { warmup, every, factor },
    };
    f64::from(schedule.factor(step))
}

#[cfg(test)]
mod tests;
