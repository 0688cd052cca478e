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
    /// Epochs over the training files.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) epochs: u32,
    /// Consistency between embeddings and the dense network.
    pub(crate) mode: Mode,
    /// τ, in batches: how many may have gradients that are not yet acknowledged when another batch's rows are
    /// looked up. 0 is strictly sequential. Default: 4 in modes `hybrid` and `async`, 0 in mode `sync`, which allows no
    /// other.
    #[schemars(range(max = 1024))]
    pub(crate) staleness: Option<usize>,
    /// The same over all workers together, in batches: each of n workers gets τ = (this + 1) / n − 1, rounded down, where
    /// that is less than `staleness`. At least n − 1: every worker has a batch of its own. Default: none.
    #[schemars(range(max = 1_048_576))]
    pub(crate) staleness_total: Option<usize>,
    /// Seed of every random choice: first values of rows and weights, dropout, shuffling.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub(crate) seed: u64,
    /// Threads of the dense network inside a step; 0 plans them from the machine's cores, less
    /// those that parse or serve rows; `zagros up` divides the cores among its workers.
    #[schemars(range(max = 1024))]
    pub(crate) threads: usize,
    /// Numbers that the dense network's matrix products are made of; weights, sums of gradients, logits and loss
    /// stay f32.
    pub(crate) precision: Precision,
    /// Where the dense network computes. The weights' optimiser stays on the processor.
    pub(crate) device: Device,
    /// Stop after this many steps. Default: none, all epochs are trained.
    #[schemars(range(min = 1, max = 9_223_372_036_854_775_807_u64))]
    pub(crate) max_steps: Option<u64>,
    /// Evaluate every so many steps, besides after each epoch. Default: none.
    #[schemars(range(min = 1, max = 9_223_372_036_854_775_807_u64))]
    pub(crate) evaluate_every: Option<u64>,
    /// End training once the validation part gets no better, and save the best state instead of the last; needs
    /// `data.validation` or `data.validation_share`. Default: none.
    pub(crate) early_stop: Option<EarlyStop>,
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

/// When training ends before its last epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EarlyStop {
    /// Measure of the validation part that must get better.
    pub(crate) metric: Metric,
    /// Evaluations in a row without a better one after which training ends.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) patience: u32,
    /// By how much a measure must be better to count.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(crate) min_delta: f64,
}

impl Default for EarlyStop {
    fn default() -> Self {
        Self { metric: Metric::Auc, patience: 2, min_delta: 0.0 }
    }
}

/// Measure of a held-out part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Metric {
    /// Area under the ROC curve; more is better.
    Auc,
    /// Mean binary cross-entropy; less is better.
    Logloss,
    /// Mean AUC within the groups of `eval.group_by`; more is better.
    Gauc,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            batch_size: 4096,
            epochs: 1,
            mode: Mode::Hybrid,
            staleness: None,
            staleness_total: None,
            seed: 1,
            threads: 0,
            precision: Precision::F32,
            device: Device::Cpu,
            max_steps: None,
            evaluate_every: None,
            early_stop: None,
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
    /// It is skipped whole, no dense update and no gradient of a row, and counted as a step.
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
    /// As `hybrid`, and the dense network is not summed over workers either: each pushes the gradients of its own
    /// batches to the embedding servers, which hold the network's weights, and waits for nobody. `optimizer.kind = "adamw"`
    /// needs `weight_decay = 0`; several workers need `max_steps` and `evaluate_every` unset.
    Async,
}

/// Where matrix products are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Device {
    /// On the processor's cores.
    Cpu,
    /// On the first device that CUDA shows to the process (`CUDA_VISIBLE_DEVICES`), with libtorch's CUDA half on the
    /// loader's path; not in mode `sync`.
    Cuda,
}

/// Numbers in matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits with f32's range: faster where the processor has units for it (AVX512-BF16, AMX), slower elsewhere.
    Bf16,
    /// 16 bits with more digits than `bf16` and a smaller range. Gradients are computed times a loss scale, which halves
    /// when one overflows: that batch is skipped, and counted as a step. For devices that have units for it.
    F16,
}

/// What is written.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Output {
    /// Folder that run folders are made in. A relative path starts at the current directory.
    #[schemars(length(min = 1))]
    pub(crate) folder: String,
    /// Whether the trained model is saved.
    pub(crate) save_model: bool,
    /// Folder that the trained model is saved in, as `model` in a folder of the run's name: a path that every role reaches,
    /// or `s3://bucket/prefix` in an S3-compatible store, with credentials and endpoint as of `checkpoint.folder`. A
    /// relative path starts at the current directory. Default: `model` in the run folder, which every embedding server must
    /// then reach under the same path.
    #[schemars(length(min = 1))]
    pub(crate) model_folder: Option<String>,
    /// Whether TensorBoard events are written to the run folder.
    pub(crate) tensorboard: bool,
    /// States that are kept where the checkpoints are while training, the best by `train.early_stop.metric`, besides the last; the best one becomes the saved model. 0 keeps none: the last state is saved then. Default: 1
    /// with `train.early_stop`, else 0.
    #[schemars(range(max = 1000))]
    pub(crate) keep_best: Option<u32>,
}

impl Default for Output {
    fn default() -> Self {
        Self { folder: "runs".to_owned(), save_model: true, model_folder: None, tensorboard: true, keep_best: None }
    }
}
