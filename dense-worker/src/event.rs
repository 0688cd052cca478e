//! Events of a worker, for a progress line, a log and a run folder.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_embedding_client::push_record::PushRecorder;
pub use zagros_eval::Evaluation;
use zagros_ingest::RareCategories;

/// Gets every event, in order. It is called on the training path, so it must be quick and give slow work to a thread of its
/// own.
pub trait Observer: Send + Sync {
    fn observe(&self, event: &WorkerEvent);
    /// Who keeps account of a worker's pushes, and of the dense network that it ends with. It is called on the training path, above the
    /// client that routes a push: the code below does not notice a part that routing drops.
    fn audit(&self) -> Option<&PushRecorder> {
        None
    }
}

/// Those that are recorded are lines of `metrics.jsonl` ([`crate::MeasureRecorder`]).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum WorkerEvent {
    /// This reads the training rows once.
    #[serde(skip)]
    Fitting,
    #[serde(skip)]
    Fitted {
        rows: u64,
        /// Share of positive rows, 0..1.
        positive_rate: f64,
    },
    /// An encoding does not list every category.
    #[serde(skip)]
    RareCategories(RareCategories),
    /// The worker waits for this process: `coordinator (127.0.0.1:7700)`.
    #[serde(skip)]
    WaitingFor(String),
    /// The worker and every embedding server have joined the run.
    #[serde(skip)]
    Joined {
        member: u64,
        /// Counts up with each restart of this worker.
        incarnation: u32,
        servers: u32,
    },
    #[serde(skip)]
    Started {
        total_bytes: u64,
        epochs: u32,
        /// The number of steps, if the job sets it.
        steps_hint: Option<u64>,
    },
    Step(StepReport),
    #[serde(skip)]
    SlowServer {
        server: String,
        /// How long the oldest unanswered request has waited.
        oldest: Duration,
        pushes: usize,
        lookups: usize,
    },
    #[serde(skip)]
    Evaluating {
        step: u64,
        part: HeldOutPart,
        /// Bytes read so far of its files.
        done: u64,
        total: u64,
    },
    #[serde(rename = "epoch")]
    EpochEnded {
        step: u64,
        /// Which epoch, from 0.
        epoch: u32,
        /// Measures of the epoch's training rows, each scored before it was learned from.
        #[serde(flatten)]
        training: Evaluation,
    },
    #[serde(rename = "evaluation")]
    Evaluated {
        step: u64,
        part: HeldOutPart,
        epoch: u32,
        /// The measures; with several targets, those of the first.
        #[serde(flatten)]
        evaluation: Evaluation,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        targets: Vec<TargetMeasures>,
    },
    #[serde(rename = "choice")]
    Chosen {
        step: u64,
        /// Why training ended and why this state, in words.
        message: String,
    },
    /// Training starts from the beginning: there is no checkpoint to resume from. What an earlier process wrote into the folder is void.
    #[serde(skip)]
    StartedOver,
    #[serde(skip)]
    StartedFrom {
        folder: String,
        step: u64,
        rows: u64,
        /// What of the run is not the model's, or of the model is dropped: a line each.
        differences: Vec<String>,
    },
    Resumed {
        step: u64,
        #[serde(skip)]
        folder: String,
    },
    /// Workers were lost. The others wait for processes in their slots.
    #[serde(skip)]
    WorkerLost {
        step: u64,
        /// Their names, if known: `dense worker 1`.
        workers: String,
        cause: String,
        /// How long the wait is, once the coordinator counts them as lost.
        timeout: Duration,
    },
    #[serde(skip)]
    Regrouped {
        step: u64,
        generation: u64,
        /// Index of the worker from whose state all continue.
        source: u32,
        /// Indices of all workers of the group, ascending.
        workers: Vec<u32>,
    },
    Checkpoint {
        step: u64,
        #[serde(skip)]
        rows: u64,
        pause_seconds: f64,
        /// Time from the pause to the end of writing, seconds.
        seconds: f64,
    },
    #[serde(skip)]
    Saved {
        /// The folder with `manifest.json`, a path or `s3://bucket/prefix`.
        folder: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HeldOutPart {
    /// The part for early stopping and the choice of the best state.
    Validation,
    /// The part by which the final model is judged.
    Test,
}

impl HeldOutPart {
    pub fn name(self) -> &'static str {
        match self {
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }
}

/// One step, right after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepReport {
    /// Counted from 1.
    pub step: u64,
    /// Epoch over the data, from 0.
    pub epoch: u32,
    /// Share of the epoch's bytes that were read, 0..1.
    pub epoch_fraction: f64,
    /// Samples trained by all workers so far; in mode `async` by this worker.
    pub samples: u64,
    /// Samples per second over the last seconds.
    pub samples_per_second: f64,
    /// The same, of this worker alone.
    pub own_samples_per_second: f64,
    /// Mean loss over all workers' batches before their update, nats.
    pub loss: f64,
    /// Exponential mean of the loss over about 100 steps.
    pub loss_smoothed: f64,
    /// AUC over about the last 100,000 training samples of this worker, each scored before it was learned from.
    pub auc_so_far: Option<f64>,
    /// Mean loss over the same samples, nats.
    pub logloss_recent: Option<f64>,
    /// The logloss divided by the entropy of the positive rate.
    pub normalised_entropy: Option<f64>,
    /// Predicted clicks divided by real ones, over the same samples.
    pub calibration: Option<f64>,
    /// Earlier batches whose gradients were not acknowledged when this batch was looked up.
    pub staleness: u32,
}

/// It is silent without observers.
#[derive(Default)]
pub struct ObserverList(pub Vec<std::sync::Arc<dyn Observer>>);

impl Observer for ObserverList {
    fn observe(&self, event: &WorkerEvent) {
        for observer in &self.0 {
            observer.observe(event);
        }
    }

    fn audit(&self) -> Option<&PushRecorder> {
        self.0.iter().find_map(|observer| observer.audit())
    }
}

impl Observer for PushRecorder {
    fn observe(&self, event: &WorkerEvent) {
        if let WorkerEvent::Joined { member, incarnation, .. } = event {
            self.report_join(*member, *incarnation);
        }
    }

    fn audit(&self) -> Option<&PushRecorder> {
        Some(self)
    }
}

/// Measures of one of several targets, as they are reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetMeasures {
    pub target: String,
    /// Of the rows that have a label.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Of the same rows after calibration, where the model has one of this target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Evaluation>,
}
