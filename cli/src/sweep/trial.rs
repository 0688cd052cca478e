//! A trial's process, and what its run folder says of it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use zagros_dense_worker::{Evaluation, RunFolder};
use zagros_plumbing::Deadline;
use zagros_shell::{Exit, Failure, last_error};
use zagros_sweep::{RungUnit, Rungs, Task, TrialMeasures, Values};

use super::setup::SweepSetup;
use crate::page::Record;
use crate::resume::failed;

const HELD_OUT: &str = "validation";
/// What a trial's process prints, in its folder.
const LOG: &str = "log.txt";
/// How long a process of a sweep that was killed may take to save and end.
const EARLIER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// A process that trains a trial to a rung.
pub(super) struct TrialProcess {
    pub(super) task: Task,
    child: Child,
    started: Instant,
}

/// The end of a process.
pub(super) struct TrialEnd {
    pub(super) task: Task,
    pub(super) status: io::Result<ExitStatus>,
    /// How long it ran.
    pub(super) length: Duration,
}

/// A measurement of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) measures: TrialMeasures,
    /// Steps made.
    pub(super) steps: u64,
}

/// The folder of a trial in that of the sweep.
pub(super) fn folder(sweep: &Path, trial: usize) -> PathBuf {
    sweep.join(format!("trial-{trial:03}"))
}

impl TrialProcess {
    /// Starts it. It resumes what an earlier process of the trial has left.
    ///
    /// # Errors
    /// When a file or a process cannot be made.
    pub(super) fn start(setup: &SweepSetup, values: &Values, task: Task) -> io::Result<Self> {
        let folder = std::path::absolute(folder(&setup.folder, task.trial))?;
        std::fs::create_dir_all(&folder)?;
        let log = File::options().create(true).append(true).open(folder.join(LOG))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("train").arg(&setup.file).arg("--exit-with-parent");
        for set in setup.sets_of_process(values, &folder) {
            command.args(["--set", &set]);
        }
        if let Some(rungs) = setup.plan.rungs.as_ref().filter(|rungs| task.rung + 1 < rungs.levels.len()) {
            let option = match rungs.unit {
                RungUnit::Steps => "--pause-after-steps",
                RungUnit::Epochs => "--pause-after-epochs",
            };
            command.args([option, &rungs.levels[task.rung].to_string()]);
        }
        let child = command
            // An open pipe. It closes when this process dies, in whatever way, and the child then saves and ends.
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C at the terminal reaches only this process, which asks the children to end.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { task, child, started: Instant::now() })
    }

    /// Its process id, while it runs.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()))
    }

    /// Waits for its end. Its standard input stays open until then.
    pub(super) async fn ended(mut self) -> TrialEnd {
        let stdin = self.child.stdin.take();
        let status = self.child.wait().await;
        drop(stdin);
        TrialEnd { task: self.task, status, length: self.started.elapsed() }
    }
}

