//! The start of a command: its job, its files and folders, its runtime, and the signals that end it.

use std::path::Path;
use std::time::Duration;

use zagros_job::threads::{Machine, ThreadPlan};
use zagros_job::{Job, Overrides};
use zagros_plumbing::lifecycle::{Shutdown, StopSignals};
use zagros_plumbing::{disk, durable};
use zagros_store::{Folder, StoreError, StoreFault};

use crate::exit::{Exit, Failure, OrFailure};
use crate::note;

/// Reads and checks a job file with overrides from the command line and the environment.
pub fn load_job(path: &Path, sets: &[String]) -> Result<Job, Failure> {
    load_job_for(path, sets, &Machine::this())
}

/// As [`load_job`], but plans threads for `machine`.
pub fn load_job_for(path: &Path, sets: &[String], machine: &Machine) -> Result<Job, Failure> {
    let overrides = Overrides::new(sets.to_vec(), std::env::vars_os());
    for note in zagros_job::removed_keys(path, &overrides) {
        tracing::warn!("{note}");
    }
    Job::load_for(path, &overrides, machine).map_err(|errors| Failure::new(Exit::Usage, errors))
}

/// Whether a job file or an override sets a key, so that it does not have its default.
pub fn is_key_given(path: &Path, sets: &[String], key: &str) -> bool {
    zagros_job::is_given(path, &Overrides::new(sets.to_vec(), std::env::vars_os()), key)
}

/// As [`load_job`], from text. Errors call the text `path`.
pub fn parse_job(text: &str, path: &Path, sets: &[String]) -> Result<Job, Failure> {
    let overrides = Overrides::new(sets.to_vec(), std::env::vars_os());
    Job::parse(text, path, &overrides).map_err(|errors| Failure::new(Exit::Usage, errors))
}

pub fn describe_threads(job: &Job, machine: &Machine) -> String {
    let (torch, parse, server) = (job.train.threads, job.data.threads, job.cluster.server_threads);
    machine.describe_plan(&ThreadPlan { torch, parse, server })
}

/// This machine with all processes of the job, and with those that may join it later.
pub fn machine_of_job(job: &Job, cores: usize) -> Machine {
    Machine { cores, workers: job.cluster.most_workers() as usize, servers: job.cluster.servers as usize }
}

/// Divides the cores of the machine among the processes. Threads without a core of their own spin for each other and make a
/// step a hundred times slower. Returns the job with its shares, and the overrides for the children.
pub fn share_cores(file: &Path, mut sets: Vec<String>, machine: &Machine) -> Result<(Job, Vec<String>), Failure> {
    let job = load_job_for(file, &sets, machine)?;
    note!("threads: {}", describe_threads(&job, machine));
    sets.push(format!("train.threads={}", job.train.threads));
    sets.push(format!("data.threads={}", job.data.threads));
    sets.push(format!("cluster.server_threads={}", job.cluster.server_threads));
    Ok((job, sets))
}

/// Requests `shutdown` at Ctrl-C and SIGTERM. A second Ctrl-C ends the process at once.
pub fn watch_signals(shutdown: &Shutdown) -> Result<StopSignals, Failure> {
    StopSignals::install_handlers(shutdown.clone(), second_signal).or_internal()
}

/// Requests `first` at Ctrl-C and SIGTERM, and `second` at the next one. A third ends the process at once.
pub fn watch_signals_twice(first: &Shutdown, second: &Shutdown) -> Result<StopSignals, Failure> {
    let second = second.clone();
    let again = move |code| if second.is_requested() { second_signal(code) } else { second.request() };
    StopSignals::install_with(first.clone(), again).or_internal()
}

/// Ends the process at once, after a second Ctrl-C.
#[expect(clippy::disallowed_methods, reason = "someone who presses Ctrl-C twice will not wait for guards")]
fn second_signal(code: i32) -> ! {
    std::process::exit(code)
}

/// How long tasks and threads of the runtime may take to end.
const SHUTDOWN: Duration = Duration::from_millis(500);

/// Runs a command to its end on a runtime of its own, with a thread for each core.
pub fn block_on(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    block_on_threads(None, command)
}

/// As [`block_on`], with a number of threads.
pub(crate) fn block_on_threads(
    threads: Option<usize>,
    command: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    threads.map(|threads| runtime.worker_threads(threads));
    let runtime = runtime.enable_all().build().or_internal()?;
    let ended = runtime.block_on(command);
    // Tasks release what they hold, such as a store that must be closed before the process ends. A blocking read of a
    // parser thread must not delay the process further: everything that matters is written.
    runtime.shutdown_timeout(SHUTDOWN);
    ended
}

/// Writes a file, whole or not at all.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    durable::write(path, content.as_ref()).map_err(|error| Failure::unwritable(path, &error))
}

/// Reads a file that the command line names.
pub fn read_named_file(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display()), disk::next_step(&error)))
}

/// Checks the folders before anything else is done. Otherwise only the first checkpoint, or the end of training, would show
/// that a bucket does not exist or that credentials are wrong.
pub fn check_folders(job: &Job) -> Result<(), Failure> {
    let are_kept = job.checkpoint.keep > 0 || job.output.keep_best > 0;
    let checkpoints = job.checkpoint.folder.as_ref().filter(|_| are_kept);
    let model = job.output.model_folder.as_ref().filter(|_| job.output.save_model);
    for (key, folder) in [("checkpoint.folder", checkpoints), ("output.model_folder", model)] {
        let Some(folder) = folder else { continue };
        // Requests to a store may take as long as the job's timeout.
        let checked = Folder::open(folder, job.cluster.timeout).and_then(|folder| folder.check_writable());
        checked.map_err(|error| failed(error, key))?;
    }
    Ok(())
}

fn failed(error: StoreError, key: &str) -> Failure {
    let exit = match error.fault() {
        StoreFault::Setting => Exit::Usage,
        StoreFault::Away => Exit::Cluster,
        StoreFault::Missing => Exit::Data,
        StoreFault::Machine => Exit::Storage,
    };
    Failure::new(exit, miette::miette!("{error} (`{key}`)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_or_refused_before_training_where_they_are_used() {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";
        let job = Job::parse(text, "job.toml".as_ref(), &Overrides::none()).unwrap();
        let (file, folder) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
        let (below, missing) = (file.path().join("below"), folder.path().join("checkpoints"));
        let (below, missing) = (below.display().to_string(), missing.display().to_string());
        let other = Some("gs://models");
        for (checkpoints, keep, model, save_model, problems) in [
            (None, 2, None, true, &[][..]),
            (other, 2, None, true, &["Usage", "only s3:// and file:// are supported"]),
            (other, 0, None, true, &[]),
            (Some(below.as_str()), 2, None, true, &["Storage", "`checkpoint.folder`"]),
            (Some(missing.as_str()), 2, None, true, &[]),
            (None, 2, other, true, &["`output.model_folder`"]),
            (None, 2, other, false, &[]),
        ] {
            let mut job = job.clone();
            (job.checkpoint.folder, job.checkpoint.keep) = (checkpoints.map(str::to_owned), keep);
            (job.output.model_folder, job.output.save_model) = (model.map(str::to_owned), save_model);
            let found = check_folders(&job).err().map(|failure| format!("{failure:?}")).unwrap_or_default();
            let has_all = problems.iter().all(|problem| found.contains(problem));
            assert!(has_all && found.is_empty() == problems.is_empty(), "{checkpoints:?} {keep} {model:?}: {found}");
        }
        assert!(Path::new(&missing).is_dir());
    }
}
