//! The forecast of a run: all figures that `zagros plan` shows.

use zagros_job::Job;

use crate::calibration::Calibration;
use crate::data_shape::DataShape;
use crate::error::CostError;
use crate::limits::RateLimits;
use crate::machines::{MachineGroup, Machines};
use crate::memory::RoleMemory;
use crate::rows_on_disk::RowsOnDisk;
use crate::stages::{RolePlace, StageTimes};
use crate::work::SampleWork;

/// The most workers that a run is thought through for.
const MOST_WORKERS: f64 = 4096.0;
/// A worker pays if it adds at least this share of what the first one made.
const LEAST_GAIN: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
pub struct ForecastInputs<'a> {
    /// The job, with the threads that its processes have.
    pub job: &'a Job,
    pub data: &'a DataShape,
    pub calibration: &'a Calibration,
    pub machines: &'a Machines,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// A sample, whatever the machines.
    pub work: SampleWork,
    pub stages: StageTimes,
    pub limits: RateLimits,
    pub memory: RoleMemory,
    /// The rows on disk; `None` if all of them are in memory, or their number is not known.
    pub rows_on_disk: Option<RowsOnDisk>,
    pub scaling: WorkerScaling,
    /// The smallest batch of a worker at which streamed weights arrive as fast as it uses them: 2·F/b for F operations and b bytes a second,
    /// where the link to the servers bounds them.
    pub streaming_batch: f64,
    /// One epoch over the data; `None` if the number of samples is not known.
    pub epoch: Option<EpochCost>,
}

/// What more workers would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerScaling {
    /// The most workers of which each adds at least half of what the first one made.
    pub workers: f64,
    pub samples_per_second: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochCost {
    pub samples: f64,
    /// Hours of training, without evaluation and checkpoints.
    pub hours: f64,
    /// In the currency of the machines.
    pub money: f64,
}

impl Forecast {
    pub fn new(inputs: ForecastInputs<'_>) -> Result<Self, CostError> {
        let ForecastInputs { job, data, calibration, machines } = inputs;
        let work = SampleWork::new(job, data)?;
        let rows_on_disk = RowsOnDisk::estimate(job, data, machines.server_count());
        let run = |machines: &Machines| run(&work, rows_on_disk.as_ref(), calibration, machines);
        let (stages, limits) = run(machines)?;
        let worker = worker_group(machines)?;
        let memory = RoleMemory::new(job, worker.threads.torch, machines.server_count());
        let rate = limits.samples_per_second();
        let epoch = data.samples.map(|samples| {
            let hours = samples as f64 / rate / 3600.0;
            EpochCost { samples: samples as f64, hours, money: hours * machines.hourly_price() }
        });
        let streaming_batch = stages.stream / stages.dense_step.max(f64::MIN_POSITIVE);
        let scaling =
            WorkerScaling::find(machines, |machines| run(machines).map(|(_, limits)| limits.samples_per_second()))?;
        Ok(Self { work, stages, limits, memory, rows_on_disk, scaling, streaming_batch, epoch })
    }

    /// Samples a second of all workers together.
    #[must_use]
    pub fn samples_per_second(&self) -> f64 {
        self.limits.samples_per_second()
    }

    /// CPU seconds of all processes.
    #[must_use]
    pub fn cpu_per_sample(&self) -> f64 {
        self.stages.worker_cpu() + self.stages.server_cpu()
    }
}

impl WorkerScaling {
    /// `rate` says how many samples a second machines make.
    fn find(machines: &Machines, rate: impl Fn(&Machines) -> Result<f64, CostError>) -> Result<Self, CostError> {
        let rate = |workers: f64| rate(&machines.with_workers(workers));
        // One process with all roles has one worker.
        if machines.is_embedded() {
            return Ok(Self { workers: 1.0, samples_per_second: rate(1.0)? });
        }
        let first = rate(1.0)?;
        let mut best = Self { workers: 1.0, samples_per_second: first };
        while best.workers < MOST_WORKERS {
            let next = rate(best.workers + 1.0)?;
            if next - best.samples_per_second < LEAST_GAIN * first {
                break;
            }
            best = Self { workers: best.workers + 1.0, samples_per_second: next };
        }
        Ok(best)
    }
}

fn worker_group(machines: &Machines) -> Result<&MachineGroup, CostError> {
    // The slowest decides, because workers step together.
    let with_workers = machines.groups.iter().filter(|group| group.workers > 0.0);
    with_workers.min_by(|a, b| a.core_speed.total_cmp(&b.core_speed)).ok_or(CostError::NoRole { role: "worker" })
}

fn run(
    work: &SampleWork,
    rows_on_disk: Option<&RowsOnDisk>,
    calibration: &Calibration,
    machines: &Machines,
) -> Result<(StageTimes, RateLimits), CostError> {
    let worker = worker_group(machines)?;
    let with_servers = machines.groups.iter().filter(|group| group.servers > 0.0);
    let server = with_servers.min_by(|a, b| a.core_speed.total_cmp(&b.core_speed)).unwrap_or(worker);
    let (workers, servers) = (machines.worker_count(), machines.server_count());
    let place = RolePlace { calibration, worker, server, workers, servers, rows_on_disk };
    let stages = StageTimes::new(work, place);
    let limits = RateLimits::new(work, &stages, machines);
    Ok((stages, limits))
}

#[cfg(test)]
mod tests;
