//! How fast this machine trains: as `zagros calibrate` measured it, or by some training steps of a network of usual layers.

use std::path::Path;
use std::time::Instant;

use zagros_cost::{Calibration, DataShape};
use zagros_dense_worker::model::DenseModel;
use zagros_job::threads::Machine;
use zagros_job::{Job, Overrides};
use zagros_shell::{Exit, Failure};

use crate::planning;

/// How many samples a second a job may have.
#[derive(Debug)]
pub(crate) enum TrainingSpeed {
    /// As far as the dense network alone is concerned, by its floating-point operations in a second.
    Flops(f64),
    /// By the cost model of `zagros plan`, with all stages.
    Calibrated(Box<Calibration>),
}

impl TrainingSpeed {
    /// The given number of operations, else this user's calibration, else that of a second of steps.
    pub(crate) fn choose(flops: Option<f64>, machine: &Machine) -> Result<Self, Failure> {
        let is_calibrated = planning::calibration_file().is_some_and(|file| file.is_file());
        match flops {
            Some(flops) => Ok(Self::Flops(flops)),
            None if is_calibrated => Ok(Self::Calibrated(Box::new(planning::calibration(None)?))),
            None => Ok(Self::Flops(measure(machine)?)),
        }
    }

    /// Samples a second of a job whose step has so many operations for each sample.
    pub(crate) fn samples_per_second(&self, job: &Job, flop: u64) -> Result<f64, Failure> {
        match self {
            Self::Flops(flops) => Ok(flops / flop.max(1) as f64),
            Self::Calibrated(calibration) => {
                let machines = planning::this_machine(job, &Machine::this());
                Ok(planning::forecast(job, &DataShape::from_job(job), calibration, &machines)?.samples_per_second())
            }
        }
    }
}

/// Layers whose weights leave the caches, as those of large networks do.
const JOB: &str = "[data]\nformat = 'criteo'\ntrain = 'none'\n[model]\nkind = 'ffnn'\nhidden = [1024, 1024]\n[train]\nbatch_size = 1024\n";
/// Steps that are timed, after one that is not. The fastest counts.
const STEPS: usize = 3;

/// Floating-point operations in a second of the dense network's steps, with the threads that a job has here.
fn measure(machine: &Machine) -> Result<f64, Failure> {
    let threads = format!("train.threads={}", machine.plan_threads().torch);
    let job = Job::parse(JOB, Path::new("measure.toml"), &Overrides::sets([threads]));
    let job = job.map_err(|errors| Failure::new(Exit::Internal, errors))?;
    let failed = |error| Failure::from_error(Exit::Internal, error);
    let mut model = DenseModel::new(&job).map_err(failed)?;
    let batch = job.train.batch_size;
    let (numeric, embeddings) =
        (vec![0.5; batch * model.input_shape().numeric], vec![0.25; batch * model.input_shape().width()]);
    let labels: Vec<f32> = (0..batch).map(|sample| (sample % 2) as f32).collect();
    let mut best = f64::INFINITY;
    for step in 0..=STEPS {
        let started = Instant::now();
        model.step(&numeric, &embeddings, &labels).map_err(failed)?;
        let seconds = started.elapsed().as_secs_f64();
        best = if step == 0 { best } else { best.min(seconds) };
    }
    let flop = job.dense_layout().map_or(0, |layout| layout.step_flop()) as f64 * batch as f64;
    Ok(flop / best.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_one_of_a_processor() {
        let rate = measure(&Machine { cores: 1, workers: 1, servers: 1 }).unwrap();
        assert!((1e7..1e14).contains(&rate), "{rate}");
    }

    /// A narrow network waits for its data, which operations alone do not show.
    #[test]
    fn a_calibration_counts_every_stage() {
        let job = Job::parse(JOB, Path::new("job.toml"), &Overrides::sets(["model.hidden=[8]"])).unwrap();
        let flop = job.dense_layout().unwrap().step_flop();
        let calibrated = TrainingSpeed::Calibrated(Box::default()).samples_per_second(&job, flop).unwrap();
        let alone = TrainingSpeed::Flops(100e9).samples_per_second(&job, flop).unwrap();
        assert!(alone == 100e9 / flop as f64 && calibrated < alone / 2.0, "{calibrated} {alone}");
    }
}