/// Waits until no process of an earlier command trains in the run of a trial: one whose sweep was killed is still saving.
///
/// # Errors
/// When it does not end, or its lock cannot be read.
pub(super) async fn wait_for_earlier(sweep: &Path, trial: usize) -> Result<(), Failure> {
    let Some(run) = newest_run(&folder(sweep, trial)) else { return Ok(()) };
    let deadline = Deadline::after(EARLIER);
    while run.lock().map_err(failed)?.is_none() {
        if deadline.is_past() {
            let what = format!("another process trains in {}", run.path().display());
            return Err(Failure::with_help(Exit::Cluster, what, "end it; the same command then goes on"));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Asks a process to save and end.
pub(super) fn ask_to_end(pid: Pid) {
    // It may have ended since, which is the aim.
    let _ = kill_process(pid, Signal::TERM);
}

/// Why a process failed: the last error that it printed, else how it ended.
pub(super) fn reason(sweep: &Path, trial: usize, status: ExitStatus) -> String {
    last_error(&folder(sweep, trial).join(LOG)).unwrap_or_else(|| status.to_string())
}

/// The measures of a trial at a rung, if its run has come there. A run that ended before, by early stopping, has those of its end.
pub(super) fn measured(sweep: &Path, rungs: Option<&Rungs>, Task { trial, rung }: Task) -> Option<Measured> {
    let run = newest_run(&folder(sweep, trial))?;
    let record = Record::read(&run).ok()?;
    if run.is_complete() {
        let summary = record.summary.as_ref()?;
        return Some(Measured { measures: measures(summary.validation.as_ref()?), steps: summary.steps });
    }
    let rungs = rungs.filter(|rungs| rung + 1 < rungs.levels.len())?;
    let level = rungs.levels[rung];
    let step = match rungs.unit {
        RungUnit::Steps => level,
        RungUnit::Epochs => record.epochs.iter().find(|epoch| u64::from(epoch.epoch) + 1 == level)?.step,
    };
    let scored = record.evaluations.iter().rev().find(|scored| scored.part == HELD_OUT && scored.step == step)?;
    Some(Measured { measures: measures(&scored.evaluation), steps: step })
}

/// The measures of a finished trial on the test part.
pub(super) fn tested(sweep: &Path, trial: usize) -> Option<Evaluation> {
    let run = newest_run(&folder(sweep, trial)).filter(RunFolder::is_complete)?;
    Record::read(&run).ok()?.summary?.evaluation
}

/// The run folder of a trial. The order of names is that of starts.
fn newest_run(trial: &Path) -> Option<RunFolder> {
    let folders = std::fs::read_dir(trial).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let newest = folders.filter(|path| path.join("job.toml").is_file()).max()?;
    RunFolder::open(newest).ok()
}

fn measures(evaluation: &Evaluation) -> TrialMeasures {
    TrialMeasures { auc: evaluation.auc, logloss: evaluation.logloss, gauc: evaluation.gauc }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(run: &Path, lines: &[String]) {
        std::fs::create_dir_all(run).unwrap();
        std::fs::write(run.join("job.toml"), "").unwrap();
        std::fs::write(run.join("metrics.jsonl"), lines.join("\n")).unwrap();
    }

    fn evaluation(step: u64, part: &str, auc: f64) -> String {
        format!(
            r#"{{"type":"evaluation","step":{step},"part":"{part}","epoch":0,"samples":9,"auc":{auc},"logloss":0.5,"positive_rate":0.5,"normalised_entropy":null,"calibration":null}}"#
        )
    }

    #[test]
    fn a_rung_is_measured_at_its_own_step_of_the_newest_run() {
        let sweep = tempfile::tempdir().unwrap();
        let rungs = Rungs { unit: RungUnit::Steps, levels: vec![10, 30] };
        let at =
            |rung| measured(sweep.path(), Some(&rungs), Task { trial: 2, rung }).map(|measured| measured.measures.auc);
        assert_eq!(at(0), None);
        let trial = folder(sweep.path(), 2);
        write(&trial.join("ads-20260101-000000"), &[evaluation(10, HELD_OUT, 0.9)]);
        write(
            &trial.join("ads-20260102-000000"),
            &[evaluation(10, HELD_OUT, 0.6), evaluation(10, "test", 0.7), evaluation(20, HELD_OUT, 0.8)],
        );
        assert_eq!((at(0), at(1)), (Some(Some(0.6)), None));
        let epochs = Rungs { unit: RungUnit::Epochs, levels: vec![2, 6] };
        let task = Task { trial: 2, rung: 0 };
        assert_eq!(measured(sweep.path(), Some(&epochs), task), None);
        let epoch = r#"{"type":"epoch","step":20,"epoch":1,"samples":9,"auc":0.5,"logloss":0.5,"positive_rate":0.5,"normalised_entropy":null,"calibration":null}"#;
        write(&trial.join("ads-20260103-000000"), &[evaluation(20, HELD_OUT, 0.75), epoch.to_owned()]);
        let found = measured(sweep.path(), Some(&epochs), task).map(|found| (found.steps, found.measures.auc));
        assert_eq!(found, Some((20, Some(0.75))));
    }
}
