//! Optimisers of an embedding table's rows and of the dense network.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_table::Optimizer;
use zagros_table::optimizer::dense::DenseRule;

/// How embedding rows learn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TableOptimizer {
    /// Gradient descent: v ← momentum·v + g; w ← w − lr·v. State: none, or with momentum one value per weight.
    Sgd {
        /// Learning rate.
        #[serde(default = "rows::sgd_lr")]
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
        #[serde(default = "rows::adagrad_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "rows::epsilon")]
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
        #[serde(default = "rows::adagrad_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "rows::epsilon")]
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
        #[serde(default = "rows::adam_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Share of the mean m that an update keeps.
        #[serde(default = "rows::beta1")]
        #[schemars(range(min = 0.0, max = 0.9999))]
        beta1: f32,
        /// Share of the mean square v that an update keeps.
        #[serde(default = "rows::beta2")]
        #[schemars(range(min = 0.0, max = 0.999999))]
        beta2: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "rows::epsilon")]
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
        #[serde(default = "rows::adam_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Share of the mean m that an update keeps.
        #[serde(default = "rows::beta1")]
        #[schemars(range(min = 0.0, max = 0.9999))]
        beta1: f32,
        /// Share of the mean square v that an update keeps.
        #[serde(default = "rows::beta2")]
        #[schemars(range(min = 0.0, max = 0.999999))]
        beta2: f32,
        /// Added to the root. It keeps the quotient finite.
        #[serde(default = "rows::epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f32,
        /// Decoupled decay of rows in the batch.
        #[serde(default = "rows::weight_decay")]
        #[schemars(range(min = 0.0, max = 1.0), extend("x-change" = "learning"))]
        weight_decay: f32,
    },
    /// FTRL-proximal (McMahan et al. 2013, algorithm 1). State: two values per weight.
    Ftrl {
        /// Learning rate, α in the paper.
        #[serde(default = "rows::ftrl_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0), extend("x-change" = "learning"))]
        lr: f32,
        /// Added to the root of the sum of squares, β in the paper. Gradients are those of the mean loss of a batch, so they are
        /// smaller by the batch than the paper's, and so is the default: with the paper's β = 1 rows hardly learn.
        #[serde(default = "rows::ftrl_beta")]
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
}

impl Default for TableOptimizer {
    fn default() -> Self {
        Self::Adagrad { lr: rows::adagrad_lr(), epsilon: rows::epsilon(), initial_accumulator: 0.0, l2: 0.0 }
    }
}

impl TableOptimizer {
    /// One whose rows have weights alone, for tables that are only read: gradient descent.
    #[must_use]
    pub fn without_state() -> Self {
        Self::Sgd { lr: rows::sgd_lr(), momentum: 0.0, l2: 0.0 }
    }
}

/// The update rule: a momentum of 0 needs no state, and both kinds of Adam share one rule.
impl From<TableOptimizer> for Optimizer {
    fn from(optimizer: TableOptimizer) -> Self {
        match optimizer {
            TableOptimizer::Sgd { lr, momentum: 0.0, l2 } => Self::Sgd { lr, l2 },
            TableOptimizer::Sgd { lr, momentum, l2 } => Self::Momentum { lr, momentum, l2 },
            TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2 } => {
                Self::Adagrad { lr, epsilon, initial_accumulator, l2 }
            }
            TableOptimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 } => {
                Self::RowAdagrad { lr, epsilon, initial_accumulator, l2 }
            }
            TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2 } => {
                Self::Adam { lr, beta1, beta2, epsilon, l2, weight_decay: 0.0 }
            }
            TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay } => {
                Self::Adam { lr, beta1, beta2, epsilon, l2: 0.0, weight_decay }
            }
            TableOptimizer::Ftrl { lr, beta, l1, l2 } => Self::Ftrl { lr, beta, l1, l2 },
        }
    }
}

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
macro_rules! defaults {
    ($of:ty: $($name:ident $value:expr),+) => { $(pub(super) fn $name() -> $of { $value })+ };
}

mod rows {
    defaults!(f32: sgd_lr 0.1, adagrad_lr 0.02, adam_lr 0.001, ftrl_lr 0.05, epsilon 1e-8, beta1 0.9, beta2 0.999);
    defaults!(f32: weight_decay 0.01, ftrl_beta 1e-4);
}

mod dense {
    defaults!(f64: sgd_lr 0.1, adagrad_lr 0.01, adam_lr 0.001, epsilon 1e-10, decoupled 0.01);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_only_read_need_no_state() {
        assert_eq!(Optimizer::from(TableOptimizer::without_state()).state_layout(), "sgd");
    }

    #[test]
    fn momentum_needs_state_unless_it_is_zero() {
        let sgd = |momentum| Optimizer::from(TableOptimizer::Sgd { lr: 0.5, momentum, l2: 0.25 });
        assert_eq!(sgd(0.0), Optimizer::Sgd { lr: 0.5, l2: 0.25 });
        assert_eq!(sgd(0.5), Optimizer::Momentum { lr: 0.5, momentum: 0.5, l2: 0.25 });
    }

    #[test]
    fn both_kinds_of_adam_share_their_rows() {
        let (lr, beta1, beta2, epsilon) = (0.1, 0.9, 0.99, 1e-8);
        let adam = Optimizer::from(TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2: 0.5 });
        let decoupled = Optimizer::from(TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay: 0.5 });
        assert_eq!(adam, Optimizer::Adam { lr, beta1, beta2, epsilon, l2: 0.5, weight_decay: 0.0 });
        assert_eq!(decoupled, Optimizer::Adam { lr, beta1, beta2, epsilon, l2: 0.0, weight_decay: 0.5 });
        assert_eq!(adam.state_layout(), decoupled.state_layout());
    }
}
