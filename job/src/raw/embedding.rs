//! `[embedding]` and `[tables.<name>]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What all embedding tables have in common.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Embedding {
    /// Values per row.
    #[schemars(range(min = 1, max = 4096))]
    pub(crate) dim: usize,
    /// First value of a row: a function of `train.seed`, table and id alone.
    pub(crate) init: Init,
    /// How rows learn.
    pub(crate) optimizer: TableOptimizer,
}

impl Default for Embedding {
    fn default() -> Self {
        let init = Init::Uniform { bound: bound() };
        let optimizer =
            TableOptimizer::Adagrad { lr: adagrad_lr(), epsilon: epsilon(), initial_accumulator: 0.0, l2: 0.0 };
        Self { dim: 16, init, optimizer }
    }
}

/// One embedding table.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Table {
    /// Values per row. Default: `embedding.dim`.
    #[schemars(range(min = 1, max = 4096))]
    pub(crate) dim: Option<usize>,
    /// First value of a row. Default: `embedding.init`.
    pub(crate) init: Option<Init>,
    /// How rows learn. Default: `embedding.optimizer`.
    pub(crate) optimizer: Option<TableOptimizer>,
}

/// First value of a row.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Init {
    /// All zero.
    Zero,
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half width of the range.
        #[serde(default = "bound")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        bound: f64,
    },
    /// Normal around zero.
    Normal {
        /// Standard deviation.
        #[serde(default = "deviation")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        deviation: f64,
    },
}

/// How embedding rows learn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum TableOptimizer {
    /// Gradient descent: w ← w − lr·g.
    Sgd {
        /// Learning rate.
        #[serde(default = "sgd_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f64,
    },
    /// Adagrad (Duchi et al. 2011), element-wise: a ← a + g²; w ← w − lr·g / (√a + epsilon).
    Adagrad {
        /// Learning rate.
        #[serde(default = "adagrad_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// Added to the root; keeps the quotient finite.
        #[serde(default = "epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f64,
        /// First value of the accumulator a; above 0 it softens the first steps of a row.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        initial_accumulator: f64,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f64,
    },
}

fn bound() -> f64 {
    0.01
}

fn deviation() -> f64 {
    0.01
}

fn sgd_lr() -> f64 {
    0.1
}

fn adagrad_lr() -> f64 {
    0.02
}

fn epsilon() -> f64 {
    1e-8
}
