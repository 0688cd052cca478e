//! What happens in a run, steps, samples and staleness, and what a run that has ended shows.

use serde::Serialize;
use zagros_zip::ZipEq;

use super::SimWorld;
use crate::worker::TimeSpent;

impl SimWorld {
    pub(crate) fn report_run(&self) -> SimReport {
        let (scenario, progress) = (&self.scenario, &self.progress);
        let (steps, end) = (self.progress.steps.max(1) as f64, progress.end.max(f64::MIN_POSITIVE));
        let spent = self.workers.iter().fold(TimeSpent::default(), |all, worker| TimeSpent {
            batches: all.batches + worker.spent.batches,
            dense: all.dense + worker.spent.dense,
            group: all.group + worker.spent.group,
        });
        let ms = |seconds: f64| seconds / steps * 1e3;
        let step = StepReport {
            wait_for_rows_ms: ms(spent.batches),
            dense_ms: ms(spent.dense),
            wait_for_workers_ms: ms(spent.group),
        };
        let busy = self.busy_resources(end);
        let dense_share = spent.dense / (end * self.workers.len() as f64);
        let lookups = progress.staleness.iter().sum::<u64>().max(1) as f64;
        let sum: f64 =
            progress.staleness.iter().enumerate().map(|(staleness, count)| (staleness as u64 * count) as f64).sum();
        SimReport {
            workers: scenario.worker_count(),
            servers: scenario.server_count(),
            mode: scenario.mode_name(),
            staleness: scenario.work.staleness as u64,
            batch_size: scenario.work.batch.round() as u64,
            samples_per_second: progress.samples_per_second(),
            samples: progress.sample_count(),
            samples_trained: progress.trained,
            trained_again: progress.trained_again,
            seconds: progress.end,
            events: progress.events,
            losses: progress.losses,
            staleness_histogram: progress.staleness.clone(),
            staleness_mean: sum / lookups,
            bottleneck: bottleneck(&busy, &step, dense_share),
            step,
            busy,
            server_bytes: scenario.server_bytes(),
            too_little_memory: scenario.too_little_memory(),
        }
    }

    /// Cores and links of each group of machines: the busiest machine of each.
    fn busy_resources(&self, end: f64) -> Vec<BusyResource> {
        let groups = &self.scenario.machines.groups;
        let mut all: Vec<BusyResource> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let machines = || self.cluster.machines.iter().filter(|machine| machine.group == index);
            let most = |share: &dyn Fn(&crate::cluster::SimMachine<super::SimWork>) -> f64| {
                machines().map(share).fold(0.0, f64::max)
            };
            let names = [
                format!("cores of {}", group.name),
                format!("network out of {}", group.name),
                format!("network into {}", group.name),
            ];
            let shares = [
                most(&|machine| machine.processor.busy_seconds() / machine.processor.core_count() / end),
                most(&|machine| machine.up.busy_seconds() / end),
                most(&|machine| machine.down.busy_seconds() / end),
            ];
            all.extend(names.into_iter().zip_eq(shares).map(|(resource, share)| BusyResource { resource, share }));
        }
        all.retain(|busy| busy.share > 0.0);
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        all
    }
}

/// The part of a run that its speed is measured in: between this share of its samples and that.
const MEASURED: (f64, f64) = (0.1, 0.85);

#[derive(Clone, Debug, Default)]
pub(crate) struct RunCounts {
    samples: u64,
    /// Samples that steps were made on, some of them twice.
    pub(crate) trained: u64,
    /// Samples of steps that were made once more, because a worker was lost.
    pub(crate) trained_again: u64,
    pub(crate) steps: u64,
    pub(crate) events: u64,
    pub(crate) losses: u64,
    /// Lookups by their staleness.
    pub(crate) staleness: Vec<u64>,
    pub(crate) last_step: f64,
    pub(crate) end: f64,
    /// Time and samples at the begin and the end of the measured part.
    begin: Option<(f64, u64)>,
    until: Option<(f64, u64)>,
}

impl RunCounts {
    pub(crate) fn new(samples: u64) -> Self {
        Self { samples, ..Self::default() }
    }

    pub(crate) fn sample_count(&self) -> u64 {
        self.samples
    }

    pub(crate) fn note_staleness(&mut self, staleness: usize) {
        if self.staleness.len() <= staleness {
            self.staleness.resize(staleness + 1, 0);
        }
        self.staleness[staleness] += 1;
    }

    pub(crate) fn note_step(&mut self, now: f64, samples: u64) {
        self.trained += samples;
        self.steps += 1;
        self.last_step = now;
        let is_past = |share: f64| self.trained as f64 >= share * self.samples as f64;
        let (from, to) = MEASURED;
        // Steps that end at once count as one.
        match &mut self.begin {
            None if is_past(from) => self.begin = Some((now, self.trained)),
            Some(begin) if begin.0 == now => begin.1 = self.trained,
            _ => {}
        }
        match &mut self.until {
            None if is_past(to) => self.until = Some((now, self.trained)),
            Some(until) if until.0 == now => until.1 = self.trained,
            _ => {}
        }
    }

    /// Samples a second in the middle of the run, without its start and end.
    pub(crate) fn samples_per_second(&self) -> f64 {
        match (self.begin, self.until) {
            (Some((begin, before)), Some((until, after))) if until > begin => (after - before) as f64 / (until - begin),
            _ => self.trained as f64 / self.end.max(f64::MIN_POSITIVE),
        }
    }
}

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

fn bottleneck(busy: &[BusyResource], step: &StepReport, dense_share: f64) -> String {
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
    fn the_speed_is_that_of_the_middle() {
        let mut progress = RunCounts::new(1000);
        // A slow start and a slow end.
        let times = [50.0, 51.0, 51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0, 99.0];
        times.iter().for_each(|time| progress.note_step(*time, 100));
        assert_eq!(progress.samples_per_second(), 800.0 / 7.0);
        (0..3).for_each(|staleness| progress.note_staleness(staleness.min(1)));
        assert_eq!(progress.staleness, [1, 2]);
    }

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
