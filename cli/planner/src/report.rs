//! What a simulated run shows.

use serde::Serialize;

/// The shares above which a resource, or a wait, is what bounds a run.
const FULL: f64 = 0.85;
const LONG: f64 = 0.25;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimReport {
    pub workers: usize,
    /// Embedding servers; 0 if the rows are in the one worker's process.
    pub servers: usize,
    /// `hybrid`, `sync` or `async`.
    pub mode: &'static str,
    /// Batches that may be unacknowledged at a lookup.
    pub staleness: u64,
    /// Samples of a worker's step.
    pub batch_size: u64,
    /// Of all workers together, in the middle of the run.
    pub samples_per_second: f64,
    pub samples: u64,
    /// Samples that steps were made on.
    pub samples_trained: u64,
    /// Samples that were trained on once more, because a worker was lost.
    pub trained_again: u64,
    /// Simulated seconds from start to end.
    pub seconds: f64,
    pub events: u64,
    pub losses: u64,
    /// Lookups by staleness: how many missed the gradients of 0, 1, … earlier batches of their worker.
    pub staleness_histogram: Vec<u64>,
    pub staleness_mean: f64,
    /// A mean step of a mean worker.
    pub step: StepReport,
    /// How busy each resource was, the busiest first.
    pub busy: Vec<BusyResource>,
    /// In words.
    pub bottleneck: String,
    /// Bytes of rows on each server, if the number of rows is known.
    pub server_bytes: Option<f64>,
    /// Bytes that each machine of a group is short of.
    pub too_little_memory: Option<(String, f64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepReport {
    pub wait_for_rows_ms: f64,
    /// Gather, forward, backward, update, scatter.
    pub dense_ms: f64,
    /// Waiting for the slowest worker, and for the part of the all-reduce that does not hide.
    pub wait_for_workers_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BusyResource {
    pub resource: String,
    /// The share of the time, 0 to 1.
    pub share: f64,
}

impl StepReport {
    fn all(&self) -> f64 {
        self.wait_for_rows_ms + self.dense_ms + self.wait_for_workers_ms
    }
}

pub(crate) fn bottleneck(busy: &[BusyResource], step: &StepReport, dense_share: f64) -> String {
    let of_step = |part: f64| part / step.all().max(f64::MIN_POSITIVE);
    match busy.first() {
        Some(full) if full.share >= FULL && full.share > dense_share => full.resource.clone(),
        _ if of_step(step.wait_for_rows_ms) > LONG => {
            "round trips to the servers: more batches in flight (staleness), a faster network or more cores of the servers".to_owned()
        }
        _ if of_step(step.wait_for_workers_ms) > LONG => {
            "waiting for the slowest worker and for the all-reduce: larger batches, or mode async".to_owned()
        }
        _ => "dense step of each worker".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_resource_bounds_a_run_and_else_the_longest_wait() {
        let busy = |share| [BusyResource { resource: "cores of rows".to_owned(), share }];
        let step =
            |rows, dense, workers| StepReport { wait_for_rows_ms: rows, dense_ms: dense, wait_for_workers_ms: workers };
        assert_eq!(bottleneck(&busy(0.97), &step(5.0, 5.0, 0.0), 0.5), "cores of rows");
        assert!(bottleneck(&busy(0.5), &step(5.0, 5.0, 0.0), 0.5).starts_with("round trips"));
        assert!(bottleneck(&busy(0.5), &step(0.0, 5.0, 5.0), 0.5).starts_with("waiting for the slowest"));
        assert_eq!(bottleneck(&busy(0.9), &step(0.1, 5.0, 0.1), 0.96), "dense step of each worker");
        assert_eq!(bottleneck(&[], &step(0.1, 5.0, 0.1), 0.96), "dense step of each worker");
    }
}
