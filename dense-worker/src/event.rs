//! What a worker tells while it works: for a progress line, a log, a run folder.

use std::time::Duration;

use serde::Serialize;
pub use zagros_eval::Evaluation;

/// Reported of everything that happens, in order. Called on the training path: must be quick, and hand
/// slow work to a thread of its own.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn on(&self, event: &Event);
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Numeric transforms are being measured: the training rows are read once for it.
    Fitting,
    /// The transforms are measured.
    Fitted {
        /// Training rows seen.
        rows: u64,
        /// Share of positive rows, 0..1.
        positive_rate: f64,
    },
    /// Nothing goes on until this does: `coordinator (127.0.0.1:7700)`.
    WaitingFor(String),
    /// In the run, and every embedding server is too.
    Joined {
        /// Member id.
        member: u64,
        /// Counts up with each restart of this worker.
        incarnation: u32,
        /// Embedding servers.
        servers: u32,
    },
    /// The first batch is about to be read.
    Started {
        /// Bytes of the training files, for one epoch.
        total_bytes: u64,
        /// Epochs over them.
        epochs: u32,
        /// Steps that will be made, where the job says so.
        steps_hint: Option<u64>,
    },
    /// A step was made.
    Step(StepReport),
    /// An embedding server lets training wait.
    SlowServer {
        /// Index and address.
        server: String,
        /// How long the oldest unanswered request has waited.
        oldest: Duration,
        /// Batches whose gradients it has not acknowledged.
        pushes: usize,
        /// Batches whose rows it has not given.
        lookups: usize,
    },
    /// The held-out part is being scored.
    Evaluating {
        /// Steps made before.
        step: u64,
        /// Which part.
        part: HeldOutPart,
        /// Bytes read so far of the files that hold it.
        done: u64,
        /// Bytes of those files.
        total: u64,
    },
    /// An epoch over the training rows is done.
    EpochEnded {
        /// Steps made before.
        step: u64,
        /// Which epoch, from 0.
        epoch: u32,
        /// Measures of its training rows, each scored before it was learned from.
        training: Evaluation,
    },
    /// The held-out part was scored.
    Evaluated {
        /// Steps made before.
        step: u64,
        /// Which part.
        part: HeldOutPart,
        /// In which epoch, from 0.
        epoch: u32,
        /// The measures.
        evaluation: Evaluation,
    },
    /// One of several states was chosen by the validation part, and is the model now.
    Chosen {
        /// Steps after which it was.
        step: u64,
        /// Why training ended and why this state, in words.
        message: String,
    },
    /// Training goes on from where an earlier process was.
    Resumed {
        /// Steps made before.
        step: u64,
        /// The checkpoint's folder.
        folder: String,
    },
    /// Other workers do not take part in training any more; those that are left wait for processes in their place.
    WorkerLost {
        /// Steps made before.
        step: u64,
        /// Who, as far as that is known: `dense worker 1`.
        workers: String,
        /// What was seen of it.
        cause: String,
        /// For how long is waited, once the coordinator counts them as lost.
        timeout: Duration,
    },
    /// The workers train together again.
    Regrouped {
        /// Steps made before.
        step: u64,
        /// Of their group: counts up.
        generation: u64,
        /// Index of the worker whose state all go on with.
        source: u32,
        /// Indices of all of them, ascending.
        workers: Vec<u32>,
    },
    /// A checkpoint is complete.
    Checkpoint {
        /// Steps made before it.
        step: u64,
        /// In it.
        rows: u64,
        /// For how long training stood still.
        pause_seconds: f64,
        /// From the cut to the end of writing.
        seconds: f64,
    },
    /// The trained model is in this folder.
    Saved {
        /// The folder with `manifest.json`, a path or `s3://bucket/prefix`.
        folder: String,
    },
}

/// A part of the data that is not learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HeldOutPart {
    /// Early stopping and the choice of the best state go by it.
    Validation,
    /// What the model is judged by in the end.
    Test,
}

impl HeldOutPart {
    /// As it is called in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }
}

/// One step, as seen right after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepReport {
    /// Counted from 1.
    pub step: u64,
    /// Epoch over the data, from 0.
    pub epoch: u32,
    /// Share of the epoch's bytes that was read, 0..1.
    pub epoch_fraction: f64,
    /// Samples trained on by all workers so far; in mode `async` by this one.
    pub samples: u64,
    /// Over the last seconds.
    pub samples_per_second: f64,
    /// Of this worker alone.
    pub own_samples_per_second: f64,
    /// Mean loss over all workers' batches before their update, nats.
    pub loss: f64,
    /// Exponential mean of the loss over about 100 steps.
    pub loss_smoothed: f64,
    /// AUC over about the last 100,000 training samples of this worker, each scored before it was learned from.
    pub auc_so_far: Option<f64>,
    /// Mean loss over the same samples, nats.
    pub logloss_recent: Option<f64>,
    /// That over the entropy of their positive rate.
    pub normalised_entropy: Option<f64>,
    /// Predicted clicks over real ones, over the same samples.
    pub calibration: Option<f64>,
    /// Earlier batches whose gradients were not acknowledged when this one's rows were looked up.
    pub staleness: u32,
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn on(&self, _: &Event) {}
}

/// Tells several, in order.
pub struct Several(pub Vec<std::sync::Arc<dyn Observer>>);

impl Observer for Several {
    fn on(&self, event: &Event) {
        for observer in &self.0 {
            observer.on(event);
        }
    }
}
