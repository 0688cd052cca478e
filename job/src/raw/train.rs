//! `[train]` and `[output]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rows::Schedule;

/// How training runs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Train {
    /// Samples per step.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub(crate) batch_size: usize,
    /// Passes over the training files.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) epochs: u32,
    /// Consistency between embeddings and the dense network.
    pub(crate) mode: Mode,
    /// τ, in batches: how many may have gradients that are not yet acknowledged when another batch's rows are
    /// looked up. 0 is strictly sequential. Default: 4 in mode `hybrid`, 0 in mode `sync`, which allows no other.
    #[schemars(range(max = 1024))]
    pub(crate) staleness: Option<usize>,
    /// Seed of every random choice: first values of rows and weights, dropout, shuffling.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub(crate) seed: u64,
    /// Threads of the dense network inside a step; 0 plans them from the machine's cores, less those that parse.
    #[schemars(range(max = 1024))]
    pub(crate) threads: usize,
    /// Stop after this many steps. Default: none, all epochs are trained.
    #[schemars(range(min = 1, max = 9_223_372_036_854_775_807_u64))]
    pub(crate) max_steps: Option<u64>,
    /// Evaluate every so many steps, besides after each epoch. Default: none.
    #[schemars(range(min = 1, max = 9_223_372_036_854_775_807_u64))]
    pub(crate) evaluate_every: Option<u64>,
    /// Factor on the dense optimiser's learning rate by step, from the start of the run; rows have
    /// `embedding.schedule`.
    pub(crate) schedule: Schedule,
    /// Values of the dense network's gradients are cut to this, above and below zero; 0 for no limit. Rows have
    /// `embedding.clip_value`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) clip_value: f64,
    /// All gradients of the dense network together, after `clip_value`, are scaled down to this Euclidean norm; 0 for
    /// no limit. Rows have `embedding.clip_norm`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) clip_norm: f64,
    /// What becomes of a batch whose loss or any of whose gradients is infinite or not a number.
    pub(crate) non_finite: NonFiniteStep,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            batch_size: 4096,
            epochs: 1,
            mode: Mode::Hybrid,
            staleness: None,
            seed: 1,
            threads: 0,
            max_steps: None,
            evaluate_every: None,
            schedule: Schedule::Constant,
            clip_value: 0.0,
            clip_norm: 0.0,
            non_finite: NonFiniteStep::Refuse,
        }
    }
}

/// What becomes of a batch whose loss or gradients are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NonFiniteStep {
    /// The run stops.
    Refuse,
    /// It is left out whole, no dense update and no gradient of a row, and counted as a step.
    Skip,
}

/// Consistency between embeddings and the dense network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Embeddings lag by at most `staleness` batches.
    Hybrid,
    /// Every gradient is acknowledged before the next lookup: bit-exact from run to run, slower.
    Sync,
}

/// What is written.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Output {
    /// Folder that run folders are made in. A relative path starts at the current directory.
    #[schemars(length(min = 1))]
    pub(crate) folder: String,
    /// Whether the trained model is saved in the run folder.
    pub(crate) save_model: bool,
    /// Whether TensorBoard events are written to the run folder.
    pub(crate) tensorboard: bool,
}

impl Default for Output {
    fn default() -> Self {
        Self { folder: "runs".to_owned(), save_model: true, tensorboard: true }
    }
}
