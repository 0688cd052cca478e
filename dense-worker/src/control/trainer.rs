//! The driver's parts. What is done with them is in the files that perform the actions of the training loop.

use std::sync::Arc;

use zagros_coordinator_client::Membership;
use zagros_embedding_client::EmbeddingClient;
use zagros_job::Job;

use super::checkpoint::CheckpointWriter;
use super::data::{SplitClient, SplitCompleter, StopSignal, StreamState};
use super::evaluate::ScoringState;
use super::group::{BarrierCalls, GroupBallots, GroupSession};
use super::join::StartModel;
use super::step::{LossWatch, TrainingTracker};
use crate::datapath::dense::DenseThread;
use crate::event::Observer;
use crate::metrics::WorkerMetrics;
use crate::report::RunFolder;
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

/// What a worker works with during the whole run.
pub(crate) struct RunContext {
    pub(crate) job: Arc<Job>,
    pub(crate) client: Arc<EmbeddingClient>,
    pub(crate) dense: DenseThread,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) stop: StopSignal,
    pub(crate) splits: SplitClient,
    pub(crate) completer: SplitCompleter,
    /// Where the first worker writes summary and model; `None` for the others, and where nothing is written.
    pub(crate) folder: Option<RunFolder>,
}

impl RunContext {
    /// Whether this process comes to a run that may have trained before: it takes the place of another process, or there was
    /// no place for it when the run began.
    pub(super) fn joins_late(&self) -> bool {
        let index = self.membership.member_id() as u32;
        self.membership.incarnation() > 1 || index >= self.job.cluster.workers
    }
}
