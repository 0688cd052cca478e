//! The update rules of the dense network. A worker applies them to all weights at once, a server to one tile of weights; both
//! give the same bits.
//!
//! | layout | state of a tile | values |
//! |---|---|---|
//! | `dense-sgd` | `[updates; 2]` | 2 |
//! | `dense-momentum` | `[velocity; dim] [updates; 2]` | dim + 2 |
//! | `dense-adagrad` | `[squares; dim] [updates; 2]` | dim + 2 |
//! | `dense-adam` | `[m; dim] [v; dim] [updates; 2]` | 2·dim + 2 |
//! | `staged-dense-…` | that of `dense-…` `[gradient; dim] [step; 2]` | dim + 2 more |

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::TileUpdate;
use crate::machine::run_wide;

/// Adam's decay rates of the moments, and the constant that prevents a division by zero, as in the paper (and PyTorch).
const BETAS: (f32, f32) = (0.9, 0.999);
const EPSILON: f32 = 1e-8;

/// The count of updates is two numbers, the second in units of this: each is a whole number that f32 holds exactly.
const COUNT_UNIT: u64 = 1 << 20;
const COUNT: usize = 2;

/// When a gradient changes its tile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Staging {
    #[default]
    None,
    /// When its step is committed: a row has room for a gradient that waits. What a push does and its step are those of the push.
    UntilCommit(TileUpdate, u64),
}

impl Staging {
    pub const UNTIL_COMMIT: Self = Self::UntilCommit(TileUpdate::AtOnce, 0);

    /// Values of the state that a tile of `dim` weights has for it.
    pub(super) fn state_len(self, dim: usize) -> usize {
        if self == Self::None { 0 } else { dim + COUNT }
    }
}

/// Optimiser of the dense network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum DenseOptimizer {
    /// Kingma & Ba 2015, β₁ = 0.9, β₂ = 0.999.
    Adam {
        /// Learning rate.
        #[serde(default = "defaults::adam_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0, "x-change" = "learning"))]
        lr: f64,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0), extend("x-change" = "learning"))]
        weight_decay: f64,
    },
    /// Adam with decoupled decay, Loshchilov & Hutter 2019: an update also makes w ← w − lr·weight_decay·w.
    #[serde(rename = "adamw")]
    AdamW {
        /// Learning rate.
        #[serde(default = "defaults::adam_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0, "x-change" = "learning"))]
        lr: f64,
        /// Decoupled decay.
        #[serde(default = "defaults::decoupled")]
        #[schemars(range(min = 0.0, max = 1.0), extend("x-change" = "learning"))]
        weight_decay: f64,
    },
    /// Duchi et al. 2011: a ← a + g²; w ← w − lr·g / (√a + epsilon).
    Adagrad {
        /// Learning rate.
        #[serde(default = "defaults::adagrad_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0, "x-change" = "learning"))]
        lr: f64,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "defaults::epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f64,
        /// First value of the accumulator a. A value above 0 softens the first steps.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        initial_accumulator: f64,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0), extend("x-change" = "learning"))]
        weight_decay: f64,
    },
    /// Gradient descent.
    Sgd {
        /// Learning rate.
        #[serde(default = "defaults::sgd_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0, "x-change" = "learning"))]
        lr: f64,
        /// Momentum; 0 for none.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        momentum: f64,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0), extend("x-change" = "learning"))]
        weight_decay: f64,
    },
}

impl Default for DenseOptimizer {
    fn default() -> Self {
        Self::Adam { lr: defaults::adam_lr(), weight_decay: 0.0 }
    }
}

/// Defaults of keys.
mod defaults {
    macro_rules! defaults {
        ($($name:ident $value:expr),+) => { $(pub(super) fn $name() -> f64 { $value })+ };
    }

    defaults!(sgd_lr 0.1, adagrad_lr 0.01, adam_lr 0.001, epsilon 1e-10, decoupled 0.01);
}

impl DenseOptimizer {
    /// The learning rate before the schedule.
    pub fn learning_rate(&self) -> f64 {
        match *self {
            Self::Adam { lr, .. } | Self::AdamW { lr, .. } | Self::Adagrad { lr, .. } | Self::Sgd { lr, .. } => lr,
        }
    }

