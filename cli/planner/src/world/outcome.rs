//! What happens in a run, steps, samples and staleness, and the figures of one that has ended.

use zagros_zip::ZipEq;

use super::SimWorld;
use crate::report::{BusyResource, SimReport, StepReport, bottleneck};
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
}
