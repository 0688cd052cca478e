//! `[train]`: how training runs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_table::NonFinitePolicy;

use super::numbers::{limit, size};
use super::{EarlyStop, Job, RateSchedule, StepCount};

section! {
    /// How training runs.
    #[schemars(rename = "Train")]
    pub struct TrainSettings {
        /// Samples per step of one worker.
        #[schemars(range(min = 1, max = 1_048_576))]
        pub batch_size: usize = 4096,
        /// Epochs over the training files.
        #[schemars(range(min = 1, max = 10_000), extend("x-change" = "operational"))]
        pub epochs: u32 = 1,
        /// Consistency between embeddings and the dense network.
        #[schemars(extend("x-change" = "meaning"))]
        pub mode: Mode = Mode::Hybrid,
        /// Staleness τ of one worker, in batches: how many of its batches may have unacknowledged gradients when the rows of another
        /// batch are looked up. 0 is strictly sequential. Rows are looked up for at most two batches after that of the step, so a τ above 2
        /// has an effect only while gradients wait for their acknowledgement: in one process that is up to about 5. Default: 4 in modes
        /// `hybrid` and `async`; 0 in mode `sync`, which allows no other value.
        #[schemars(range(max = 1024))]
        pub staleness: usize = 4,
        /// Seed of every random choice: first values of rows and weights, dropout, shuffling.
        #[schemars(range(max = 9_223_372_036_854_775_807_u64), extend("x-change" = "meaning"))]
        pub seed: u64 = 1,
        /// Threads of the dense network inside a step; 0 plans them: the machine's cores without those that parse or serve rows.
        /// `zagros up` divides the cores among its workers.
        #[schemars(range(max = 1024), extend("x-change" = "operational"))]
        pub threads: usize = 0,
        /// Numbers in the dense network's matrix products. Weights, sums of gradients, logits and loss stay f32.
        pub precision: Precision = Precision::F32,
        /// Where the dense network computes. The optimiser of its weights runs on the processor.
        #[schemars(extend("x-change" = "operational"))]
        pub device: Device = Device::Cpu,
        /// Where the weights of the dense network and the optimiser's state are.
        #[schemars(extend("x-change" = "meaning"))]
        pub weights: WeightStore = WeightStore::Auto,
        /// Memory that the dense network of one worker may take for weights, gradients and the optimiser's state: a number with a unit, such
        /// as `"2GiB"`. With `weights = "auto"`, a network that needs more is streamed. With streamed
        /// weights, layers that are too large for two of them to be in half of it are cut, and two layers, or slices, and their gradients
        /// must not need more. Default: no limit.
        #[serde(with = "size")]
        #[schemars(with = "Option<String>", extend("x-form" = "size", "x-change" = "operational"))]
        pub memory: Option<u64> = None,
        /// A saved model to start from, by its folder or its run's, as a path or `s3://bucket/prefix`. The run begins with its rows, their
        /// optimiser state and its dense network, and trains them on with this job's data. Tables and layers that only one of the two has
        /// are dropped or begin anew, and a line says so. Default: none, rows and network begin anew.
        #[schemars(length(min = 1), extend("x-change" = "meaning"))]
        pub start_from: Option<String> = None,
        /// From what steps are counted in a run with `start_from`: schedules of learning rates, `eviction.ttl` and `max_steps` follow.
        #[schemars(extend("x-change" = "meaning"))]
        pub start_steps: StartSteps = StartSteps::Restart,
        /// What becomes of rows and weights of a feature, in a run with `start_from`, whose ids or numbers are made otherwise than in the model:
        /// other ranges, hash size, vocabulary, date part, column or transform. A line names each such feature.
        #[schemars(extend("x-change" = "meaning"))]
        pub start_changed: StartChanged = StartChanged::Anew,
        /// Steps after which training stops. Default: none, all epochs are trained.
        #[schemars(range(min = 1, max = 9_223_372_036_854_775_807_u64), extend("x-change" = "operational"))]
        pub max_steps: Option<u64> = None,
        /// Steps between two evaluations within an epoch, at least one, also in epochs: `{ epochs = 0.5 }`. An evaluation follows every epoch in any
        /// case. Default: none.
        pub evaluate_every: Option<StepCount> = None,
        /// Steps of an epoch, by which numbers in epochs become steps: `evaluate_every`, and `warmup`, `decay` and `every` of schedules. Default:
        /// where a key is given in epochs, `zagros train` and `zagros up` count or estimate them from the rows of the training part when a run starts,
        /// as `--dry-run` shows them; a run that resumes keeps those that it began with. Roles that are started one by one need the key.
        #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
        pub epoch_steps: Option<u64> = None,
        /// When training ends before its last epoch. The best state is then saved instead of the last. It needs `data.validation` or
        /// `data.validation_share`. Default: none.
        pub early_stop: Option<EarlyStop> = None,
        /// Share ε of the label that is spread over both classes, in training only: a click counts as 1 − ε/2, no click as ε/2. The
        /// training loss is that of these labels.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub label_smoothing: f64 = 0.0,
        /// Share of the values of the feature vectors that a training step drops, before the network.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub embedding_dropout: f64 = 0.0,
        /// Factor λ of a penalty on the feature vectors of a batch: λ/2 times the mean over the samples of their sum of squares. It is part
        /// of the gradients, so a row is pulled to 0 by the share of the samples that have it; `l2` of a table's optimiser pulls each row of
        /// a batch alike. The loss is reported without it.
        #[schemars(range(min = 0.0, max = 1e30))]
        pub embedding_l2: f64 = 0.0,
        /// λ of `embedding_l2` for single features, by name: `{ user_id = 0.01, item_id = 0 }`. The others have `embedding_l2`.
        #[schemars(extend("additionalProperties" = { "type": "number", "minimum": 0.0, "maximum": 1e30 }))]
        pub feature_l2: BTreeMap<String, f64> = BTreeMap::new(),
        /// Share d of the exponential moving average of the dense weights that a step keeps: average ← d·average + (1 − d)·weights.
        /// Evaluations, predictions and the saved model use the average; rows have none. Not in mode `async`. Default: none.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub ema: Option<f64> = None,
        /// Whether every epoch but the first begins with new rows, while the dense network is trained on (MEDA, Liu et al. 2023): the
        /// remedy against the overfitting of rows in a second pass. Not in mode `async`.
        pub reset_embeddings: bool = false,
        /// Bounds and pace of the dense network's updates.
        #[serde(flatten)]
        pub updates: DenseUpdates = DenseUpdates::default(),
    }
}

