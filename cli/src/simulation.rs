//! Simulated runs: reads the job, its first rows, the calibration and the machines file, and leaves the rest to `zagros-sim`.

mod print;

use std::path::Path;

use zagros_cost::{Calibration, SampleWork};
use zagros_job::threads::{Machine, core_count};
use zagros_job::{Job, WeightStore};
use zagros_plumbing::disk;
use zagros_shell::{Exit, Failure, load_job_for};
use zagros_sim::{ClusterFile, Scenario, SimError, SimSettings};

use crate::args::SimulateArgs;
use crate::planning;

pub(crate) use print::SimulationFigures;

/// The run that is to be simulated, and its name.
pub(crate) fn scenario(args: &SimulateArgs) -> Result<(String, Scenario), Failure> {
    let calibration = planning::calibration(args.calibration.as_deref())?;
    let file = args.machines.as_deref().map(read).transpose()?;
    let (name, mut scenario) = match (&args.job, file) {
        (None, None) => return Err(refused(SimError::NoWorkload)),
        (None, Some(file)) => {
            let name =
                args.machines.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
            (name.unwrap_or_default(), file.build_scenario(&calibration).map_err(refused)?)
        }
        (Some(_), Some(file)) if file.workload.is_some() => return Err(refused(SimError::TwoWorkloads)),
        (Some(job), file) => of_job(args, job, file, &calibration)?,
    };
    let settings = &mut scenario.settings;
    settings.steps = args.steps.unwrap_or(settings.steps);
    settings.seed = args.seed.unwrap_or(settings.seed);
    settings.background_threads = args.background_threads.unwrap_or(settings.background_threads);
    scenario.settings = scenario.settings.checked().map_err(refused)?;
    Ok((name, scenario))
}

/// A job on the machines of a file, or on this one.
fn of_job(
    args: &SimulateArgs,
    file: &Path,
    cluster: Option<ClusterFile>,
    calibration: &Calibration,
) -> Result<(String, Scenario), Failure> {
    let mut sets = args.sets.clone();
    sets.extend(args.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(args.workers.map(|workers| format!("cluster.workers={workers}")));
    let here = Machine { cores: core_count(), workers: 1, servers: 0 };
    let mut job = load_job_for(file, &sets, &here)?;
    let (machines, calibration, settings) = match cluster {
        Some(cluster) => {
            job.cluster.workers = cluster.machines.worker_count().max(1.0) as u32;
            let calibration = cluster.merge_calibration(calibration).map_err(refused)?;
            (cluster.machines, calibration, cluster.settings)
        }
        None => {
            let has_processes = args.servers.is_some() || args.workers.is_some() || job.cluster.workers > 1;
            let (workers, servers) = (job.cluster.workers as usize, job.cluster.servers as usize);
            let machine = if has_processes { Machine { workers, servers, ..here } } else { here };
            job = load_job_for(file, &sets, &machine)?;
            (planning::this_machine(&job, &machine), calibration.clone(), SimSettings::default())
        }
    };
    if job.train.weights == WeightStore::Streamed {
        tracing::warn!("streamed weights are not simulated: each worker has the whole dense network here");
        job.train.weights = WeightStore::Resident;
    }
    let data = planning::measure_shape(&job, None);
    let work = SampleWork::new(&job, &data).map_err(|error| refused(error.into()))?;
    let (parameters, bytes) = rows(&job, args.rows);
    Ok((job.name.clone(), Scenario { machines, calibration, work, settings, parameters, row_bytes: bytes }))
}

/// Weights and bytes of so many rows, of a mean table.
fn rows(job: &Job, rows: Option<u64>) -> (Option<f64>, Option<f64>) {
    let tables = job.tables.len().max(1) as f64;
    let dim = job.tables.iter().map(|table| table.dim as f64).sum::<f64>() / tables;
    let bytes = job.tables.iter().map(|table| table.row_bytes() as f64).sum::<f64>() / tables;
    let rows = rows.map(|rows| rows as f64);
    (rows.map(|rows| rows * dim), rows.map(|rows| rows * bytes))
}

fn read(file: &Path) -> Result<ClusterFile, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::with_help(Exit::Usage, format!("cannot read {}: {error}", file.display()), disk::next_step(&error))
    })?;
    ClusterFile::from_toml(&text).map_err(|error| {
        let what = format!("{}: {error}", file.display());
        Failure::with_help(Exit::Usage, what, "docs/how-to/simulate.md describes the file")
    })
}

pub(crate) fn refused(error: SimError) -> Failure {
    let exit = if matches!(error, SimError::Stuck { .. }) { Exit::Internal } else { Exit::Usage };
    Failure::with_help(exit, error.to_string(), "docs/how-to/simulate.md says what can be simulated")
}
