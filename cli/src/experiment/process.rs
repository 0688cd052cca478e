//! Processes of `zagros train` that an experiment starts: their job and folder, and what their end means.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use zagros_dense_worker::RunFolder;
use zagros_job::threads::{Machine, core_count};
use zagros_plumbing::{Deadline, exit_codes};
use zagros_shell::{Exit, Failure, is_key_given, last_error};

use super::{ExperimentMember, ExperimentSetup};
use crate::resume::failed;

const LOG: &str = "log.txt";
/// How long a process of a command that was killed may take to save and end.
const EARLIER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Starts a member's process in `folder`, an absolute path, in which it makes its run folder. It resumes what an earlier process has left
/// there. It lives as long as its standard input is open.
pub(crate) fn start_process(setup: &ExperimentSetup, member: &ExperimentMember, folder: &Path) -> io::Result<Child> {
    std::fs::create_dir_all(folder)?;
    let log = File::options().create(true).append(true).open(folder.join(LOG))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("train").arg(&setup.file).arg("--exit-with-parent");
    for set in member.sets.iter().chain(&place_sets(setup, folder, &member.sets)) {
        command.args(["--set", set]);
    }
    command
        .args(&member.options)
        // An open pipe. It closes when this process dies, in whatever way, and the child then saves and ends.
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A Ctrl-C at the terminal reaches only this process, which asks the children to end.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Changes to the job that put the run folder of a process into `folder`, and give it its part of the cores, where neither the job file nor
/// `sets` says how many threads it has.
fn place_sets(setup: &ExperimentSetup, folder: &Path, sets: &[String]) -> Vec<String> {
    let cores = (core_count() / setup.jobs.max(1)).max(1);
    let part = Machine { cores, workers: 1, servers: 0 }.plan_threads();
    let threads =
        [("train.threads", part.torch), ("data.threads", part.parse), ("cluster.server_threads", part.server)];
    let planned = threads.into_iter().filter(|(key, _)| !is_key_given(&setup.file, sets, key));
    // A JSON text is a TOML text.
    let folder = format!("output.folder={}", serde_json::Value::from(folder.display().to_string()));
    planned.map(|(key, threads)| format!("{key}={threads}")).chain([folder]).collect()
}

/// Waits until no process of an earlier command trains in the run of a folder: one whose parent was killed is still saving.
pub(crate) async fn wait_for_earlier(folder: &Path) -> Result<(), Failure> {
    let Some(run) = newest_run(folder) else { return Ok(()) };
    let deadline = Deadline::from_now(EARLIER);
    while run.try_lock().map_err(failed)?.is_none() {
        if deadline.is_past() {
            let what = format!("another process trains in {}", run.path().display());
            return Err(Failure::with_help(Exit::Cluster, what, "end it; the same command then goes on"));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

pub(crate) fn ask_to_end(pid: Pid) {
    // It may have ended since, which is the aim.
    let _ = kill_process(pid, Signal::TERM);
}

/// Why a process failed: the last error that it printed, else how it ended.
pub(crate) fn failure_reason(folder: &Path, status: ExitStatus) -> String {
    last_error(&folder.join(LOG)).unwrap_or_else(|| status.to_string())
}

/// The run folder in a folder. The order of names is that of starts.
pub(crate) fn newest_run(folder: &Path) -> Option<RunFolder> {
    let folders = std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let newest = folders.filter(|path| path.join("job.toml").is_file()).max()?;
    RunFolder::open(newest).ok()
}

/// What the end of a process means for the command that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndKind {
    Well,
    Interrupted,
    /// By the system or a person: its own values need not be the cause.
    Killed,
    /// By its own values: it diverged, the job is none, or it crashed.
    Failed,
    /// By something that other processes would meet too.
    Hopeless,
}

impl EndKind {
    pub(crate) fn from_status(status: ExitStatus) -> Self {
        let own_codes = [exit_codes::USAGE, exit_codes::DIVERGED].map(i32::from);
        // As a shell has it.
        match status.code().or(status.signal().map(|signal| 128 + signal)) {
            Some(0) => Self::Well,
            Some(130 | 143) => Self::Interrupted,
            Some(137) => Self::Killed,
            Some(code) if own_codes.contains(&code) || code > 128 => Self::Failed,
            _ => Self::Hopeless,
        }
    }
}

/// The error of a command whose process ended with [`EndKind::Hopeless`].
pub(crate) fn hopeless_failure(name: &str, command: &str, folder: &Path, status: ExitStatus) -> Failure {
    let what = format!("{name} failed: {}", failure_reason(folder, status));
    let mut exits = [Exit::Data, Exit::Cluster, Exit::Storage].into_iter();
    let exit = exits.find(|exit| status.code() == Some(exit.code().into())).unwrap_or(Exit::Internal);
    let help = format!(
        "others would fail alike, so the {command} stops; its output is in {}; the same command goes on",
        folder.join(LOG).display()
    );
    Failure::with_help(exit, what, help)
}

#[cfg(test)]
mod tests {
    use zagros_job::{Job, Overrides};

    use super::*;

    #[test]
    fn a_process_has_its_folder_and_its_part_of_the_cores() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.toml");
        std::fs::write(&file, "[data]\nformat = 'criteo'\ntrain = '/a'\n").unwrap();
        let job = Job::load(&file, &Overrides::none()).unwrap();
        let setup =
            ExperimentSetup { name: "sweep", job, file, sets: Vec::new(), jobs: 1, folder: folder.path().to_owned() };
        let sets = place_sets(&setup, Path::new("/x y"), &["data.threads=3".to_owned()]).join(" ");
        assert!(sets.contains("output.folder=\"/x y\"") && sets.contains("train.threads="), "{sets}");
        assert!(!sets.contains("data.threads"), "it is given: {sets}");
    }

    #[test]
    fn a_process_fails_by_its_values_or_by_what_all_meet() {
        let raw_kind = |raw: i32| EndKind::from_status(ExitStatus::from_raw(raw));
        let kind = |code: i32| raw_kind(code << 8);
        assert_eq!([0, 143, 130].map(kind), [EndKind::Well, EndKind::Interrupted, EndKind::Interrupted]);
        assert_eq!([5, 2, 139].map(kind), [EndKind::Failed; 3]);
        assert_eq!([1, 3, 4, 6].map(kind), [EndKind::Hopeless; 4]);
        assert_eq!([raw_kind(9), kind(137), raw_kind(15)], [EndKind::Killed, EndKind::Killed, EndKind::Interrupted]);
    }
}
