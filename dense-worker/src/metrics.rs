//! The worker's metrics, children resolved at construction.

use std::time::Duration;

use prometheus::{Counter, CounterVec, Registry};
use zagros_plumbing::metrics::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts, latency_buckets, register,
};

use crate::summary::StageSeconds;

/// The worker's metrics. Also what [`StageSeconds`] is read from, so that the two agree.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Steps made.
    pub steps: IntCounter,
    /// Samples trained on.
    pub samples: IntCounter,
    /// Mean loss of the last batch.
    pub loss: Gauge,
    /// Staleness of the last batch.
    pub staleness: IntGauge,
    /// Gather, dense and scatter together.
    pub step_seconds: Histogram,
    /// Lookups that were sent and not answered.
    pub lookups_in_flight: IntGauge,
    /// Malformed rows skipped.
    pub bad_rows: IntCounter,
    /// Last AUC of the held-out part.
    pub test_auc: Gauge,
    /// Last logloss of the held-out part.
    pub test_logloss: Gauge,
    stages: [Counter; Stage::ALL.len()],
}

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Processor time of reading and parsing.
    Parse,
    /// Finding unique ids.
    Dedup,
    /// From request to rows.
    Lookup,
    /// Rows to `[batch, ΣD]`.
    Gather,
    /// Forward, backward, optimiser.
    Dense,
    /// Gradients to unique rows.
    Scatter,
    /// From gradients to acknowledgement.
    Push,
    /// No batch was ready.
    Waiting,
    /// Waiting for the other workers and summing gradients with them.
    Reduce,
}

impl Stage {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Parse, "parse"),
        (Self::Dedup, "dedup"),
        (Self::Lookup, "lookup"),
        (Self::Gather, "gather"),
        (Self::Dense, "dense"),
        (Self::Scatter, "scatter"),
        (Self::Push, "push"),
        (Self::Waiting, "waiting"),
        (Self::Reduce, "reduce"),
    ];
}

impl Metrics {
    /// Registers them all.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let opts = Opts::new("zagros_worker_stage_seconds_total", "Time spent in each stage; stages overlap.");
        let by_stage = register(registry, CounterVec::new(opts, &["stage"]));
        let step_seconds = HistogramOpts::new("zagros_worker_step_seconds", "Gather, dense network and scatter.");
        let gauge = |name, help| register(registry, Gauge::new(name, help));
        let counter = |name, help| register(registry, IntCounter::new(name, help));
        let whole = |name, help| register(registry, IntGauge::new(name, help));
        Self {
            steps: counter("zagros_worker_steps_total", "Steps made."),
            samples: counter("zagros_worker_samples_total", "Samples trained on."),
            loss: gauge("zagros_worker_loss", "Mean loss of the last batch, nats."),
            staleness: whole("zagros_worker_staleness", "Unacknowledged batches when the last batch was looked up."),
            step_seconds: register(registry, Histogram::with_opts(step_seconds.buckets(latency_buckets()))),
            lookups_in_flight: whole("zagros_worker_lookups_in_flight", "Lookups sent and not answered."),
            bad_rows: counter("zagros_worker_bad_rows_total", "Malformed rows skipped."),
            test_auc: gauge("zagros_worker_test_auc", "AUC of the held-out part."),
            test_logloss: gauge("zagros_worker_test_logloss", "Logloss of the held-out part, nats."),
            stages: Stage::ALL.map(|(_, name)| by_stage.with_label_values(&[name])),
        }
    }

    /// Adds time to a stage.
    pub fn spent(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].inc_by(time.as_secs_f64());
    }

    /// Time spent so far.
    #[must_use]
    pub fn stage_seconds(&self) -> StageSeconds {
        let seconds = |stage: Stage| self.stages[stage as usize].get();
        StageSeconds {
            parse: seconds(Stage::Parse),
            dedup: seconds(Stage::Dedup),
            lookup: seconds(Stage::Lookup),
            gather: seconds(Stage::Gather),
            dense: seconds(Stage::Dense),
            scatter: seconds(Stage::Scatter),
            push: seconds(Stage::Push),
            waiting: seconds(Stage::Waiting),
            reduce: seconds(Stage::Reduce),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_counted_apart_and_shown_by_name() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry);
        for (index, (stage, _)) in Stage::ALL.into_iter().enumerate() {
            metrics.spent(stage, Duration::from_secs(index as u64 + 1));
        }
        let seconds = metrics.stage_seconds();
        assert_eq!((seconds.parse, seconds.dedup, seconds.waiting), (1.0, 2.0, 8.0));
        let shown = zagros_plumbing::metrics::render(&registry);
        assert!(shown.contains("zagros_worker_stage_seconds_total{stage=\"gather\"} 4"), "{shown}");
    }
}
