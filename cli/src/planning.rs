//! The forecast of a run before it starts: reads the first rows of the data, the figures of `zagros calibrate` and the file of
//! machines, and leaves the arithmetic to `zagros-planner`.

mod print;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use indicatif::{HumanBytes, HumanCount};
use zagros_ingest::{Batch, BatchStream, DataPart, FileInfo, find_files, training_rows};
use zagros_job::threads::{Machine, ThreadPlan, core_count};
use zagros_job::{Job, Table, WeightStore};
use zagros_planner::{Calibration, DataShape, Forecast, ForecastInputs, MachineGroup, Machines, PlannerError};
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{Failure, load_job_for, read_named_file};
use zagros_zip::ZipEq;

use crate::args::MachineArgs;
use crate::steps::is_on_disk;

pub(crate) use print::{PlanReport, count, servers_in_words};

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
        cores: machine.cores.max(1) as f64,
        memory: MemoryLimit::of_this_process().map_or(0.0, |limit| limit.bytes as f64),
        network_gbit: 800.0,
        round_trip_us: 0.0,
        workers: machine.workers.max(1) as f64,
        servers: machine.servers as f64,
        threads,
        ..MachineGroup::default()
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
    if !is_on_disk(job) {
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

/// The mean of all tables.
pub(crate) fn table_mean(job: &Job, figure: fn(&Table) -> usize) -> f64 {
    job.tables.iter().map(|table| figure(table) as f64).sum::<f64>() / job.tables.len().max(1) as f64
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

/// Weights and gradients between a worker and the servers, and additions and multiplications of the worker.
fn streamed_amounts(plan: &Forecast) -> String {
    let (bytes, flop) = (plan.work.traffic.step_bytes(), plan.work.dense.flop * plan.work.batch);
    format!("{} and {}FLOP a step of a worker", HumanBytes(bytes as u64), short_number(flop))
}

/// Whether streamed weights arrive while a worker computes.
fn streaming_in_words(plan: &Forecast) -> String {
    // From so many samples on, weights arrive as fast as they are used.
    let least = plan.streaming_batch.ceil();
    let amounts = streamed_amounts(plan);
    let (least_samples, batch) = (HumanCount(least as u64), HumanCount(plan.work.batch as u64));
    if least <= plan.work.batch {
        return format!(
            "{amounts}: the weights arrive while the worker computes, as a batch of {batch} is not below {least_samples}"
        );
    }
    let percent = 100.0 * plan.stages.exposed_stream / plan.stages.dense_thread.max(f64::MIN_POSITIVE);
    format!(
        "{amounts}: the worker waits for weights {percent:.0} % of its time, as a batch of {batch} is below {least_samples}; raise \
         train.batch_size, or set cluster.wire = \"bf16\" if the servers are other processes"
    )
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
    Some(if is_calibrated {
        format!("streamed weights, by the calibration of this machine: {}", streaming_in_words(&plan))
    } else {
        format!(
            "streamed weights: {}; `zagros calibrate` finds out whether one hides behind the other",
            streamed_amounts(&plan)
        )
    })
}

/// Three digits and a letter: `1.23 M`.
pub(crate) fn short_number(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(size, _)| value >= *size) {
        Some((size, letter)) => format!("{:.2} {letter}", value / size),
        None => format!("{value:.0} "),
    }
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

    const MACHINE: Machine = Machine { cores: 4, workers: 1, servers: 1 };

    fn network(sets: &[&str]) -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[model]\nkind = 'ffnn'\nhidden = [1024, 1024]\n[train]\nthreads = 1\n";
        Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    fn plan(batch: u32) -> Forecast {
        let job = network(&["train.weights=streamed", &format!("train.batch_size={batch}")]);
        let machines = this_machine(&job, &MACHINE);
        forecast(&job, &DataShape::from_job(&job), &Calibration::default(), &machines).unwrap()
    }

    #[test]
    fn a_batch_that_is_large_enough_hides_the_weights_and_a_small_one_waits() {
        let (small, large) = (plan(16), plan(8192));
        assert_eq!(small.work.traffic.step_bytes(), large.work.traffic.step_bytes());
        let waiting = [&small, &large].map(|plan| plan.stages.exposed_stream);
        assert!(waiting[0] > 0.0 && waiting[1] == 0.0, "{waiting:?}");
        let (few, words) = (streaming_in_words(&small), streaming_in_words(&large));
        assert!(words.contains("arrive while the worker computes, as a batch of 8,192"), "{words}");
        assert!(few.contains("waits for weights") && few.contains("raise train.batch_size"), "{few}");
    }
}
