//! What a worker did, in numbers.

use serde::{Deserialize, Serialize};
use zagros_plumbing::process::MachineInfo;

use crate::event::Evaluation;

/// How training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All epochs, or as many steps as the job asked for.
    Finished,
    /// Asked to stop; the step it was in was finished and everything acknowledged.
    Interrupted,
}

/// What a worker did, in numbers. Written to `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How it ended.
    pub outcome: Outcome,
    /// It finished and everything that the job wants is written: there is nothing to go on with. False where the model
    /// could not be saved.
    #[serde(default)]
    pub complete: bool,
    /// Steps made, those skipped among them; in mode `async` by all workers.
    pub steps: u64,
    /// Steps skipped because loss or gradients were not finite (`train.non_finite = "skip"`).
    pub skipped_steps: u64,
    /// Samples trained on by all workers.
    pub samples: u64,
    /// Wall time of training, without evaluation and saving.
    pub seconds: f64,
    /// Samples over seconds.
    pub samples_per_second: f64,
    /// Exponential mean of the training loss over about the last 100 steps, nats.
    pub loss: f64,
    /// AUC over about the last 100,000 training samples of this worker, each scored before it was learned from.
    pub train_auc: Option<f64>,
    /// The last evaluation of the held-out part; with a validation part, the one evaluation of the test part.
    pub evaluation: Option<Evaluation>,
    /// Evaluation of the validation part by the state that is the model.
    #[serde(default)]
    pub validation: Option<Evaluation>,
    /// Steps after which the model was in that state.
    #[serde(default)]
    pub model_step: u64,
    /// Where the model was saved: a path, relative to the run folder or absolute, or `s3://bucket/prefix`; `None` where none
    /// was.
    #[serde(default)]
    pub model: Option<String>,
    /// Why training ended and which state is the model, where the validation part decided it.
    #[serde(default)]
    pub choice: Option<String>,
    /// Measures over about the last 100,000 training samples, each scored before it was learned from.
    #[serde(default)]
    pub recent: Evaluation,
    /// The same of each epoch.
    #[serde(default, alias = "passes")]
    pub epochs: Vec<Evaluation>,
    /// Rows of all tables.
    pub rows: u64,
    /// Memory held by them on all servers: weights, optimiser state, index.
    pub table_bytes: u64,
    /// How old the rows of a step were.
    pub staleness: Staleness,
    /// Where the time went.
    pub stages: StageSeconds,
    /// Malformed rows skipped.
    pub bad_rows: u64,
    /// Most resident memory of this process so far, where the kernel tells.
    pub peak_rss_bytes: Option<u64>,
    /// What it ran on.
    #[serde(default)]
    pub machine: MachineInfo,
}

/// Earlier batches whose gradients were not acknowledged at lookup, over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Staleness {
    /// At most τ.
    pub max: u32,
    /// Mean over the steps.
    pub mean: f64,
}

/// Seconds spent in each stage. Stages overlap, so the sum is more than the wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageSeconds {
    /// Processor time of reading and parsing.
    pub parse: f64,
    /// Finding unique ids.
    pub dedup: f64,
    /// From request to rows.
    pub lookup: f64,
    /// Rows to `[batch, ΣD]`.
    pub gather: f64,
    /// Forward, backward, optimiser.
    pub dense: f64,
    /// Gradients to unique rows.
    pub scatter: f64,
    /// From gradients to acknowledgement.
    pub push: f64,
    /// The step thread had no batch ready.
    pub waiting: f64,
    /// Waiting for the other workers, and summing gradients with them.
    pub reduce: f64,
}
