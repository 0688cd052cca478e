//! The forecast of a run before it starts: reads the first rows of the data, the figures of `zagros calibrate` and the file of
//! machines, and leaves the arithmetic to `zagros-cost`.

mod on_disk;
mod print;
mod sample;
mod streaming;

use std::path::{Path, PathBuf};

use zagros_cost::{Calibration, CostError, DataShape, Forecast, ForecastInputs, MachineGroup, Machines};
use zagros_job::Job;
use zagros_job::threads::{Machine, ThreadPlan};
use zagros_plumbing::disk;
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{Exit, Failure};

pub(crate) use print::{PlanFigures, print_calibration};
pub(crate) use sample::measure_shape;
pub(crate) use streaming::streaming_notice;

/// Where `zagros calibrate` writes for this user.
pub(crate) fn calibration_file() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("zagros").join("calibration.toml"))
}

/// The figures of a file, or of this user's, or the defaults.
pub(crate) fn calibration(named: Option<&Path>) -> Result<Calibration, Failure> {
    let file = named.map(Path::to_owned).or_else(|| calibration_file().filter(|file| file.is_file()));
    match file {
        Some(file) => Calibration::from_toml(&read(&file)?).map_err(|error| refused(&file, &error)),
        None => Ok(Calibration::default()),
    }
}

pub(crate) fn machines(file: &Path) -> Result<Machines, Failure> {
    Machines::from_toml(&read(file)?).map_err(|error| refused(file, &error))
}

/// This machine with the processes of a job. Without servers, all roles are in one process.
pub(crate) fn this_machine(job: &Job, machine: &Machine) -> Machines {
    let threads = ThreadPlan { torch: job.train.threads, parse: job.data.threads, server: job.cluster.server_threads };
    // Its processes talk over loopback, which the calibration describes.
    let group = MachineGroup {
        name: "this machine".to_owned(),
        count: 1.0,
        cores: machine.cores.max(1) as f64,
        memory: MemoryLimit::of_this_process().map_or(0.0, |limit| limit.bytes as f64),
        bytes_per_second: 1e11,
        round_trip: 0.0,
        price: 0.0,
        workers: machine.workers.max(1) as f64,
        servers: machine.servers as f64,
        core_speed: 1.0,
        threads,
        gpu: None,
    };
    Machines { groups: vec![group], currency: String::new() }
}

pub(crate) fn forecast(
    job: &Job,
    data: &DataShape,
    calibration: &Calibration,
    machines: &Machines,
) -> Result<Forecast, Failure> {
    Forecast::new(ForecastInputs { job, data, calibration, machines }).map_err(|error| {
        Failure::with_help(Exit::Usage, error.to_string(), "docs/how-to/plan.md says what a forecast is made of")
    })
}

fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        Failure::with_help(Exit::Usage, format!("cannot read {}: {error}", file.display()), disk::next_step(&error))
    })
}

fn refused(file: &Path, error: &CostError) -> Failure {
    let help = "docs/how-to/plan.md describes the file";
    Failure::with_help(Exit::Usage, format!("{}: {error}", file.display()), help)
}
