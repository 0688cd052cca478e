//! The figures of a run that has ended.

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