/// Where the weights of the dense network and the optimiser's state are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightStore {
    /// `resident`, unless the network needs more than `train.memory`.
    Auto,
    /// Every worker has all of them.
    Resident,
    /// The embedding servers have them, as tiles. A worker pulls the weights of a layer when it computes with them, and pushes the
    /// layer's gradient when it is made; the servers run the optimiser. A worker then has two layers at a time, so the network may be
    /// of any size. Of modes `hybrid` and `sync`, in `f32` on processors, for every network but a TorchScript module.
    Streamed,
}

/// From what a run counts its steps that starts from a saved model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StartSteps {
    /// From 0: schedules begin again, and no row is older in steps than the run. Ages in seconds go on.
    Restart,
    /// From the steps of the model: schedules and ages go on.
    Continue,
}

/// What a run that starts from a saved model does with a feature that means something else there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StartChanged {
    /// The table of such a categorical feature begins empty. For such a number, the layers that read numbers begin anew.
    Anew,
    /// Rows and weights stay: they now belong to other values, and are trained on.
    Keep,
}

/// What happens to the dense network's gradients before its optimiser, and its learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DenseUpdates {
    /// Factor on the dense optimiser's learning rate by step, from the start of the run. Numbers of steps may be given in epochs:
    /// `warmup = { epochs = 0.1 }`. Rows have `embedding.schedule`.
    pub schedule: RateSchedule,
    /// Largest magnitude of a value of the dense network's gradients; 0 for no limit. Larger values are clipped. Rows have
    /// `embedding.clip_value`.
    #[serde(with = "limit")]
    #[schemars(with = "f64", range(min = 0.0, max = 1e30))]
    pub clip_value: Option<f64>,
    /// Largest Euclidean norm of all gradients of the dense network together, after `clip_value`; 0 for no limit. Longer gradients
    /// are scaled down. Rows have `embedding.clip_norm`.
    #[serde(with = "limit")]
    #[schemars(with = "f64", range(min = 0.0, max = 1e30))]
    pub clip_norm: Option<f64>,
    /// What happens to a batch whose loss, or one of whose gradients, is infinite or not a number. `refuse` stops the run; `skip`
    /// skips the whole batch, the dense update and the gradients of rows, and counts it as a step.
    pub non_finite: NonFinitePolicy,
}

