//! The forecast of a run before it starts: reads the first rows of the data, the figures of `zagros calibrate` and the file of
//! machines, and leaves the arithmetic to `zagros-planner`.

mod print;
mod streaming;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use zagros_ingest::{Batch, BatchStream, DataPart, FileInfo, find_files, training_rows};
use zagros_job::Job;
use zagros_job::threads::{Machine, ThreadPlan, core_count};
use zagros_planner::{Calibration, DataShape, Forecast, ForecastInputs, MachineGroup, Machines, PlannerError};
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{Failure, load_job_for, read_named_file};
use zagros_zip::ZipEq;

use crate::args::MachineArgs;

pub(crate) use print::{PlanReport, count, servers_in_words};
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
        Some(file) => Calibration::from_toml(&read_named_file(&file)?).map_err(|error| refused(&file, &error)),
        None => Ok(Calibration::default()),
    }
}

pub(crate) fn machines(file: &Path) -> Result<Machines, Failure> {
    Machines::from_toml(&read_named_file(file)?).map_err(|error| refused(file, &error))
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

/// A job and the machines that it is on: described ones, or this one with the processes that the arguments ask for.
pub(crate) fn job_on_machines(
    file: &Path,
    mut sets: Vec<String>,
    place: &MachineArgs,
    described: Option<Machines>,
) -> Result<(Job, Machines), Failure> {
    sets.extend(place.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(place.workers.map(|workers| format!("cluster.workers={workers}")));
    let mut machine = Machine { cores: core_count(), workers: 1, servers: 0 };
    let mut job = load_job_for(file, &sets, &machine)?;
    if let Some(machines) = described {
        job.cluster.workers = machines.worker_count().max(1.0) as u32;
        return Ok((job, machines));
    }
    if place.servers.is_some() || place.workers.is_some() || job.cluster.workers > 1 {
        (machine.workers, machine.servers) = (job.cluster.workers as usize, job.cluster.servers as usize);
        job = load_job_for(file, &sets, &machine)?;
    }
    let machines = this_machine(&job, &machine);
    Ok((job, machines))
}

pub(crate) fn forecast(
    job: &Job,
    data: &DataShape,
    calibration: &Calibration,
    machines: &Machines,
) -> Result<Forecast, Failure> {
    Forecast::new(ForecastInputs { job, data, calibration, machines })
        .map_err(|error| Failure::usage(error.to_string(), "docs/how-to/plan.md says what a forecast is made of"))
}

fn refused(file: &Path, error: &PlannerError) -> Failure {
    let help = "docs/how-to/plan.md describes the file";
    Failure::usage(format!("{}: {error}", file.display()), help)
}

const MOST: usize = 1 << 16;

/// Measures the first batch, or assumes what cannot be measured: data that are not there, that are elsewhere, or that need statistics of
/// all rows before they can be read.
pub(crate) fn measure_shape(job: &Job, samples: Option<u64>) -> DataShape {
    let assumed = DataShape { samples, ..DataShape::from_job(job) };
    let is_elsewhere = job.data.train.iter().any(|path| path.to_string_lossy().contains("://"));
    if is_elsewhere || job.data.reads_stdin() {
        return assumed;
    }
    let Ok(found) = find_files(job, &job.data.train) else { return assumed };
    let Some(batch) = first_batch(job, &found) else { return assumed };
    let rows = training_rows(job, &found).ok().map(|count| count.rows()).filter(|rows| *rows > 0);
    let bytes = found.iter().map(|file| file.bytes).sum::<u64>() as f64;
    let bytes = rows.map_or(assumed.bytes, |rows| bytes / rows as f64);
    let (ids, distinct) = counts(job, &batch);
    DataShape { bytes, ids, distinct, samples: samples.or(rows), rows: None, is_measured: true }
}

fn first_batch(job: &Job, found: &[FileInfo]) -> Option<Batch> {
    let mut job = job.clone();
    job.data.shuffle_rows = 0;
    job.train.batch_size = job.train.batch_size.min(MOST);
    BatchStream::open_files(&job, DataPart::Train, found).ok()?.next()?.ok().filter(|batch| batch.size > 0)
}

/// Ids of each feature and distinct rows of each table, for each sample.
fn counts(job: &Job, batch: &Batch) -> (Vec<f64>, Vec<f64>) {
    let samples = batch.size.max(1) as f64;
    let mut rows: Vec<HashSet<u64>> = vec![HashSet::new(); job.tables.len()];
    let mut ids = Vec::new();
    for (feature, found) in job.features.categorical.iter().zip_eq(&batch.categorical) {
        ids.push(found.ids.len() as f64 / samples);
        rows[feature.table].extend(&found.ids);
    }
    (ids, rows.iter().map(|rows| rows.len() as f64 / samples).collect())
}

#[cfg(test)]
mod tests {
    use zagros_job::Overrides;

    use super::*;

    fn job(folder: &Path, text: &str) -> Job {
        std::fs::write(folder.join("a.csv"), text).unwrap();
        let job = format!(
            "[data]\nformat = 'delimited'\ntrain = '{}/a.csv'\n[features]\nlabel = 'y'\ncategorical = ['u', {{ column = 'l', table = 'u', separator = '|' }}]\n[model]\nkind = 'ffnn'\n",
            folder.display()
        );
        Job::parse(&job, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    #[test]
    fn ids_are_counted_by_feature_and_distinct_rows_by_table() {
        let folder = tempfile::tempdir().unwrap();
        let text = "y,u,l\n1,a,b|c\n0,a,\n1,b,c\n0,d,a|b|c\n";
        let shape = measure_shape(&job(folder.path(), text), None);
        assert!(shape.is_measured);
        assert_eq!((shape.ids, shape.distinct, shape.samples), (vec![1.0, 1.5], vec![1.0], Some(4)));
        assert_eq!(shape.bytes, text.len() as f64 / 4.0);
    }

    #[test]
    fn data_that_are_not_there_are_assumed() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = job(folder.path(), "y,u,l\n1,a,b\n");
        job.data.train = vec![folder.path().join("absent.csv")];
        let shape = measure_shape(&job, Some(7));
        assert!(!shape.is_measured);
        assert_eq!(shape.samples, Some(7));
    }
}
