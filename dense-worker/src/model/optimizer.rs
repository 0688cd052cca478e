//! The update of the dense network: clipping, schedule, optimiser. It works on all weights in one piece, without libtorch,
//! so the state can be kept, sent and restored.

use std::collections::BTreeMap;

use zagros_job::{DenseOptimizer, DenseUpdates};
use zagros_table::optimizer::dense::DenseRule;

use super::ModelError;

/// The optimiser of a network, its state, and the bounds of its gradients.
#[derive(Debug)]
pub(super) struct Updater {
    rule: DenseRule,
    /// Learning rate before the schedule.
    lr: f64,
    updates: DenseUpdates,
    state: SlotState,
}

/// The state of an optimiser.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SlotState {
    /// Updates made so far.
    pub(super) applied: u64,
    /// By name. Each vector is as long as the weights and in their order.
    pub(super) vectors: BTreeMap<&'static str, Vec<f32>>,
}

impl Updater {
    /// The optimiser of so many weights.
    pub(super) fn new(optimizer: &DenseOptimizer, updates: DenseUpdates, weights: usize) -> Self {
        let (rule, lr) = optimizer.rule();
        let vectors = rule.vectors().iter().map(|name| (*name, vec![rule.first_value(); weights])).collect();
        Self { rule, lr, updates, state: SlotState { applied: 0, vectors } }
    }

    /// Clips the gradients, which are finite, as the first part of [`Self::apply`].
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(super) fn clip(&self, gradients: &mut [f32]) -> Result<(), ModelError> {
        clip(gradients, &self.updates)
    }

    /// Clips the gradients, which are finite, and applies them with the learning rate of `step`, counted from 0.
    ///
    /// # Errors
    /// When the gradients' norm is needed and beyond f32. The weights have not changed then.
    pub(super) fn apply(&mut self, step: u64, weights: &mut [f32], gradients: &mut [f32]) -> Result<(), ModelError> {
        clip(gradients, &self.updates)?;
        let lr = self.lr * f64::from(self.updates.schedule.in_steps().factor(step));
        let SlotState { applied, vectors } = &mut self.state;
        *applied += 1;
        let mut vectors = vectors.values_mut().map(Vec::as_mut_slice);
        let state = [vectors.next().unwrap_or_default(), vectors.next().unwrap_or_default()];
        self.rule.apply(lr, *applied, weights, gradients, state);
        Ok(())
    }

    /// The state.
    pub(super) fn state(&self) -> &SlotState {
        &self.state
    }

    /// Replaces the state.
    ///
    /// # Errors
    /// When the state belongs to another optimiser or other weights: nothing is taken then.
    pub(super) fn restore(&mut self, state: SlotState) -> Result<(), ModelError> {
        let form =
            |state: &SlotState| state.vectors.iter().map(|(name, all)| format!("{name} {}", all.len())).collect();
        let (own, found): (Vec<String>, Vec<String>) = (form(&self.state), form(&state));
        if own != found {
            let what = format!("the optimiser's state is {}, not {}", named(&found), named(&own));
            return Err(ModelError::Foreign { what });
        }
        self.state = state;
        Ok(())
    }
}

fn named(vectors: &[String]) -> String {
    if vectors.is_empty() { "nothing".to_owned() } else { vectors.join(", ") }
}

/// Clips each value first, then all values by their Euclidean norm.
fn clip(gradients: &mut [f32], updates: &DenseUpdates) -> Result<(), ModelError> {
    if let Some(limit) = updates.clip_value {
        let limit = limit as f32;
        gradients.iter_mut().for_each(|gradient| *gradient = gradient.clamp(-limit, limit));
    }
    let Some(limit) = updates.clip_norm else { return Ok(()) };
    let norm = gradients.iter().map(|gradient| f64::from(*gradient).powi(2)).sum::<f64>().sqrt();
    if norm > f64::from(f32::MAX) {
        return Err(ModelError::NotFinite { what: "the norm of the dense network's gradients" });
    }
    if norm > limit {
        let scale = (limit / norm) as f32;
        gradients.iter_mut().for_each(|gradient| *gradient *= scale);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
