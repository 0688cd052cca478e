//! What a worker tells while it works: for a progress line, a log, a run folder.

use std::path::PathBuf;

use serde::Serialize;
pub use zagros_eval::Evaluation;

/// Told of everything that happens, in order. Called on the training path: must be quick, and hand
/// slow work to a thread of its own.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn on(&self, event: &Event);
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Numeric transforms are being measured by a pass over the training rows.
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
        epoch: u32,
        /// Embedding servers.
        servers: u32,
    },
    /// The first batch is about to be read.
    Started {
        /// Bytes of the training files, for one pass.
        total_bytes: u64,
        /// Passes over them.
        passes: u32,
        /// Steps that will be made, where the job says so.
        steps_hint: Option<u64>,
    },
    /// A step was made.
    Step(StepReport),
    /// The held-out part is being scored.
    Evaluating {
        /// Steps made before.
        step: u64,
        /// Bytes read so far of the files that hold it.
        done: u64,
        /// Bytes of those files.
        total: u64,
    },
    /// The held-out part was scored.
    Evaluated {
        /// Steps made before.
        step: u64,
        /// In which pass, from 0.
        pass: u32,
        /// The measures.
        evaluation: Evaluation,
    },
    /// The trained model is in this folder.
    Saved {
        /// The folder with `manifest.json`.
        folder: PathBuf,
    },
}

/// One step, as seen right after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepReport {
    /// Counted from 1.
    pub step: u64,
    /// Pass over the data, from 0.
    pub pass: u32,
    /// Share of the pass's bytes that was read, 0..1.
    pub pass_fraction: f64,
    /// Samples trained on by all workers so far.
    pub samples: u64,
    /// Over the last seconds.
    pub samples_per_second: f64,
    /// Mean loss over all workers' batches before their update, nats.
    pub loss: f64,
    /// Exponential mean of the loss over about 100 steps.
    pub loss_smoothed: f64,
    /// AUC over about the last 100,000 training samples of this worker, each scored before it was learned from.
    pub auc_so_far: Option<f64>,
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
