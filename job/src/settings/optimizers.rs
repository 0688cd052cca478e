//! Optimisers of the dense network. Those of rows are the table's own, [`zagros_table::Optimizer`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_table::optimizer::dense::DenseRule;

/// Optimiser of the dense network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum DenseOptimizer {
    /// Kingma & Ba 2015, β₁ = 0.9, β₂ = 0.999.
    Adam {
        /// Learning rate.
        #[serde(default = "dense::adam_lr")]
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
        #[serde(default = "dense::adam_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0, "x-change" = "learning"))]
        lr: f64,
        /// Decoupled decay.
        #[serde(default = "dense::decoupled")]
        #[schemars(range(min = 0.0, max = 1.0), extend("x-change" = "learning"))]
        weight_decay: f64,
    },
    /// Duchi et al. 2011: a ← a + g²; w ← w − lr·g / (√a + epsilon).
    Adagrad {
        /// Learning rate.
        #[serde(default = "dense::adagrad_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0, "x-change" = "learning"))]
        lr: f64,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "dense::epsilon")]
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
        #[serde(default = "dense::sgd_lr")]
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

impl DenseOptimizer {
    /// The rule of an update, and its learning rate before the schedule.
    #[must_use]
    pub fn update_rule(&self) -> (DenseRule, f64) {
        match *self {
            Self::Adam { lr, weight_decay } => (DenseRule::Adam { weight_decay: weight_decay as f32 }, lr),
            Self::AdamW { lr, weight_decay } => (DenseRule::AdamW { weight_decay }, lr),
            Self::Sgd { lr, momentum, weight_decay } => {
                (DenseRule::Sgd { momentum: momentum as f32, weight_decay: weight_decay as f32 }, lr)
            }
            Self::Adagrad { lr, epsilon, initial_accumulator, weight_decay } => {
                let [epsilon, initial_accumulator, weight_decay] =
                    [epsilon, initial_accumulator, weight_decay].map(|value| value as f32);
                (DenseRule::Adagrad { epsilon, initial_accumulator, weight_decay }, lr)
            }
        }
    }
}

impl Default for DenseOptimizer {
    fn default() -> Self {
        Self::Adam { lr: dense::adam_lr(), weight_decay: 0.0 }
    }
}

/// Defaults of keys.
mod dense {
    macro_rules! defaults {
        ($($name:ident $value:expr),+) => { $(pub(super) fn $name() -> f64 { $value })+ };
    }

    defaults!(sgd_lr 0.1, adagrad_lr 0.01, adam_lr 0.001, epsilon 1e-10, decoupled 0.01);
}