    /// Names of the state's vectors. Each is as long as the weights.
    pub fn state_vectors(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum: 0.0, .. } => &[],
            Self::Sgd { .. } => &["velocity"],
            Self::Adagrad { .. } => &["squares"],
            Self::Adam { .. } | Self::AdamW { .. } => &["first_moment", "second_moment"],
        }
    }

    pub fn first_value(&self) -> f32 {
        if let Self::Adagrad { initial_accumulator, .. } = *self { initial_accumulator as f32 } else { 0.0 }
    }

    /// One update, the `applied`th, counted from 1, with the learning rate `lr.0` times the factor `lr.1`. The factor is not part of
    /// AdamW's decay: the pull to zero is that of all widths. `state` are the vectors in the order of [`Self::state_vectors`].
    /// Panics if a vector of the rule is missing, or has another length than the weights.
    pub fn apply(&self, lr: (f64, f32), applied: u64, weights: &mut [f32], gradients: &[f32], state: [&mut [f32]; 2]) {
        let ([first, second], lr, scaled) = (state, lr.0, lr.0 * f64::from(lr.1));
        match *self {
            Self::Sgd { momentum, weight_decay, .. } => {
                sgd(weights, gradients, first, scaled as f32, momentum as f32, weight_decay as f32);
            }
            Self::Adagrad { epsilon, weight_decay, .. } => {
                adagrad(weights, gradients, first, scaled as f32, epsilon as f32, weight_decay as f32);
            }
            Self::Adam { weight_decay, .. } => {
                let weight_decay = weight_decay as f32;
                adam(weights, gradients, first, second, AdamRates { weight_decay, ..AdamRates::new(scaled, applied) });
            }
            Self::AdamW { weight_decay, .. } => {
                let keep = (1.0 - lr * weight_decay) as f32;
                adam(weights, gradients, first, second, AdamRates { keep, ..AdamRates::new(scaled, applied) });
            }
        }
    }

    pub(super) fn state_len(&self, dim: usize) -> usize {
        self.state_vectors().len() * dim + COUNT
    }

    pub(super) fn state_layout(&self, staging: Staging) -> &'static str {
        let [at_once, staged] = match self {
            Self::Sgd { momentum: 0.0, .. } => ["dense-sgd", "staged-dense-sgd"],
            Self::Sgd { .. } => ["dense-momentum", "staged-dense-momentum"],
            Self::Adagrad { .. } => ["dense-adagrad", "staged-dense-adagrad"],
            Self::Adam { .. } | Self::AdamW { .. } => ["dense-adam", "staged-dense-adam"],
        };
        if staging == Staging::None { at_once } else { staged }
    }

    pub(super) fn init_state(&self, dim: usize, state: &mut [f32]) {
        let (vectors, others) = state.split_at_mut(self.state_vectors().len() * dim);
        vectors.fill(self.first_value());
        others.fill(0.0);
    }

    pub(super) fn push_to_tile(
        &self,
        lr: (f64, f32),
        weights: &mut [f32],
        state: &mut [f32],
        gradients: &[f32],
        staging: Staging,
    ) {
        let Staging::UntilCommit(update, step) = staging else {
            return self.apply_to_tile(lr, weights, state, gradients);
        };
        let (state, waiting) = state.split_at_mut(self.state_len(weights.len()));
        let (staged, of_step) = waiting.split_at_mut(weights.len());
        match update {
            TileUpdate::AtOnce => self.apply_to_tile(lr, weights, state, gradients),
            TileUpdate::Stage => {
                staged.copy_from_slice(gradients);
                write_count(of_step, step + 1);
            }
            TileUpdate::Commit { .. } if read_count(of_step) != step + 1 => {}
            TileUpdate::Commit { factor } => {
                if factor != 1.0 {
                    staged.iter_mut().for_each(|gradient| *gradient *= factor);
                }
                self.apply_to_tile(lr, weights, state, staged);
                write_count(of_step, 0);
            }
        }
    }

    /// One update of a tile, which counts it.
    fn apply_to_tile(&self, lr: (f64, f32), weights: &mut [f32], state: &mut [f32], gradients: &[f32]) {
        let (vectors, count) = state.split_at_mut(state.len() - COUNT);
        let applied = read_count(count) + 1;
        write_count(count, applied);
        let (first, second) = vectors.split_at_mut(weights.len().min(vectors.len()));
        self.apply(lr, applied, weights, gradients, [first, second]);
    }

    pub(super) fn with_share(mut self, share: f32) -> Self {
        match &mut self {
            Self::Sgd { weight_decay, .. } | Self::Adagrad { weight_decay, .. } | Self::Adam { weight_decay, .. } => {
                *weight_decay = f64::from(*weight_decay as f32 * share);
            }
            Self::AdamW { weight_decay, .. } => *weight_decay *= f64::from(share),
        }
        self
    }
}

fn read_count(values: &[f32]) -> u64 {
    values[1] as u64 * COUNT_UNIT + values[0] as u64
}

fn write_count(values: &mut [f32], count: u64) {
    (values[0], values[1]) = ((count % COUNT_UNIT) as f32, (count / COUNT_UNIT) as f32);
}

