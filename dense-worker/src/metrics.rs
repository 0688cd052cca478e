//! The worker's metrics, children resolved at construction.

use std::time::Duration;

use prometheus::{Counter, CounterVec, GaugeVec, Registry};
use zagros_coordinator_client::Waits;
use zagros_job::Job;
use zagros_plumbing::metrics::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts, latency_buckets, register,
};
use zagros_zip::ZipEq;

use crate::event::{Evaluation, HeldOutPart};
use crate::report::seconds_since_epoch;
use crate::summary::StageSeconds;

/// The worker's metrics. [`StageSeconds`] is read from them, so the two agree.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    pub steps: IntCounter,
    /// Steps that were skipped because a value was not finite.
    pub skipped_steps: IntCounter,
    pub samples: IntCounter,
    /// Mean loss of the last batch.
    pub loss: Gauge,
    /// Staleness of the last batch.
    pub staleness: IntGauge,
    pub staleness_max: IntGauge,
    pub staleness_mean: Gauge,
    staleness_bound: IntGauge,
    /// Gather, dense and scatter together.
    pub step_seconds: Histogram,
    /// Lookups that were sent with the push of the step before their own.
    pub lookups_with_push: IntCounter,
    pub lookups_in_flight: IntGauge,
    pub bad_rows: IntCounter,
    pub checkpoints: IntCounter,
    pub checkpoint_failures: IntCounter,
    pub checkpoint_pause_seconds: Histogram,
    checkpoint_time: Gauge,
    checkpoint_step: IntGauge,
    /// Seconds between checkpoints.
    checkpoint_interval: Gauge,
    held_out: [GaugeVec; HELD_OUT.len()],
    stages: [Counter; PipelineStage::NAMES.len()],
    /// What the parts of the worker wait for. It is here because code that measures a stage also knows what the stage waits for.
    pub waits: Waits,
}

/// A measure of a held-out part: its name, what it is, and its value.
type HeldOutMeasure = (&'static str, &'static str, fn(&Evaluation) -> Option<f64>);

