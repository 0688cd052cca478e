//! What a lost dense worker costs the run, by the mode of its job.

use zagros_job::{Job, Mode};

/// What a lost worker costs the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerLoss {
    /// The worker alone is started again. The others wait for it, or train on.
    Replaced,
    /// Every process is started again, from the newest checkpoint: the runs of mode `sync` are bit-equal.
    SetsRunBack,
    /// The run ends.
    EndsRun,
}

impl WorkerLoss {
    /// Of a job.
    pub fn of(job: &Job) -> Self {
        match job.train.mode {
            _ if job.cluster.workers == 1 => Self::EndsRun,
            Mode::Sync => Self::SetsRunBack,
            Mode::Hybrid | Mode::Async => Self::Replaced,
        }
    }
}
