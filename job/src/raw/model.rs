//! `[model]` and `[optimizer]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The dense network.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Model {
    /// Naumov et al. 2019: numeric features through a bottom MLP, dot products between its output and all embedding
    /// vectors, top MLP. All tables share one `dim`; needs numeric features.
    Dlrm {
        /// Widths of the hidden layers of the bottom MLP, in order; a last layer of the tables' `dim` is appended.
        #[serde(default = "bottom")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 65536)))]
        bottom: Vec<i64>,
        /// Widths of the hidden layers of the top MLP, in order; the output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 65536)))]
        top: Vec<i64>,
        /// Share of the hidden units of the top MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// Feed-forward network over numeric features and embedding vectors side by side.
    Ffnn {
        /// Widths of the hidden layers, in order; the output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 65536)))]
        hidden: Vec<i64>,
        /// Share of hidden units that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
}

impl Default for Model {
    fn default() -> Self {
        Self::Dlrm { bottom: bottom(), top: hidden(), dropout: 0.0 }
    }
}

/// Optimiser of the dense network.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum DenseOptimizer {
    /// Kingma & Ba 2015, β₁ = 0.9, β₂ = 0.999.
    Adam {
        /// Learning rate.
        #[serde(default = "adam_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0))]
        lr: f64,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        weight_decay: f64,
    },
    /// Gradient descent.
    Sgd {
        /// Learning rate.
        #[serde(default = "sgd_lr")]
        #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0))]
        lr: f64,
        /// Momentum; 0 for none.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        momentum: f64,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        weight_decay: f64,
    },
}

impl Default for DenseOptimizer {
    fn default() -> Self {
        Self::Adam { lr: adam_lr(), weight_decay: 0.0 }
    }
}

fn bottom() -> Vec<i64> {
    vec![256, 64]
}

fn hidden() -> Vec<i64> {
    vec![256, 128]
}

fn adam_lr() -> f64 {
    0.001
}

fn sgd_lr() -> f64 {
    0.1
}
