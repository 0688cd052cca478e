//! The parts of the operator that a reconciliation uses, and its metrics.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::events::Recorder;
use zagros_plumbing::admin::PageToken;
use zagros_plumbing::metrics::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, latency_buckets, register,
};

use crate::cache::{JobKey, ObjectCaches};
use crate::cluster::JobClient;
use crate::crd::{HybridJob, RunProgress};
use crate::memory::{JobMemory, OperatorMemory};
use crate::names::RunAttempt;
use crate::probe::CoordinatorScale;

/// Asks the coordinator of an attempt for its progress, with the token of the run if it has one.
pub type CoordinatorQuery =
    Arc<dyn Fn(RunAttempt, Option<PageToken>) -> BoxFuture<'static, Option<RunProgress>> + Send + Sync>;

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub struct OperatorContext {
    pub client: Client,
    pub recorder: Recorder,
    pub metrics: OperatorMetrics,
    pub asker: CoordinatorQuery,
    pub scaler: CoordinatorScale,
    pub clock: Clock,
    /// Whether HybridJobs may have folders of nodes and privileged containers.
    pub allows_host_access: bool,
    pub caches: ObjectCaches,
    pub memory: OperatorMemory,
}

pub(crate) struct JobReconciliation<'a> {
    pub(crate) key: JobKey,
    pub(crate) cluster: JobClient,
    pub(crate) context: &'a OperatorContext,
}

impl JobReconciliation<'_> {
    pub(crate) fn now(&self) -> Timestamp {
        (self.context.clock)()
    }

    pub(crate) fn with_memory<T>(&self, job: &HybridJob, look: impl FnOnce(&mut JobMemory) -> T) -> T {
        self.context.memory.with_job(&self.key, job.metadata.uid.as_deref(), look)
    }

    pub(crate) fn with_memory_of_name<T>(&self, look: impl FnOnce(&mut JobMemory) -> T) -> T {
        self.context.memory.with_job(&self.key, None, look)
    }
}

#[derive(Clone, Debug)]
pub struct OperatorMetrics {
    /// Reconciliations by `outcome`: `done`, `reported` (the user has to act), `retried`.
    pub reconciles: IntCounterVec,
    pub seconds: Histogram,
    pub checks: IntCounter,
    pub failed_attempts: IntCounter,
    pub leads: IntGauge,
}

impl OperatorMetrics {
    pub fn new(registry: &Registry) -> Self {
        let reconciles = Opts::new("zagros_operator_reconciles_total", "Reconciliations, by how they ended.");
        let seconds = HistogramOpts::new("zagros_operator_reconcile_seconds", "Time of a reconciliation, in seconds.");
        let counter = |name: &str, help: &str| register(registry, IntCounter::new(name, help));
        Self {
            reconciles: register(registry, IntCounterVec::new(reconciles, &["outcome"])),
            seconds: register(registry, Histogram::with_opts(seconds.buckets(latency_buckets()))),
            checks: counter("zagros_operator_spec_checks_total", "Checks of specs, one for each edit and attempt."),
            failed_attempts: counter("zagros_operator_failed_attempts_total", "Attempts of jobs that failed."),
            leads: register(registry, IntGauge::new("zagros_operator_leads", "1 while this operator leads, else 0.")),
        }
    }
}
