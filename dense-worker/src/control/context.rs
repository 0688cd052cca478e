//! What a worker works with during the whole run.

use std::sync::Arc;

use zagros_coordinator_client::Membership;
use zagros_embedding_client::EmbeddingClient;
use zagros_job::{Job, WireFormat};
use zagros_protocol::datapath::Encoding;

use super::data::{SplitClient, SplitCompleter, StopSignal};
use crate::datapath::dense::DenseThread;
use crate::event::Observer;
use crate::metrics::WorkerMetrics;
use crate::report::RunFolder;

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

pub(crate) fn wire_encoding(job: &Job) -> Encoding {
    match job.cluster.wire {
        WireFormat::F32 => Encoding::F32,
        WireFormat::F16 => Encoding::F16,
        WireFormat::Bf16 => Encoding::Bf16,
    }
}