const HELD_OUT: [HeldOutMeasure; 5] = [
    ("auc", "AUC", |evaluation| evaluation.auc),
    ("logloss", "Logloss, nats,", |evaluation| evaluation.logloss),
    ("gauc", "AUC within groups", |evaluation| evaluation.gauc),
    ("normalised_entropy", "Logloss divided by that of the positive rate,", |evaluation| evaluation.normalised_entropy),
    ("calibration", "Predicted clicks divided by real ones,", |evaluation| evaluation.calibration),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineStage {
    /// Processor time of reading and parsing.
    Parse,
    /// Finding unique ids.
    Dedup,
    /// The time from a lookup's request to its rows.
    Lookup,
    /// Copying rows to `[batch, ΣD]`.
    Gather,
    /// Forward, backward, optimiser.
    Dense,
    /// Adding up gradients by unique row.
    Scatter,
    /// The time from gradients to acknowledgement.
    Push,
    Waiting,
    /// Waiting for the other workers and summing gradients with them.
    Reduce,
    /// Waiting for the weights of streamed layers, a part of `Dense`.
    Layers,
}

impl PipelineStage {
    /// In the order of the stages.
    const NAMES: [&'static str; 10] =
        ["parse", "dedup", "lookup", "gather", "dense", "scatter", "push", "waiting", "reduce", "layers"];
}

impl WorkerMetrics {
    pub fn new(registry: &Registry) -> Self {
        let opts = Opts::new("zagros_worker_stage_seconds_total", "Time spent in each stage; stages overlap.");
        let by_stage = register(registry, CounterVec::new(opts, &["stage"]));
        let step_seconds = HistogramOpts::new("zagros_worker_step_seconds", "Gather, dense network and scatter.");
        let pause = "How long training was paused for a checkpoint.";
        let pause = HistogramOpts::new("zagros_worker_checkpoint_pause_seconds", pause);
        let gauge = |name, help| register(registry, Gauge::new(name, help));
        let counter = |name, help| register(registry, IntCounter::new(name, help));
        let whole = |name, help| register(registry, IntGauge::new(name, help));
        Self {
            steps: counter("zagros_worker_steps_total", "Steps made."),
            skipped_steps: counter(
                "zagros_worker_skipped_steps_total",
                "Steps skipped because a value was not finite.",
            ),
            samples: counter("zagros_worker_samples_total", "Samples trained on."),
            loss: gauge("zagros_worker_loss", "Mean loss of the last batch, nats."),
            staleness: whole(
                "zagros_worker_staleness_batches",
                "Unacknowledged batches when the last batch was looked up.",
            ),
            staleness_max: whole("zagros_worker_staleness_max_batches", "The largest staleness of all steps."),
            staleness_mean: gauge("zagros_worker_staleness_mean_batches", "Mean staleness over all steps."),
            staleness_bound: whole(
                "zagros_worker_staleness_bound_batches",
                "The largest staleness that the job allows.",
            ),
            step_seconds: register(registry, Histogram::with_opts(step_seconds.buckets(latency_buckets()))),
            lookups_in_flight: whole("zagros_worker_lookups_in_flight", "Lookups sent and not answered."),
            lookups_with_push: counter(
                "zagros_worker_lookups_with_push_total",
                "Lookups sent with the push of the step before their own (mode sync).",
            ),
            bad_rows: counter("zagros_worker_bad_rows_total", "Malformed rows skipped."),
            checkpoints: counter("zagros_worker_checkpoints_total", "Checkpoints written."),
            checkpoint_failures: counter(
                "zagros_worker_checkpoint_failures_total",
                "Checkpoints that failed; training continued.",
            ),
            checkpoint_pause_seconds: register(registry, Histogram::with_opts(pause.buckets(latency_buckets()))),
            checkpoint_time: gauge(
                "zagros_worker_checkpoint_timestamp_seconds",
                "When the newest checkpoint was complete, seconds since 1970; 0 before the first.",
            ),
            checkpoint_step: whole("zagros_worker_checkpoint_step", "Step of the newest checkpoint."),
            checkpoint_interval: gauge(
                "zagros_worker_checkpoint_interval_seconds",
                "Seconds between checkpoints that the job asks of this worker; 0 if it asks for none by time.",
            ),
            held_out: HELD_OUT.map(|(name, what, _)| {
                let (name, help) = (format!("zagros_worker_{name}"), format!("{what} of a held-out part."));
                register(registry, GaugeVec::new(Opts::new(name, help), &["part"]))
            }),
            stages: PipelineStage::NAMES.map(|name| by_stage.with_label_values(&[name])),
            waits: Waits::default(),
        }
    }

    /// Sets what the job asks of this worker. Alerts compare with it. One worker makes the checkpoints of all.
    pub fn set_promises(&self, job: &Job, makes_checkpoints: bool) {
        self.staleness_bound.set(i64::try_from(job.train.staleness).unwrap_or(i64::MAX));
        let every = job.checkpoint.every.filter(|_| makes_checkpoints && job.checkpoint.keep > 0);
        self.checkpoint_interval.set(every.map_or(0.0, |every| every.as_secs_f64()));
    }

    pub fn show_evaluation(&self, part: HeldOutPart, evaluation: &Evaluation) {
        for (gauges, (.., measure)) in self.held_out.iter().zip_eq(HELD_OUT) {
            gauges.with_label_values(&[part.name()]).set(measure(evaluation).unwrap_or(f64::NAN));
        }
    }

    pub fn checkpoint_written(&self, step: u64) {
        self.checkpoints.inc();
        self.checkpoint_time.set(seconds_since_epoch());
        self.checkpoint_step.set(step.cast_signed());
    }

    pub fn add_stage_time(&self, stage: PipelineStage, time: Duration) {
        self.stages[stage as usize].inc_by(time.as_secs_f64());
    }

    pub fn stage_seconds(&self) -> StageSeconds {
        // In the order of `PipelineStage`.
        let [parse, dedup, lookup, gather, dense, scatter, push, waiting, reduce, layers] =
            self.stages.each_ref().map(Counter::get);
        StageSeconds { parse, dedup, lookup, gather, dense, scatter, push, waiting, reduce, layers }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    #[test]
    fn each_held_out_part_has_its_own_gauges() {
        let registry = Registry::new();
        let metrics = WorkerMetrics::new(&registry);
        let evaluation = Evaluation { auc: Some(0.75), ..Evaluation::default() };
        metrics.show_evaluation(HeldOutPart::Validation, &evaluation);
        let shown = zagros_plumbing::metrics::render_text(&registry);
        assert!(shown.contains("zagros_worker_auc{part=\"validation\"} 0.75"), "{shown}");
        assert!(shown.contains("zagros_worker_gauc{part=\"validation\"} NaN") && !shown.contains("test"), "{shown}");
    }

    #[test]
    fn what_the_job_asks_is_reported() {
        let reported = |sets: &str, makes_checkpoints| {
            let text = format!("[data]\nformat = 'criteo'\ntrain = 'a.txt'\n{sets}");
            let job = Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap();
            let registry = Registry::new();
            WorkerMetrics::new(&registry).set_promises(&job, makes_checkpoints);
            zagros_plumbing::metrics::render_text(&registry)
        };
        let shown = reported("[train]\nstaleness = 3\n[checkpoint]\nevery_seconds = 90\n", true);
        assert!(shown.contains("zagros_worker_staleness_bound_batches 3"), "{shown}");
        assert!(shown.contains("zagros_worker_checkpoint_interval_seconds 90"), "{shown}");
        assert!(reported("", false).contains("zagros_worker_checkpoint_interval_seconds 0"));
        assert!(reported("[checkpoint]\nkeep = 0\n", true).contains("zagros_worker_checkpoint_interval_seconds 0"));
    }

    #[test]
    fn each_stage_has_its_own_counter() {
        let registry = Registry::new();
        let metrics = WorkerMetrics::new(&registry);
        metrics.add_stage_time(PipelineStage::Parse, Duration::from_secs(1));
        metrics.add_stage_time(PipelineStage::Gather, Duration::from_secs(4));
        metrics.add_stage_time(PipelineStage::Layers, Duration::from_secs(9));
        let seconds = metrics.stage_seconds();
        assert_eq!((seconds.parse, seconds.gather, seconds.layers, seconds.dedup), (1.0, 4.0, 9.0, 0.0));
        let shown = zagros_plumbing::metrics::render_text(&registry);
        assert!(shown.contains("zagros_worker_stage_seconds_total{stage=\"gather\"} 4"), "{shown}");
        assert!(shown.contains("zagros_worker_stage_seconds_total{stage=\"layers\"} 9"), "{shown}");
    }
}
