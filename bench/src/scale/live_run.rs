//! A run of `zagros up` that is scaled while it trains.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::process::{Child, Command};
use zagros_plumbing::Deadline;
use zagros_shell::{Exit, Failure, OrInternal};

use super::step_times::StepTimes;
use crate::program;

/// The longest wait for a run to start, to have the members that were asked for, or to end.
const DEADLINE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct LiveRun {
    up: Child,
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct MoveStatus {
    pub(super) moves_committed: u64,
    pub(super) moves_abandoned: u64,
    pub(super) rows_moved: u64,
    pub(super) bytes_moved: u64,
    pub(super) longest_freeze_seconds: f64,
}

#[derive(Debug, Deserialize)]
struct RunStatus {
    scale: Option<MoveStatus>,
}

impl LiveRun {
    /// Starts the job, whose run is the only one in `runs`, and waits for its first step.
    pub(super) async fn start(job: &Path, runs: &Path) -> Result<Self, Failure> {
        let mut up = Command::new(program::zagros_program()?);
        up.arg("up").arg(job).arg("--set").arg(format!("output.folder={runs:?}")).kill_on_drop(true);
        let said = job.with_file_name("up.log");
        let log = std::fs::File::create(&said).or_internal()?;
        let up = up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().or_internal()?;
        let mut run = Self { up, folder: PathBuf::new() };
        let deadline = Deadline::from_now(DEADLINE);
        loop {
            if let Some(folder) = trained_run(runs) {
                run.folder = folder;
                return Ok(run);
            }
            if let Some(status) = run.up.try_wait().or_internal()? {
                let said = std::fs::read_to_string(&said).unwrap_or_default();
                return Err(failed(&format!("`zagros up` ended before its first step: {status}\n{said}")));
            }
            if deadline.is_past() {
                return Err(failed(&format!("`zagros up` made no step in {DEADLINE:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(super) fn metrics_file(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    /// Lets it train for a while. Fails when it makes no step in this time and long afterwards.
    pub(super) async fn wait_for_step(&self, window: Duration) -> Result<(), Failure> {
        let last_step = StepTimes::read(&self.metrics_file())?.last_step();
        tokio::time::sleep(window).await;
        let deadline = Deadline::from_now(DEADLINE);
        while StepTimes::read(&self.metrics_file())?.last_step() == last_step {
            if deadline.is_past() {
                return Err(failed(&format!("the run has made no step after step {last_step} for {DEADLINE:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Asks for another number of members, and waits until the run has it.
    pub(super) async fn ask_scale(&self, asked: &str) -> Result<(), Failure> {
        self.zagros(&["scale", asked, "--run"]).await.map(|_| ())
    }

    pub(super) async fn move_status(&self) -> Result<MoveStatus, Failure> {
        let text = self.zagros(&["status", "--json"]).await?;
        let status: RunStatus = serde_json::from_str(&text).or_internal()?;
        Ok(status.scale.unwrap_or_default())
    }

    /// The output of a command on the run, whose folder is the last argument.
    async fn zagros(&self, arguments: &[&str]) -> Result<String, Failure> {
        let what = format!("`zagros {}`", arguments.join(" "));
        let mut command = Command::new(program::zagros_program()?);
        command.args(arguments).arg(&self.folder).kill_on_drop(true).stdin(Stdio::null());
        let late = |_| failed(&format!("{what} took more than {DEADLINE:?}"));
        let ended = tokio::time::timeout(DEADLINE, command.output()).await.map_err(late)?.or_internal()?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        Err(failed(&format!("{what} failed: {}\n{}", ended.status, String::from_utf8_lossy(&ended.stderr))))
    }

    pub(super) async fn stop_run(mut self) -> Result<(), Failure> {
        let pid = self.up.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        pid.map_or(Ok(()), |pid| kill_process(pid, Signal::INT)).or_internal()?;
        let late = |_| failed(&format!("`zagros up` did not end in {DEADLINE:?} after an interrupt"));
        tokio::time::timeout(DEADLINE, self.up.wait()).await.map_err(late)?.or_internal()?;
        Ok(())
    }
}

fn trained_run(runs: &Path) -> Option<PathBuf> {
    let mut folders = std::fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
    folders.find(|folder| StepTimes::read(&folder.join("metrics.jsonl")).is_ok_and(|times| times.last_step() > 0))
}

fn failed(what: &str) -> Failure {
    Failure::with_help(Exit::Cluster, what, "see the messages above; `zagros logs` shows those of each process")
}