/// Consistency between embeddings and the dense network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Embeddings lag by at most `staleness` batches.
    Hybrid,
    /// Every gradient is acknowledged before the next lookup. Runs are bit-exact, and slower.
    Sync,
    /// As `hybrid`, and workers do not share a step: each pushes the gradients of its own batches to the embedding servers, which
    /// also hold the dense network's weights, and waits for no other worker. `optimizer.kind = "adamw"` needs
    /// `weight_decay = 0`. Several workers need `max_steps` and `evaluate_every` unset.
    Async,
}

/// Where the dense network computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// On the processor's cores.
    Cpu,
    /// On the first device that CUDA shows to the process (`CUDA_VISIBLE_DEVICES`). libtorch's CUDA libraries must be on the
    /// loader's path. Not in mode `sync`.
    Cuda,
}

/// Numbers in the dense network's matrix products; all else is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits with f32's range: faster where the processor has units for it (AVX512-BF16, AMX), slower elsewhere.
    Bf16,
    /// 16 bits with more digits than `bf16` and a smaller range, from 2⁻²⁴ to 65,504. Gradients are computed times a loss scale,
    /// which halves when one overflows: that batch is skipped, and counted as a step. For devices that have units for it.
    F16,
}

/// Batches that are hinted before their lookup. A worker holds so many more batches in memory.
const LOOKAHEAD: usize = 2;
/// Batches between a hint and its lookup, beside those of [`LOOKAHEAD`]: looked up before they are asked for, or being handed over.
const BETWEEN: usize = 4;

impl Job {
    /// Batches that are hinted before they are looked up; 0 if every row is in memory.
    pub fn lookahead_batches(&self) -> usize {
        if self.reads_disk() { LOOKAHEAD } else { 0 }
    }

    /// Whether rows can be on disk.
    pub fn reads_disk(&self) -> bool {
        self.cluster.memory.is_some()
            && self.server_tables().iter().any(|table| table.config.eviction.keeps_evicted_rows())
    }

    /// For how many more hints of one worker the rows of a hint are needed. 0 without hints.
    pub fn lookahead_hints(&self) -> usize {
        match self.lookahead_batches() {
            0 => 0,
            batches => batches + BETWEEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    #[test]
    fn only_rows_that_can_be_on_disk_are_hinted() {
        let lookahead = |text: &str| {
            let job = job(CRITEO, text);
            (job.lookahead_batches(), job.lookahead_hints())
        };
        assert_eq!(lookahead(""), (0, 0));
        assert_eq!(lookahead("[cluster]\nmemory = '1GiB'\n"), (2, 6));
        assert_eq!(lookahead("[cluster]\nmemory = '1GiB'\n[embedding]\neviction.target = 'drop'\n"), (0, 0));
    }
}
