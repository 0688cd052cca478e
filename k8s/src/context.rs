//! What a reconciliation works with.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::events::Recorder;

use crate::cache::{Caches, JobKey};
use crate::cluster::Cluster;
use crate::crd::{HybridJob, HybridJobStatus, Progress};
use crate::memory::{JobMemory, Memory};
use crate::metrics::Metrics;
use crate::names::Attempt;

/// Asks the coordinator of an attempt for its progress.
pub type Asker = Arc<dyn Fn(Attempt) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send>> + Send + Sync>;

/// The current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The parts of the operator that a reconciliation works with.
#[derive(Clone)]
pub struct Context {
    /// The client of Kubernetes.
    pub client: Client,
    /// Publishes Events.
    pub recorder: Recorder,
    /// The operator's metrics.
    pub metrics: Metrics,
    /// Asks the coordinators.
    pub asker: Asker,
    /// The time.
    pub clock: Clock,
    /// The watched objects.
    pub caches: Caches,
    /// What earlier reconciliations did.
    pub memory: Arc<Memory>,
}

/// One reconciliation of one job.
pub(crate) struct Reconciliation<'a> {
    pub(crate) key: JobKey,
    pub(crate) cluster: Cluster,
    pub(crate) context: &'a Context,
}

impl Reconciliation<'_> {
    pub(crate) fn now(&self) -> Timestamp {
        (self.context.clock)()
    }

    /// The memory of the job.
    pub(crate) fn memory<T>(&self, job: &HybridJob, look: impl FnOnce(&mut JobMemory) -> T) -> T {
        self.context.memory.of(&self.key, job.metadata.uid.as_deref(), look)
    }

    /// The memory of any job of this name.
    pub(crate) fn named<T>(&self, look: impl FnOnce(&mut JobMemory) -> T) -> T {
        self.context.memory.of(&self.key, None, look)
    }
}

/// The status of a job; an empty one before the first is recorded.
pub(crate) fn status(job: &HybridJob) -> HybridJobStatus {
    job.status.clone().unwrap_or_default()
}
