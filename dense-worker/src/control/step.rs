//! One step of this worker, what is counted of it, and whether its loss and its labels make sense.

mod loss_watch;
mod tracker;
mod worker_step;

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_eval::measure::softplus;
use zagros_job::{Job, MissingLabel, Target, TargetKind};
use zagros_plumbing::energy::EnergyMeter;
use zagros_plumbing::process::cpu_time;
use zagros_zip::ZipEq;

use crate::progress::BatchPredictions;
use crate::summary::TrainingCost;

pub(super) use loss_watch::LossWatch;
pub(super) use tracker::{MadeStep, TrackerState, TrainingTracker};

/// What a worker has done, as the vote of an asynchronous one at a barrier reports it to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WorkerCounts {
    pub(crate) steps: u64,
    pub(crate) skipped: u64,
    pub(crate) samples: u64,
    pub(crate) staleness_max: u64,
    pub(crate) staleness_sum: u64,
    pub(crate) micros: u64,
    /// Rows of streams that had none to train on.
    pub(crate) untrained_rows: u64,
}

impl WorkerCounts {
    /// Of both together; they trained at the same time.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            skipped: self.skipped + other.skipped,
            samples: self.samples + other.samples,
            staleness_max: self.staleness_max.max(other.staleness_max),
            staleness_sum: self.staleness_sum + other.staleness_sum,
            micros: self.micros.max(other.micros),
            untrained_rows: self.untrained_rows + other.untrained_rows,
        }
    }
}

/// What all workers had done when they voted last, and what those had done that have gone since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VotedCounts {
    pub(super) by_worker: BTreeMap<u32, WorkerCounts>,
    gone: WorkerCounts,
}

impl VotedCounts {
    /// The processes that voted last for these workers are gone. The counts of the run never go down, because checkpoints
    /// are named by them.
    pub(crate) fn note_departed(&mut self, is_gone: impl Fn(u32) -> bool) {
        for (_, counts) in self.by_worker.extract_if(.., |index, _| is_gone(*index)) {
            self.gone = self.gone.plus(counts);
        }
    }

    pub(crate) fn counts_of_others(&self, index: u32) -> WorkerCounts {
        let others = self.by_worker.iter().filter(|(worker, _)| **worker != index);
        others.map(|(_, counts)| *counts).fold(self.gone, WorkerCounts::plus)
    }
}

/// Where the labels and the output of the first target are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MainTarget {
    targets: usize,
    outputs: usize,
    is_click: bool,
    /// Whether the loss of a step is the mean over its samples of this target alone.
    is_alone: bool,
}

impl MainTarget {
    #[cfg(test)]
    pub(crate) const CLICK: Self = Self { targets: 1, outputs: 1, is_click: true, is_alone: true };

    pub(crate) fn new(job: &Job) -> Self {
        let (features, main) = (&job.features, job.features.main_target());
        let counts_once = features.weight.is_none() && main.missing == MissingLabel::Refuse && main.weight == 1.0;
        Self {
            targets: features.targets.len(),
            outputs: features.output_count(),
            is_click: main.is_click(),
            is_alone: features.targets.len() == 1 && counts_once,
        }
    }

    pub(crate) fn sample_count(self, labels: &[f32]) -> usize {
        labels.len() / self.targets.max(1)
    }

    /// Whether each sample is positive; nothing if the target is no click.
    pub(crate) fn clicks(self, labels: &[f32]) -> impl Iterator<Item = bool> {
        let labels = if self.is_click { labels } else { &[] };
        labels.iter().step_by(self.targets).filter(|label| !label.is_nan()).map(|label| *label > 0.5)
    }

    /// What the measures of training take of a step: labels `[samples, targets]`, outputs `[samples, outputs]`, and the mean
    /// loss over all targets.
    pub(crate) fn batch_predictions(self, labels: &[f32], outputs: &[f32], loss: f32) -> BatchPredictions {
        if !self.is_click {
            return BatchPredictions::unmeasured(self.sample_count(labels));
        }
        if self.is_alone {
            return BatchPredictions::new(labels, outputs, loss);
        }
        let both = labels.chunks_exact(self.targets).zip_eq(outputs.chunks_exact(self.outputs));
        let both = both.map(|(labels, outputs)| (labels[0], outputs[0])).filter(|(label, _)| !label.is_nan());
        let (labels, logits): (Vec<f32>, Vec<f32>) = both.unzip();
        let loss = |(label, logit): (&f32, &f32)| softplus(f64::from(if *label > 0.5 { -logit } else { *logit }));
        let sum: f64 = labels.iter().zip_eq(&logits).map(loss).sum();
        BatchPredictions::new(&labels, &logits, (sum / labels.len().max(1) as f64) as f32)
    }
}

