//! How a gradient changes a row. Each optimiser declares how many values of state it keeps beside the weights.
//!
//! | layout | state of a row | values |
//! |---|---|---|
//! | `sgd` | none | 0 |
//! | `momentum` | `[velocity; dim]` | dim |
//! | `adagrad` | `[a; dim]` | dim |
//! | `adagrad-row` | `[a]` | 1 |
//! | `adam` | `[m; dim] [v; dim] [β₁ᵗ] [β₂ᵗ]` | 2·dim + 2 |
//! | `ftrl` | `[z; dim] [n; dim]` | 2·dim |
//!
//! Layouts of tiles of a dense network are in [`dense`].
//!
//! An update changes only the rows of a batch. Momentum, moments and decay of other rows stay as they are. Other
//! libraries call this "lazy".

pub mod dense;
mod loops;
mod rules;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::PushStep;
use dense::{DenseOptimizer, Staging};
use rules::{adagrad, adam, ftrl, ftrl_anew, row_adagrad, sgd, velocity};

pub use loops::{LARGEST, UpdateLimits};

/// How embedding rows learn. In the formulas g is the gradient after clipping, w a weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Optimizer {
    /// Gradient descent: v ← momentum·v + g; w ← w − lr·v. State: none, or with momentum one value per weight.
    Sgd {
        /// Learning rate.
        #[serde(default = "defaults::sgd_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Share of the velocity v that an update keeps; 0 for no velocity.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 0.9999))]
        momentum: f32,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f32,
    },
    /// Adagrad (Duchi et al. 2011), element-wise: a ← a + g²; w ← w − lr·g / (√a + epsilon). State: one
    /// value per weight.
    Adagrad {
        /// Learning rate.
        #[serde(default = "defaults::adagrad_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "defaults::epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f32,
        /// First value of the accumulator a. A value above 0 softens the first steps of a row.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        initial_accumulator: f32,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f32,
    },
    /// Adagrad with one accumulator per row: a ← a + mean(g²). State: one value per row.
    RowAdagrad {
        /// Learning rate.
        #[serde(default = "defaults::adagrad_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "defaults::epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f32,
        /// First value of the accumulator a. A value above 0 softens the first steps of a row.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        initial_accumulator: f32,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f32,
    },
    /// Adam (Kingma and Ba 2015) on the rows of a batch, each corrected by its own count t of updates:
    /// m ← beta1·m + (1−beta1)·g; v ← beta2·v + (1−beta2)·g²; w ← w − lr·m̂ / (√v̂ + epsilon), m̂ = m / (1−beta1ᵗ) and
    /// v̂ = v / (1−beta2ᵗ). State: two values per weight and two per row.
    Adam {
        /// Learning rate.
        #[serde(default = "defaults::adam_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Share of the mean m that an update keeps.
        #[serde(default = "defaults::beta1")]
        #[schemars(range(min = 0.0, max = 0.9999))]
        beta1: f32,
        /// Share of the mean square v that an update keeps.
        #[serde(default = "defaults::beta2")]
        #[schemars(range(min = 0.0, max = 0.999999))]
        beta2: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "defaults::epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f32,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f32,
    },
    /// Adam with decoupled decay of the rows of a batch (Loshchilov and Hutter 2019): an update also makes
    /// w ← w − lr·weight_decay·w. State: as Adam.
    #[serde(rename = "adamw")]
    AdamW {
        /// Learning rate.
        #[serde(default = "defaults::adam_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Share of the mean m that an update keeps.
        #[serde(default = "defaults::beta1")]
        #[schemars(range(min = 0.0, max = 0.9999))]
        beta1: f32,
        /// Share of the mean square v that an update keeps.
        #[serde(default = "defaults::beta2")]
        #[schemars(range(min = 0.0, max = 0.999999))]
        beta2: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "defaults::epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f32,
        /// Decoupled decay of rows in the batch.
        #[serde(default = "defaults::weight_decay")]
        #[schemars(range(min = 0.0, max = 1.0), extend("x-change" = "learning"))]
        weight_decay: f32,
    },
    /// FTRL-proximal (McMahan et al. 2013, algorithm 1). State: two values per weight.
    //
    // σ = (√(n+g²) − √n) / lr; z ← z + g − σw; n ← n + g²; w = 0 where |z| ≤ l1, else (sign(z)·l1 − z) / ((β+√n) / lr + l2). The first z is
    // chosen so that the formula yields the row's first weights. A gradient of zero therefore changes no weight. Under a schedule, σ is
    // the difference of (β+√n) / lr at the new rate and at the old rate, as the paper defines it.
    Ftrl {
        /// Learning rate, α in the paper.
        #[serde(default = "defaults::ftrl_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Added to the root of the sum of squares, β in the paper. Gradients are those of the mean loss of a batch, so they are
        /// smaller by the batch than the paper's, and so is the default: with the paper's β = 1 rows hardly learn.
        #[serde(default = "defaults::ftrl_beta")]
        #[schemars(range(min = 0.0, max = 1000.0))]
        beta: f32,
        /// L1 penalty. It makes small weights zero.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        l1: f32,
        /// L2 penalty.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        l2: f32,
    },
    /// A rule of the dense network, for rows that are tiles of its weights. Limits of rows do not apply. No job file has it.
    #[serde(skip)]
    Dense {
        /// At the step of the push; that of the rule has no part in an update.
        lr: f64,
        /// Its factor for these weights.
        factor: f32,
        rule: DenseOptimizer,
        /// When gradients change the tile.
        staging: Staging,
    },
}

