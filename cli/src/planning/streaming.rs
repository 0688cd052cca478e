//! Whether streamed weights arrive while a worker computes, in words.

use indicatif::{HumanBytes, HumanCount};
use zagros_job::threads::Machine;
use zagros_job::{Job, WeightStore};
use zagros_planner::{DataShape, Forecast};

use super::{calibration, calibration_file, forecast, this_machine};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StreamingBalance {
    /// Weights and gradients between a worker and the servers in a step, in bytes.
    pub(crate) bytes: f64,
    /// Additions and multiplications of a worker's step.
    pub(crate) flop: f64,
    batch: f64,
    /// Samples from which on weights arrive as fast as they are used.
    least: f64,
    /// The share of a worker's time in which it waits for them.
    waiting: f64,
}

impl StreamingBalance {
    pub(crate) fn new(plan: &Forecast) -> Self {
        Self {
            bytes: plan.work.traffic.step_bytes(),
            flop: plan.work.dense.flop * plan.work.batch,
            batch: plan.work.batch,
            least: plan.streaming_batch.ceil(),
            waiting: plan.stages.exposed_stream / plan.stages.dense_thread.max(f64::MIN_POSITIVE),
        }
    }

    fn amounts(&self) -> String {
        format!("{} and {}FLOP a step of a worker", HumanBytes(self.bytes as u64), short_number(self.flop))
    }

    /// Whether one hides behind the other.
    pub(crate) fn in_words(&self) -> String {
        let (least, batch) = (HumanCount(self.least as u64), HumanCount(self.batch as u64));
        let amounts = self.amounts();
        if self.least <= self.batch {
            return format!(
                "{amounts}: the weights arrive while the worker computes, as a batch of {batch} is not below {least}"
            );
        }
        let percent = 100.0 * self.waiting;
        format!(
            "{amounts}: the worker waits for weights {percent:.0} % of its time, as a batch of {batch} is below {least}; raise \
             train.batch_size, or set cluster.wire = \"bf16\" if the servers are other processes"
        )
    }
}

/// What a run with streamed weights says before it starts; `None` for other runs. It says whether they hide only where `zagros calibrate`
/// has measured this machine.
pub(crate) fn streaming_notice(job: &Job, machine: &Machine) -> Option<String> {
    if job.train.weights != WeightStore::Streamed {
        return None;
    }
    let is_calibrated = calibration_file().is_some_and(|file| file.is_file());
    let (speed, machines) = (calibration(None).ok()?, this_machine(job, machine));
    let plan = forecast(job, &DataShape::from_job(job), &speed, &machines).ok()?;
    let balance = StreamingBalance::new(&plan);
    Some(if is_calibrated {
        format!("streamed weights, by the calibration of this machine: {}", balance.in_words())
    } else {
        format!(
            "streamed weights: {}; `zagros calibrate` finds out whether one hides behind the other",
            balance.amounts()
        )
    })
}

/// Three digits and a letter: `1.23 M`.
pub(super) fn short_number(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(size, _)| value >= *size) {
        Some((size, letter)) => format!("{:.2} {letter}", value / size),
        None => format!("{value:.0} "),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;
    use zagros_planner::Calibration;

    use super::*;

    const MACHINE: Machine = Machine { cores: 4, workers: 1, servers: 1 };

    fn job(sets: &[&str]) -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[model]\nkind = 'ffnn'\nhidden = [1024, 1024]\n[train]\nthreads = 1\n";
        Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    fn balance(batch: u32) -> StreamingBalance {
        let job = job(&["train.weights=streamed", &format!("train.batch_size={batch}")]);
        let machines = this_machine(&job, &MACHINE);
        StreamingBalance::new(&forecast(&job, &DataShape::from_job(&job), &Calibration::default(), &machines).unwrap())
    }

    #[test]
    fn a_batch_that_is_large_enough_hides_the_weights_and_a_small_one_waits() {
        let (small, large) = (balance(16), balance(8192));
        assert_eq!(small.bytes, large.bytes);
        assert!(small.waiting > 0.0 && large.waiting == 0.0, "{small:?} {large:?}");
        let words = large.in_words();
        assert!(words.contains("arrive while the worker computes, as a batch of 8,192"), "{words}");
        assert!(small.in_words().contains("waits for weights") && small.in_words().contains("raise train.batch_size"));
    }
}