/// The loss of a network that gives every class the same chance; infinite with a regression, whose loss can be anything.
pub(crate) fn loss_of_ignorance<'a>(targets: impl IntoIterator<Item = &'a Target>) -> f64 {
    let target_loss = |target: &Target| match &target.kind {
        TargetKind::Click { .. } => target.weight * LN_2,
        TargetKind::Classes { classes } => target.weight * (classes.len() as f64).ln(),
        TargetKind::Regression { .. } => f64::INFINITY,
    };
    targets.into_iter().map(target_loss).sum()
}

/// What training costs: processor time of this process, and energy of its machine. Runs and stops with the clock of training.
#[derive(Debug)]
pub(super) struct CostMeter {
    cpu: Duration,
    /// `None` if no counter is readable.
    energy: Option<EnergyTotal>,
    /// The processor time at the start; `None` while it is stopped.
    running_since: Option<Duration>,
}

/// Energy of the processor packages of this machine.
#[derive(Debug)]
struct EnergyTotal {
    meter: EnergyMeter,
    /// In joules, up to the last stop.
    total: f64,
    /// What the meter showed at the last start.
    start: f64,
}

impl CostMeter {
    pub(super) fn new(energy: Option<EnergyMeter>) -> Self {
        let energy = energy.map(|meter| EnergyTotal { meter, total: 0.0, start: 0.0 });
        Self { cpu: Duration::ZERO, energy, running_since: None }
    }