impl Default for Optimizer {
    fn default() -> Self {
        let (lr, epsilon) = (defaults::adagrad_lr(), defaults::epsilon());
        Self::Adagrad { lr, epsilon, initial_accumulator: 0.0, l2: 0.0 }
    }
}

/// Defaults of keys.
mod defaults {
    macro_rules! defaults {
        ($($name:ident $value:expr),+) => { $(pub(super) fn $name() -> f32 { $value })+ };
    }

    defaults!(sgd_lr 0.1, adagrad_lr 0.02, adam_lr 0.001, ftrl_lr 0.05, epsilon 1e-8, beta1 0.9, beta2 0.999);
    defaults!(weight_decay 0.01, ftrl_beta 1e-4);
}

/// A learning rate so small that FTRL moves no weight. FTRL divides by the rate, so 0 is not possible.
const STILL: f32 = 1e-20;

/// The schedule's factor on the optimiser's learning rate, for one push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RateFactor {
    /// The factor is 1 at every step.
    Constant,
    /// The factor of this step. Other steps have other factors.
    Times(f32),
}

impl Optimizer {
    /// One whose rows have weights alone, for tables that are only read: gradient descent.
    pub fn without_state() -> Self {
        Self::Sgd { lr: defaults::sgd_lr(), momentum: 0.0, l2: 0.0 }
    }

    /// Values of optimiser state for a row of `dim` weights.
    pub fn state_len(&self, dim: usize) -> usize {
        match self {
            Self::Sgd { momentum: 0.0, .. } => 0,
            Self::RowAdagrad { .. } => 1,
            Self::Sgd { .. } | Self::Adagrad { .. } => dim,
            Self::Ftrl { .. } => 2 * dim,
            Self::Adam { .. } | Self::AdamW { .. } => 2 * dim + 2,
            Self::Dense { rule, staging, .. } => rule.state_len(dim) + staging.state_len(dim),
        }
    }

