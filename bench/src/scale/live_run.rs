//! A run of `zagros up` that is scaled while it trains, and when each of its steps was made, from its `metrics.jsonl`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use zagros_plumbing::Deadline;
use zagros_shell::{Exit, Failure, OrFailure};

use crate::program;

/// The longest wait for a run to start, to have the members that were asked for, or to end.
const DEADLINE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct LiveRun {
    up: Child,
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct MoveStatus {
    pub(super) moves_committed: u64,
    pub(super) moves_abandoned: u64,
    pub(super) rows_moved: u64,
    pub(super) bytes_moved: u64,
    /// The longest time for which a server was frozen.
    #[serde(rename(serialize = "longest_freeze"))]
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

/// The last step whose time is recorded whatever its distance from the one before.
pub(super) const LAST_RECORDED: u64 = 1000;

#[derive(Clone, Copy, Debug, Deserialize)]
struct StepTime {
    time: f64,
    step: u64,
    /// Samples trained so far, by all workers.
    samples: u64,
}

#[derive(Debug, Default)]
pub(super) struct StepTimes(Vec<StepTime>);

/// Seconds since the epoch of the clock, as in the record of a run.
pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

impl StepTimes {
    /// Reads the record of a run, whose last line may not be whole yet.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        Ok(Self::parse(&std::fs::read_to_string(path).or_internal()?))
    }

    fn parse(text: &str) -> Self {
        let is_step = |line: &&str| line.contains("\"type\":\"step\"");
        Self(text.lines().filter(is_step).filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The newest step. 0 before the first.
    pub(super) fn last_step(&self) -> u64 {
        self.0.last().map_or(0, |last| last.step)
    }

    /// Samples a second between the steps that surround a span of time.
    pub(super) fn samples_per_second(&self, span: Range<f64>) -> f64 {
        let steps = self.steps_around(span);
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return 0.0 };
        let seconds = last.time - first.time;
        if seconds > 0.0 { (last.samples - first.samples) as f64 / seconds } else { 0.0 }
    }

    /// The longest time between two steps, one of which is in a span of time or which surround it.
    pub(super) fn longest_gap(&self, span: Range<f64>) -> f64 {
        self.steps_around(span).windows(2).map(|pair| pair[1].time - pair[0].time).fold(0.0, f64::max)
    }

    /// The steps in a span of time, with the last one before it and the first one after it.
    fn steps_around(&self, span: Range<f64>) -> &[StepTime] {
        let first = self.0.partition_point(|step| step.time < span.start).saturating_sub(1);
        let end = (self.0.partition_point(|step| step.time <= span.end) + 1).min(self.0.len());
        &self.0[first.min(end)..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 100 samples at these times.
    fn times(at: &[f64]) -> StepTimes {
        let line = |(number, time): (usize, &f64)| {
            let (step, samples) = (number + 1, 100 * (number + 1));
            format!("{{\"type\":\"step\",\"time\":{time},\"step\":{step},\"samples\":{samples},\"loss\":0.5}}\n")
        };
        let lines: String = at.iter().enumerate().map(line).collect();
        StepTimes::parse(&format!("{lines}{{\"type\":\"epoch\",\"time\":9}}\n{{\"type\":\"step\",\"ti"))
    }

    #[test]
    fn a_stop_is_seen_whichever_part_of_it_is_in_the_span() {
        let times = times(&[1.0, 2.0, 3.0, 7.0, 8.0, 9.0]);
        assert_eq!((times.last_step(), times.longest_gap(0.0..2.5)), (6, 1.0));
        for span in [2.5..3.5, 4.0..5.0, 6.0..8.5, 0.0..20.0] {
            assert_eq!(times.longest_gap(span.clone()), 4.0, "{span:?}");
        }
        assert_eq!(times.longest_gap(7.5..20.0), 1.0);
    }

    #[test]
    fn a_rate_is_of_the_steps_around_the_span() {
        let times = times(&[1.0, 2.0, 3.0, 7.0, 8.0, 9.0]);
        assert_eq!((times.samples_per_second(1.0..2.0), times.samples_per_second(4.0..6.0)), (100.0, 25.0));
        let none = StepTimes::default();
        assert_eq!((none.samples_per_second(0.0..1.0), none.longest_gap(0.0..1.0)), (0.0, 0.0));
    }
}
