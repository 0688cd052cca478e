//! The update of the dense network: clipping, schedule, optimiser. It works on all weights in one piece, without libtorch,
//! so the state can be kept, sent and restored.

use std::collections::BTreeMap;
use std::ops::Range;

use zagros_job::{DenseOptimizer, DenseSegment, DenseUpdates, Job};
use zagros_table::wide::wide;
use zagros_zip::ZipEq;

use super::ModelError;

/// Adam's decay rates of the moments, and the constant that prevents a division by zero, as in the paper (and PyTorch).
const BETAS: (f32, f32) = (0.9, 0.999);
const EPSILON: f32 = 1e-8;

/// The optimiser of a network, its state, and the bounds of its gradients.
#[derive(Debug)]
pub(super) struct Updater {
    rule: Rule,
    /// Learning rate before the schedule.
    lr: f64,
    updates: DenseUpdates,
    /// Of all weights, in order.
    rates: Vec<RateRange>,
    state: SlotState,
}

/// Weights with the same factor of the learning rate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateRange {
    pub(crate) weights: Range<usize>,
    pub(crate) factor: f32,
}

impl RateRange {
    /// Those of a job's network of so many weights, as few as there can be.
    pub(crate) fn of(job: &Job, weights: usize) -> Vec<Self> {
        let mut rates: Vec<Self> = Vec::new();
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

/// The state of an optimiser.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SlotState {
    /// Updates made so far.
    pub(super) applied: u64,
    /// By name. Each vector is as long as the weights and in their order.
    pub(super) vectors: BTreeMap<&'static str, Vec<f32>>,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Sgd { momentum: f32, weight_decay: f32 },
    Adam { weight_decay: f32 },
    AdamW { weight_decay: f64 },
    Adagrad { epsilon: f32, weight_decay: f32 },
}

impl Updater {
    /// The optimiser of so many weights.
    pub(super) fn new(optimizer: &DenseOptimizer, updates: DenseUpdates, weights: usize) -> Self {
        let (rule, lr) = match *optimizer {
            DenseOptimizer::Adam { lr, weight_decay } => (Rule::Adam { weight_decay: weight_decay as f32 }, lr),
            DenseOptimizer::AdamW { lr, weight_decay } => (Rule::AdamW { weight_decay }, lr),
            DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
                (Rule::Sgd { momentum: momentum as f32, weight_decay: weight_decay as f32 }, lr)
            }
            DenseOptimizer::Adagrad { lr, epsilon, weight_decay, .. } => {
                (Rule::Adagrad { epsilon: epsilon as f32, weight_decay: weight_decay as f32 }, lr)
            }
        };
        let first = |name, value| (name, vec![value; weights]);
        let vectors = match *optimizer {
            DenseOptimizer::Sgd { momentum: 0.0, .. } => BTreeMap::new(),
            DenseOptimizer::Sgd { .. } => BTreeMap::from([first("velocity", 0.0)]),
            DenseOptimizer::Adagrad { initial_accumulator, .. } => {
                BTreeMap::from([first("squares", initial_accumulator as f32)])
            }
            DenseOptimizer::Adam { .. } | DenseOptimizer::AdamW { .. } => {
                BTreeMap::from([first("first_moment", 0.0), first("second_moment", 0.0)])
            }
        };
        let rates = vec![RateRange { weights: 0..weights, factor: 1.0 }];
        Self { rule, lr, updates, rates, state: SlotState { applied: 0, vectors } }
    }

    /// With factors of the learning rate.
    pub(super) fn with_rates(self, rates: Vec<RateRange>) -> Self {
        Self { rates, ..self }
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
        let (first, second) = (vectors.next().unwrap_or_default(), vectors.next().unwrap_or_default());
        for RateRange { weights: range, factor } in &self.rates {
            let state = (part(first, range), part(second, range));
            self.rule.apply((lr, *factor), *applied, &mut weights[range.clone()], &gradients[range.clone()], state);
        }
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

/// The state of some weights; nothing of a vector that the rule does not have.
fn part<'a>(vector: &'a mut [f32], range: &Range<usize>) -> &'a mut [f32] {
    vector.get_mut(range.clone()).unwrap_or_default()
}