    /// Name of the state's layout, for saved rows. Rows saved with one layout cannot be loaded with another.
    pub fn state_layout(&self) -> &'static str {
        match self {
            Self::Sgd { momentum: 0.0, .. } => "sgd",
            Self::Sgd { .. } => "momentum",
            Self::Adagrad { .. } => "adagrad",
            Self::RowAdagrad { .. } => "adagrad-row",
            Self::Adam { .. } | Self::AdamW { .. } => "adam",
            Self::Ftrl { .. } => "ftrl",
            Self::Dense { rule, staging, .. } => rule.state_layout(*staging),
        }
    }

    pub fn init_state(&self, weights: &[f32], state: &mut [f32]) {
        match *self {
            // Without momentum the state is empty.
            Self::Sgd { .. } => state.fill(0.0),
            Self::Adagrad { initial_accumulator, .. } | Self::RowAdagrad { initial_accumulator, .. } => {
                state.fill(initial_accumulator);
            }
            Self::Adam { .. } | Self::AdamW { .. } => {
                let (moments, powers) = state.split_at_mut(2 * weights.len());
                moments.fill(0.0);
                powers.fill(1.0);
            }
            Self::Dense { rule, .. } => rule.init_state(weights.len(), state),
            Self::Ftrl { lr, beta, l1, l2 } => {
                let (z, n) = state.split_at_mut(weights.len());
                n.fill(0.0);
                for (z, weight) in z.iter_mut().zip_eq(weights) {
                    *z = if *weight == 0.0 { 0.0 } else { -(weight * (beta / lr + l2)) - weight.signum() * l1 };
                }
            }
        }
    }

    /// Applies one gradient to one slot `[weights | state]`. The row has as many weights as the gradient has values.
    /// Panics if the slot is shorter than weights and state; [`crate::Table`] makes slots of the right size.
    #[inline(always)]
    pub fn update_slot(&self, slot: &mut [f32], gradient: &[f32], limits: &UpdateLimits) {
        let (weights, state) = slot.split_at_mut(gradient.len());
        self.apply(weights, state, gradient, limits, RateFactor::Constant);
    }

    pub(crate) fn at_rate(mut self, rate: RateFactor) -> Self {
        let RateFactor::Times(factor) = rate else { return self };
        match &mut self {
            Self::Sgd { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::RowAdagrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::AdamW { lr, .. }
            | Self::Ftrl { lr, .. } => *lr *= factor,
            Self::Dense { lr, .. } => *lr *= f64::from(factor),
        }
        self
    }

    /// The optimiser for a push that does this with tiles.
    pub(crate) fn for_tiles(mut self, step: PushStep) -> Self {
        if let Self::Dense { staging: Staging::UntilCommit(update, number), .. } = &mut self {
            (*update, *number) = (step.tiles, step.number);
        }
        self
    }

    /// Whether tiles keep gradients until their step is committed.
    pub fn stages_gradients(&self) -> bool {
        matches!(self, Self::Dense { staging: Staging::UntilCommit(..), .. })
    }

    /// The optimiser for a push with this share of a step's samples. The share scales the penalties that an update adds
    /// to the gradient or subtracts from the weights. It does not scale FTRL's penalties: they are not part of an
    /// update, but part of the formula from sums to weights.
    #[inline(always)]
    pub(crate) fn with_share(mut self, share: f32) -> Self {
        match &mut self {
            Self::Sgd { l2, .. }
            | Self::Adagrad { l2, .. }
            | Self::RowAdagrad { l2, .. }
            | Self::Adam { l2, .. }
            | Self::AdamW { weight_decay: l2, .. } => *l2 *= share,
            Self::Ftrl { .. } => {}
            Self::Dense { rule, .. } => *rule = rule.with_share(share),
        }
        self
    }

    /// As [`Self::update_slot`], for an optimiser that [`Self::at_rate`] made for this factor.
    #[inline(always)]
    pub(crate) fn apply(
        &self,
        weights: &mut [f32],
        state: &mut [f32],
        gradient: &[f32],
        limits: &UpdateLimits,
        rate: RateFactor,
    ) {
        let shaping = limits.row_limits(gradient);
        match *self {
            Self::Sgd { lr, momentum: 0.0, l2 } => sgd(weights, gradient, shaping, [lr, l2]),
            Self::Sgd { lr, momentum, l2 } => velocity(weights, state, gradient, shaping, [lr, momentum, l2]),
            Self::Adagrad { lr, epsilon, l2, .. } => adagrad(weights, state, gradient, shaping, [lr, epsilon, l2]),
            Self::RowAdagrad { lr, epsilon, l2, .. } => {
                row_adagrad(weights, state, gradient, shaping, [lr, epsilon, l2]);
            }
            Self::Adam { lr, beta1, beta2, epsilon, l2 } => {
                adam(weights, state, gradient, shaping, [lr, beta1, beta2, epsilon, l2, 0.0]);
            }
            Self::AdamW { lr, beta1, beta2, epsilon, weight_decay } => {
                adam(weights, state, gradient, shaping, [lr, beta1, beta2, epsilon, 0.0, weight_decay]);
            }
            Self::Ftrl { lr, beta, l1, l2 } if rate == RateFactor::Constant => {
                ftrl(weights, state, gradient, shaping, [lr, beta, l1, l2]);
            }
            // At a rate of 0 the row stays as it is.
            Self::Ftrl { lr: ..STILL, .. } => {}
            Self::Ftrl { lr, beta, l1, l2 } => ftrl_anew(weights, state, gradient, shaping, [lr, beta, l1, l2]),
            Self::Dense { lr, factor, rule, staging } => {
                rule.push_to_tile((lr, factor), weights, state, gradient, staging);
            }
        }
    }

    pub(crate) fn problem(&self) -> Option<String> {
        let (values, shares) = match *self {
            Self::Sgd { lr, momentum, l2 } => (vec![lr, l2], vec![momentum]),
            Self::Adagrad { lr, epsilon, initial_accumulator, l2 }
            | Self::RowAdagrad { lr, epsilon, initial_accumulator, l2 } => {
                (vec![lr, epsilon, initial_accumulator, l2], Vec::new())
            }
            Self::Adam { lr, beta1, beta2, epsilon, l2: decay }
            | Self::AdamW { lr, beta1, beta2, epsilon, weight_decay: decay } => {
                (vec![lr, epsilon, decay], vec![beta1, beta2])
            }
            // FTRL divides by its rate.
            Self::Ftrl { lr, beta, l1, l2 } => (vec![lr, 1.0 / lr, beta, l1, l2], Vec::new()),
            Self::Dense { lr, factor, .. } => (vec![lr as f32, factor], Vec::new()),
        };
        let is_bad = values.iter().any(|value| !(value.is_finite() && *value >= 0.0))
            || shares.iter().any(|share| !(0.0..1.0).contains(share));
        is_bad.then(|| {
            format!("{self:?}; expected finite numbers of at least 0, shares (momentum, beta1, beta2) below 1, and a rate of ftrl above 0")
        })
    }
}

#[cfg(test)]
mod tests;
