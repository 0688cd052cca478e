//! The update of the dense network: clipping, schedule, optimiser. It works on all weights in one piece, without libtorch,
//! so the state can be kept, sent and restored.

use std::collections::BTreeMap;
use std::ops::Range;

use zagros_job::{DenseOptimizer, DenseSegment, DenseUpdates, Job};

use crate::{ModelError, ModelResult};

/// The optimiser of a network, its state, and the bounds of its gradients.
#[derive(Debug)]
pub(crate) struct WeightUpdater {
    optimizer: DenseOptimizer,
    updates: DenseUpdates,
    /// Of all weights, in order.
    rates: Vec<RateRange>,
    pub(crate) state: SlotState,
}

/// Weights with the same factor of the learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct RateRange {
    pub weights: Range<usize>,
    pub factor: f32,
}

impl RateRange {
    /// Those of a job's network of so many weights, as few as there can be.
    pub fn from_job(job: &Job, weights: usize) -> Vec<Self> {
        let mut rates: Vec<Self> = Vec::new();
        if weights == 0 {
            // Streamed weights have their factors at the servers.
            return rates;
        }
        for DenseSegment { range, lr_factor, .. } in job.dense_segments().unwrap_or_default() {
            let factor = lr_factor as f32;
            match rates.last_mut().filter(|last| last.factor == factor) {
                Some(last) => last.weights.end = range.end,
                None => rates.push(Self { weights: range, factor }),
            }
        }
        // A module has no segments, and one rate.
        if rates.is_empty() { vec![Self { weights: 0..weights, factor: 1.0 }] } else { rates }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SlotState {
    /// Updates made so far.
    pub(crate) applied: u64,
    /// By name. Each vector is as long as the weights and in their order.
    pub(crate) vectors: BTreeMap<&'static str, Vec<f32>>,
}

impl WeightUpdater {
    pub(crate) fn new(optimizer: &DenseOptimizer, updates: DenseUpdates, rates: Vec<RateRange>) -> Self {
        let weights = rates.last().map_or(0, |last| last.weights.end);
        let vectors =
            optimizer.state_vectors().iter().map(|name| (*name, vec![optimizer.first_value(); weights])).collect();
        Self { optimizer: *optimizer, updates, rates, state: SlotState { applied: 0, vectors } }
    }

    /// Clips the gradients, which are finite, as the first part of [`Self::apply`]: each value first, then all values by their Euclidean
    /// norm.
    pub(crate) fn clip(&self, gradients: &mut [f32]) -> ModelResult {
        if let Some(limit) = self.updates.clip_value {
            let limit = limit as f32;
            gradients.iter_mut().for_each(|gradient| *gradient = gradient.clamp(-limit, limit));
        }
        if self.updates.clip_norm.is_none() {
            return Ok(());
        }
        let scale = self.norm_factor(gradients.iter().map(|gradient| f64::from(*gradient).powi(2)).sum())?;
        if scale < 1.0 {
            gradients.iter_mut().for_each(|gradient| *gradient *= scale);
        }
        Ok(())
    }

    /// Clips the gradients, which are finite, and applies them with the learning rate of `step`, counted from 0.
    ///
    /// # Errors
    /// When the gradients' norm is needed and beyond f32. The weights have not changed then.
    pub(crate) fn apply(&mut self, step: u64, weights: &mut [f32], gradients: &mut [f32]) -> ModelResult {
        self.clip(gradients)?;
        let lr = self.optimizer.learning_rate() * f64::from(self.updates.schedule.in_steps().rate_factor(step));
        let SlotState { applied, vectors } = &mut self.state;
        *applied += 1;
        let mut vectors = vectors.values_mut().map(Vec::as_mut_slice);
        let (first, second) = (vectors.next().unwrap_or_default(), vectors.next().unwrap_or_default());
        for RateRange { weights: range, factor } in &self.rates {
            let state = [part(first, range), part(second, range)];
            self.optimizer.apply(
                (lr, *factor),
                *applied,
                &mut weights[range.clone()],
                &gradients[range.clone()],
                state,
            );
        }
        Ok(())
    }

    /// The factor by which gradients, also such as are elsewhere, are clipped to their norm, from the sum of their squares.
    pub(crate) fn norm_factor(&self, squares: f64) -> ModelResult<f32> {
        let Some(limit) = self.updates.clip_norm else { return Ok(1.0) };
        let norm = squares.sqrt();
        if norm > f64::from(f32::MAX) {
            return Err(ModelError::NotFinite { what: "the norm of the dense network's gradients" });
        }
        Ok(if norm > limit { (limit / norm) as f32 } else { 1.0 })
    }

    /// # Errors
    /// When the state belongs to another optimiser or other weights: nothing is taken then.
    pub(crate) fn restore(&mut self, state: SlotState) -> ModelResult {
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

/// The state of some weights; nothing of a vector that the rule does not have.
fn part<'a>(vector: &'a mut [f32], range: &Range<usize>) -> &'a mut [f32] {
    vector.get_mut(range.clone()).unwrap_or_default()
}

fn named(vectors: &[String]) -> String {
    if vectors.is_empty() { "nothing".to_owned() } else { vectors.join(", ") }
}

#[cfg(test)]
mod tests;
