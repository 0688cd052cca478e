//! What training costs: processor time of this process, and energy of its machine. Runs and stops with the clock of training.

use std::time::Duration;

use zagros_plumbing::energy::EnergyMeter;
use zagros_plumbing::process::cpu_time;

use crate::summary::TrainingCost;

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
