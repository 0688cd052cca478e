//! The driver's parts. What is done with them is in the files that perform the actions of the training loop.

use zagros_job::Job;

use super::checkpoint::CheckpointWriter;
use super::context::RunContext;
use super::data::StreamState;
use super::evaluate::ScoringState;
use super::group::{BarrierCalls, GroupBallots, GroupSession};
use super::join::StartModel;
use super::step::{DivergenceWatch, LabelRuns, MainTarget, TrainingTracker, loss_of_ignorance};
use crate::summary::RunSummary;

pub(crate) struct Trainer {
    pub(crate) run: RunContext,
    pub(crate) group: GroupSession,
    pub(crate) stream: StreamState,
    pub(crate) scoring: ScoringState,
    pub(crate) tracker: TrainingTracker,
    pub(crate) loss: LossWatch,
    pub(crate) checkpoints: CheckpointWriter,
    pub(crate) barrier_calls: BarrierCalls,
    pub(crate) ballots: GroupBallots,
    pub(crate) start: Option<StartModel>,
    pub(crate) saved: Option<RunSummary>,
}

/// Whether the loss and the labels still make sense.
#[derive(Debug)]
pub(crate) struct LossWatch {
    pub(crate) main: MainTarget,
    /// The loss of the last step; in a group, of all ranks.
    pub(crate) last: f64,
    pub(crate) divergence: DivergenceWatch,
    /// Runs of equal labels in the rows that this worker trains on.
    pub(crate) label_runs: LabelRuns,
}

impl LossWatch {
    pub(crate) fn new(job: &Job) -> Self {
        let divergence = DivergenceWatch::new(loss_of_ignorance(&job.features.targets));
        Self { main: MainTarget::new(job), last: 0.0, divergence, label_runs: LabelRuns::default() }
    }
}
