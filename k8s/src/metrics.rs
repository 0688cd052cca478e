//! The operator's own metrics.

use zagros_plumbing::metrics::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, latency_buckets, register,
};

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
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let reconciles = Opts::new("zagros_operator_reconciles_total", "Reconciliations, by how they ended.");
        let seconds = HistogramOpts::new("zagros_operator_reconcile_seconds", "Time of a reconciliation, in seconds.");
        Self {
            reconciles: register(registry, IntCounterVec::new(reconciles, &["outcome"])),
            seconds: register(registry, Histogram::with_opts(seconds.buckets(latency_buckets()))),
            checks: register(
                registry,
                IntCounter::new("zagros_operator_spec_checks_total", "Checks of specs, one for each edit and attempt."),
            ),
            failed_attempts: register(
                registry,
                IntCounter::new("zagros_operator_failed_attempts_total", "Attempts of jobs that failed."),
            ),
            leads: register(registry, IntGauge::new("zagros_operator_leads", "1 while this operator leads, else 0.")),
        }
    }
}