/// Without momentum `velocity` is empty.
fn sgd(weights: &mut [f32], gradients: &[f32], velocity: &mut [f32], lr: f32, momentum: f32, weight_decay: f32) {
    run_wide(
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

fn adagrad(weights: &mut [f32], gradients: &[f32], squares: &mut [f32], lr: f32, epsilon: f32, weight_decay: f32) {
    run_wide(
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
    fn new(lr: f64, applied: u64) -> Self {
        let left = |beta: f32| 1.0 - f64::from(beta).powf(applied as f64);
        Self {
            step: (lr / left(BETAS.0)) as f32,
            root: (1.0 / left(BETAS.1).sqrt()) as f32,
            weight_decay: 0.0,
            keep: 1.0,
        }
    }
}

fn adam(weights: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32], rates: AdamRates) {
    let AdamRates { step, root, weight_decay, keep } = rates;
    run_wide(
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

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: [DenseOptimizer; 5] = [
        DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.01 },
        DenseOptimizer::Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.0 },
        DenseOptimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.1, weight_decay: 0.01 },
        DenseOptimizer::Adam { lr: 0.1, weight_decay: 0.01 },
        DenseOptimizer::AdamW { lr: 0.1, weight_decay: 0.01 },
    ];

    /// A server with tiles and a worker with all weights make the same network.
    #[test]
    fn tiles_are_updated_as_all_weights_at_once() {
        let value = |index: usize, step: usize| ((index * 7 + step * 13) as f32 * 0.37).sin();
        for rule in RULES {
            let mut whole: Vec<f32> = (0..70).map(|index| value(index, 0)).collect();
            let mut state = [(); 2].map(|()| vec![rule.first_value(); 70]);
            state[rule.state_vectors().len()..].iter_mut().for_each(Vec::clear);
            let new_tile = |weights: &[f32]| {
                let mut state = vec![f32::NAN; rule.state_len(weights.len())];
                rule.init_state(weights.len(), &mut state);
                (weights.to_vec(), state)
            };
            let mut tiles: Vec<(Vec<f32>, Vec<f32>)> = whole.chunks(32).map(new_tile).collect();
            for step in 1..6 {
                let gradients: Vec<f32> = (0..70).map(|index| value(index, step)).collect();
                let lr = (0.01 / step as f64, 0.5);
                let [first, second] = &mut state;
                rule.apply(lr, step as u64, &mut whole, &gradients, [first, second]);
                for ((weights, state), gradients) in tiles.iter_mut().zip_eq(gradients.chunks(32)) {
                    rule.apply_to_tile(lr, weights, state, gradients);
                }
                let joined: Vec<f32> = tiles.iter().flat_map(|(weights, _)| weights.clone()).collect();
                assert_eq!(joined, whole, "{rule:?} after {step}");
            }
        }
    }

    #[test]
    fn a_tile_counts_its_updates_beyond_what_one_number_holds() {
        let rule = RULES[0];
        let mut state = [(COUNT_UNIT - 1) as f32, 16.0];
        rule.apply_to_tile((0.0, 1.0), &mut [0.0], &mut state, &[0.0]);
        assert_eq!(state, [0.0, 17.0]);
        rule.apply_to_tile((0.0, 1.0), &mut [0.0], &mut state, &[0.0]);
        assert_eq!(state, [1.0, 17.0]);
    }

    /// What a tile becomes when gradients are staged and committed, and when their like are applied at once.
    #[test]
    fn a_staged_gradient_is_applied_once_by_the_commit_of_its_step() {
        const DIM: usize = 9;
        let push = |rule: DenseOptimizer, tile: &mut (Vec<f32>, Vec<f32>), update, step, gradient: &[f32]| {
            let staging = Staging::UntilCommit(update, step);
            rule.push_to_tile((0.1, 1.0), &mut tile.0, &mut tile.1, gradient, staging);
        };
        for rule in RULES {
            let first: Vec<f32> = (0..DIM).map(|index| index as f32 - 3.5).collect();
            let mut state = vec![f32::NAN; rule.state_len(DIM) + Staging::UNTIL_COMMIT.state_len(DIM)];
            rule.init_state(DIM, &mut state);
            let mut tile = (first.clone(), state);
            let mut at_once = tile.clone();
            let gradient: Vec<f32> = (0..DIM).map(|index| (index as f32).sin()).collect();
            push(rule, &mut tile, TileUpdate::Stage, 0, &[7.0; DIM]);
            assert_eq!(tile.0, first, "{rule:?}: a gradient waits");
            // The step is given up, and made again.
            push(rule, &mut tile, TileUpdate::Stage, 0, &gradient);
            push(rule, &mut tile, TileUpdate::Commit { factor: 0.5 }, 1, &[]);
            assert_eq!(tile.0, first, "{rule:?}: the commit is of another step");
            for _ in 0..2 {
                push(rule, &mut tile, TileUpdate::Commit { factor: 0.5 }, 0, &[]);
                let halves: Vec<f32> = gradient.iter().map(|gradient| gradient * 0.5).collect();
                if tile.0 != at_once.0 && at_once.0 == first {
                    push(rule, &mut at_once, TileUpdate::AtOnce, 0, &halves);
                }
                let updated = rule.state_len(DIM);
                assert_eq!((&tile.0, &tile.1[..updated]), (&at_once.0, &at_once.1[..updated]), "{rule:?}");
            }
            assert_ne!(tile.0, first);
        }
    }
}
