//! The program `zagros`, with which benchmarks start coordinator, embedding servers and dense workers, and runs of `zagros up`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use zagros_dense_worker::RunSummary;
use zagros_plumbing::process::cpu_time_of_children;
use zagros_shell::{Exit, Failure, OrFailure};

/// The `zagros` in the folder of this program.
pub(crate) fn zagros_program() -> Result<PathBuf, Failure> {
    find_zagros(&std::env::current_exe().or_internal()?)
}

fn find_zagros(this: &Path) -> Result<PathBuf, Failure> {
    let zagros = this.with_file_name("zagros");
    if zagros.is_file() {
        return Ok(zagros);
    }
    let what = format!("{} does not exist: this benchmark starts its processes from it", zagros.display());
    Err(Failure::usage(what, "build it with `make build`, or copy `zagros` beside this program"))
}

/// A job on generated rows, with 16 values a row. The other texts are lines of these sections.
pub(crate) fn job_text(name: &str, data: &str, model: &str, train: &str, cluster: &str, runs: &Path) -> String {
    format!(
        r#"
        name = "{name}"
        [data]
        format = "criteo"
        train = "train.txt"
        {data}
        [embedding]
        dim = 16
        init = {{ kind = "uniform", bound = 0.01 }}
        optimizer = {{ kind = "adagrad", lr = 0.05 }}
        [model]
        {model}
        [train]
        {train}
        [cluster]
        {cluster}
        [output]
        folder = {runs:?}
        save_model = false
        "#
    )
}

const DEADLINE: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(crate) struct UpRun {
    pub(crate) summary: RunSummary,
    /// User and system time of all processes, from start to end.
    pub(crate) cpu: Duration,
}

/// The job alone writes to the folder `runs`. `what` names the run in errors.
pub(crate) async fn run_up(job: &Path, runs: &Path, what: &str) -> Result<UpRun, Failure> {
    let cpu_before = cpu_time_of_children();
    let mut up = Command::new(zagros_program()?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zagros_is_found_in_the_same_folder_or_its_absence_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let this = folder.path().join("zagros-bench");
        let missing = format!("{:?}", find_zagros(&this).unwrap_err());
        assert!(missing.contains("make build"), "{missing}");
        std::fs::write(folder.path().join("zagros"), "").unwrap();
        assert_eq!(find_zagros(&this).unwrap(), folder.path().join("zagros"));
    }
}