impl Rule {
    /// Updates weights with the learning rate `lr.0` times the factor `lr.1`. The factor is not part of AdamW's decay: µP keeps the pull to
    /// zero for all widths.
    fn apply(
        self,
        lr: (f64, f32),
        applied: u64,
        weights: &mut [f32],
        gradients: &[f32],
        (first, second): (&mut [f32], &mut [f32]),
    ) {
        let (lr, scaled) = (lr.0, lr.0 * f64::from(lr.1));
        match self {
            Self::Sgd { momentum, weight_decay } => {
                sgd(weights, gradients, first, scaled as f32, momentum, weight_decay);
            }
            Self::Adagrad { epsilon, weight_decay } => {
                adagrad(weights, gradients, first, scaled as f32, epsilon, weight_decay);
            }
            Self::Adam { weight_decay } => {
                let rates = AdamRates::of(scaled, applied);
                adam(weights, gradients, first, second, AdamRates { weight_decay, ..rates });
            }
            Self::AdamW { weight_decay } => {
                let rates = AdamRates::of(scaled, applied);
                adam(weights, gradients, first, second, AdamRates { keep: (1.0 - lr * weight_decay) as f32, ..rates });
            }
        }
    }
}

fn named(vectors: &[String]) -> String {
    if vectors.is_empty() { "nothing".to_owned() } else { vectors.join(", ") }
}

/// v ← µ·v + g; w ← w − lr·v (Polyak 1964, as PyTorch writes it). Without momentum `velocity` is empty.
fn sgd(weights: &mut [f32], gradients: &[f32], velocity: &mut [f32], lr: f32, momentum: f32, weight_decay: f32) {
    wide(
        #[inline(always)]
        || {
            if velocity.is_empty() {
                for (weight, gradient) in weights.iter_mut().zip_eq(gradients) {
                    *weight -= lr * (gradient + weight_decay * *weight);
                }
                return;
            }
            for ((weight, gradient), velocity) in weights.iter_mut().zip_eq(gradients).zip_eq(velocity.iter_mut()) {
                *velocity = momentum * *velocity + (gradient + weight_decay * *weight);
                *weight -= lr * *velocity;
            }
        },
    );
}

/// Duchi et al. 2011, element-wise: a ← a + g²; w ← w − lr·g / (√a + ε).
fn adagrad(weights: &mut [f32], gradients: &[f32], squares: &mut [f32], lr: f32, epsilon: f32, weight_decay: f32) {
    wide(
        #[inline(always)]
        || {
            for ((weight, gradient), square) in weights.iter_mut().zip_eq(gradients).zip_eq(squares.iter_mut()) {
                let gradient = gradient + weight_decay * *weight;
                *square += gradient * gradient;
                *weight -= lr * gradient / (square.sqrt() + epsilon);
            }
        },
    );
}

/// The factors of one update of Adam.
#[derive(Clone, Copy, Debug)]
struct AdamRates {
    /// lr / (1 − β₁ᵗ).
    step: f32,
    /// 1 / √(1 − β₂ᵗ).
    root: f32,
    /// Factor of the weight that is added to the gradient: L2 regularisation.
    weight_decay: f32,
    /// Factor of the weight before the update: decoupled decay.
    keep: f32,
}

impl AdamRates {
    /// The factors of the `applied`th update, counted from 1, without decay.
    fn of(lr: f64, applied: u64) -> Self {
        let left = |beta: f32| 1.0 - f64::from(beta).powf(applied as f64);
        Self {
            step: (lr / left(BETAS.0)) as f32,
            root: (1.0 / left(BETAS.1).sqrt()) as f32,
            weight_decay: 0.0,
            keep: 1.0,
        }
    }
}

/// Kingma & Ba 2015, algorithm 1. With `keep` below one: AdamW (Loshchilov & Hutter 2019, algorithm 2).
fn adam(weights: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32], rates: AdamRates) {
    let AdamRates { step, root, weight_decay, keep } = rates;
    wide(
        #[inline(always)]
        || {
            let moments = first.iter_mut().zip_eq(second.iter_mut());
            for ((weight, gradient), (first, second)) in weights.iter_mut().zip_eq(gradients).zip_eq(moments) {
                let gradient = gradient + weight_decay * *weight;
                *first = BETAS.0 * *first + (1.0 - BETAS.0) * gradient;
                *second = BETAS.1 * *second + (1.0 - BETAS.1) * gradient * gradient;
                *weight = keep * *weight - step * *first / (second.sqrt() * root + EPSILON);
            }
        },
    );
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