    pub(crate) fn start(&mut self) {
        if self.running_since.is_none() {
            self.running_since = Some(cpu_time());
            self.read_energy(|energy, now| energy.start = now);
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(since) = self.running_since.take() {
            self.cpu += cpu_time().saturating_sub(since);
            self.read_energy(|energy, now| energy.total += now - energy.start);
        }
    }

    pub(crate) fn update(&mut self) {
        if let Some(energy) = &mut self.energy {
            energy.meter.read_if_due();
        }
    }

    /// The cost so far, of `samples` that all workers trained on since this process started, `own` of them in this one.
    pub(crate) fn cost(&self, samples: u64, own: u64) -> TrainingCost {
        let cpu = self.cpu + self.running_since.map_or(Duration::ZERO, |since| cpu_time().saturating_sub(since));
        let energy = self.energy.as_ref().filter(|_| samples > 0);
        TrainingCost {
            samples,
            cpu_us_per_sample: (own > 0).then(|| cpu.as_secs_f64() * 1e6 / own as f64),
            cpu_us_per_sample_of_all: None,
            joules_per_sample: energy.map(|energy| energy.total / samples as f64),
        }
    }

    /// A counter that became unreadable leaves the whole energy unknown.
    fn read_energy(&mut self, change: impl FnOnce(&mut EnergyTotal, f64)) {
        let Some(energy) = &mut self.energy else { return };
        match energy.meter.joules_used() {
            Some(now) => change(energy, now),
            None => self.energy = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_gone_still_counts_and_its_replacement_counts_beside_it() {
        let made = |steps| WorkerCounts { steps, ..WorkerCounts::default() };
        let by_worker = BTreeMap::from([(0, made(5)), (1, made(7))]);
        let mut counts = VotedCounts { by_worker, ..VotedCounts::default() };
        assert_eq!((counts.counts_of_others(0).steps, counts.counts_of_others(1).steps), (7, 5));
        counts.note_departed(|index| index == 1);
        counts.note_departed(|index| index == 1);
        assert_eq!((counts.counts_of_others(0).steps, counts.counts_of_others(1).steps), (7, 12));
        counts.by_worker = BTreeMap::from([(0, made(8)), (1, made(2))]);
        assert_eq!((counts.counts_of_others(0).steps, counts.counts_of_others(1).steps), (9, 15));
    }

    #[test]
    fn counts_add_up_in_any_order() {
        let counts = |[steps, skipped, samples, staleness_max, staleness_sum, micros, untrained_rows]: [u64; 7]| {
            WorkerCounts { steps, skipped, samples, staleness_max, staleness_sum, micros, untrained_rows }
        };
        let (one, other) = (counts([3, 1, 128, 3, 4, 9, 2]), counts([1, 0, 64, 1, 1, 10, 3]));
        let both = counts([4, 1, 192, 3, 5, 10, 5]);
        assert_eq!((one.plus(other), other.plus(one)), (both, both));
        assert_eq!([one, other].into_iter().fold(WorkerCounts::default(), WorkerCounts::plus), both);
    }
}

#[cfg(test)]
mod main_target_tests {
    use super::*;
    use crate::progress::OverallMeasures;
    use crate::testing::{number_target, small_job};

    fn report(predicted: &BatchPredictions) -> crate::event::Evaluation {
        let mut overall = OverallMeasures::new();
        overall.add(predicted);
        overall.report()
    }

    fn two(first: Target) -> MainTarget {
        let mut job = small_job();
        job.features.targets = vec![first, Target { missing: MissingLabel::Skip, ..Target::from("other") }];
        MainTarget::new(&job)
    }

    #[test]
    fn the_first_of_several_targets_is_measured_alone() {
        let main = two(Target { missing: MissingLabel::Skip, ..Target::from("label") });
        let (labels, outputs) = ([1.0, 0.0, f32::NAN, 1.0, 0.0, 1.0], [2.0, -9.0, 0.0, 0.0, -2.0, 9.0]);
        let found = report(&main.batch_predictions(&labels, &outputs, 77.0));
        let expected = report(&MainTarget::CLICK.batch_predictions(&[1.0, 0.0], &[2.0, -2.0], softplus(-2.0) as f32));
        assert_eq!((found, main.sample_count(&labels)), (expected, 3));
        assert_eq!(main.clicks(&labels).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_regression_has_samples_and_no_measures_of_clicks() {
        let main = two(number_target("label"));
        let found = report(&main.batch_predictions(&[3.0, 1.0, 4.0, 0.0], &[3.5, 0.0, 1.0, 0.0], 0.5));
        assert_eq!((found.samples, found.logloss, found.auc, found.positive_rate), (2, None, None, None));
        assert_eq!(main.clicks(&[3.0, 1.0]).count(), 0);
    }

    #[test]
    fn ignorance_is_the_loss_of_equal_chances() {
        let classes = TargetKind::Classes { classes: ["a", "b", "c"].map(String::from).to_vec() };
        let classes = Target { kind: classes, weight: 0.5, ..Target::from("level") };
        assert_eq!(loss_of_ignorance(&[Target::from("y"), classes.clone()]), LN_2 + 0.5 * 3.0_f64.ln());
        assert_eq!(loss_of_ignorance(&[classes, number_target("x")]), f64::INFINITY);
    }
}

#[cfg(test)]
mod cost_meter_tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn set(folder: &Path, microjoules: u64) {
        fs::write(folder.join("package/energy_uj"), microjoules.to_string()).unwrap();
    }

    fn powercap() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("package")).unwrap();
        for (file, text) in [("name", "package-0"), ("max_energy_range_uj", "1000000000")] {
            fs::write(folder.path().join("package").join(file), text).unwrap();
        }
        set(folder.path(), 0);
        folder
    }

    fn work(time: Duration) {
        let start = cpu_time();
        while cpu_time() < start + time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn only_what_is_spent_while_it_runs_counts() {
        let folder = powercap();
        let mut meter = CostMeter::new(EnergyMeter::open(folder.path()));
        set(folder.path(), 5_000_000);
        meter.start();
        set(folder.path(), 7_000_000);
        work(Duration::from_millis(20));
        meter.stop();
        set(folder.path(), 50_000_000);
        let cost = meter.cost(1000, 500);
        assert_eq!((cost.samples, cost.joules_per_sample), (1000, Some(0.002)));
        assert!(cost.cpu_us_per_sample.unwrap() >= 40.0, "{cost:?}");
        meter.start();
        set(folder.path(), 51_000_000);
        meter.stop();
        assert_eq!(meter.cost(1000, 500).joules_per_sample, Some(0.003));
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let mut meter = CostMeter::new(None);
        meter.start();
        meter.update();
        meter.stop();
        let cost = meter.cost(10, 0);
        assert_eq!((cost.cpu_us_per_sample, cost.joules_per_sample), (None, None));
        let folder = powercap();
        let mut meter = CostMeter::new(EnergyMeter::open(folder.path()));
        meter.start();
        fs::remove_dir_all(folder.path().join("package")).unwrap();
        meter.stop();
        assert_eq!(meter.cost(10, 10).joules_per_sample, None);
    }
}
