//! Runs `zagros up` on a job and reads the result.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use zagros_dense_worker::RunSummary;
use zagros_plumbing::process::cpu_time_of_children;
use zagros_shell::{Exit, Failure, OrInternal};

use crate::program;

const DEADLINE: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(crate) struct UpRun {
    pub(crate) summary: RunSummary,
    /// User and system time of all processes, from start to end.
    pub(crate) cpu: Duration,
}

/// The job alone writes to the folder `runs`. `what` names the run in errors.
pub(crate) async fn run(job: &Path, runs: &Path, what: &str) -> Result<UpRun, Failure> {
    let cpu_before = cpu_time_of_children();
    let mut up = Command::new(program::zagros_program()?);
    up.arg("up").arg(job).kill_on_drop(true);
    let ended = up.stdin(Stdio::null()).output();
    let ended = tokio::time::timeout(DEADLINE, ended).await.map_err(|_| {
        Failure::with_help(Exit::Cluster, format!("{what} took more than {DEADLINE:?}"), "ask for fewer --rows")
    })?;
    let ended = ended.or_internal()?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        return Err(Failure::with_help(Exit::Cluster, format!("{what} failed: {}\n{said}", ended.status), "see above"));
    }
    let cpu = cpu_before.zip(cpu_time_of_children()).map(|(before, after)| after.saturating_sub(before));
    Ok(UpRun { summary: summary(runs)?, cpu: cpu.unwrap_or_default() })
}

/// The summary of the single run in a folder. The folder may hold servers' logs as well.
fn summary(runs: &Path) -> Result<RunSummary, Failure> {
    let mut summaries = std::fs::read_dir(runs).or_internal()?.flatten().map(|run| run.path().join("summary.json"));
    let missing = || Failure::with_help(Exit::Internal, format!("{} holds no run", runs.display()), "this is a bug");
    let text = std::fs::read_to_string(summaries.find(|path| path.is_file()).ok_or_else(missing)?).or_internal()?;
    serde_json::from_str(&text).or_internal()
}
