//! A run of the family: its folder, its changes to the job, what it has measured, and what it costs on this machine. Runs are trained in
//! processes of their own, so many side by side, until all have ended, the time is over or a signal asks for the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;
use zagros_experiments::scaling::{Measurement, MemberRun, RunCost};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, OrFailure, note};

use super::setup::{FamilySetup, FamilySize, size_set};
use crate::page::RunRecord;
use crate::train_process::{
    EndKind, TrainProcess, TrainingEnd, ask_to_end, failure_reason, folder_set, hopeless_failure, newest_run,
    thread_sets, wait_for_earlier,
};

/// Evaluations without an improvement that no run reaches: a family trains all runs to their end.
const PATIENCE: u32 = 1_000_000;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FamilyMember {
    pub(super) size: FamilySize,
    pub(super) seed: u64,
    /// Shares of the rows after which it is measured; the last one is its length.
    pub(super) shares: Vec<f64>,
    pub(super) folder: PathBuf,
}

/// What a run measured after a share of the rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MemberPoint {
    /// As it was asked for: `1.3m`.
    pub(super) size: String,
    pub(super) share: f64,
    #[serde(flatten)]
    pub(super) measured: Measurement,
    pub(super) auc: Option<f64>,
    pub(super) seconds: f64,
}

impl FamilyMember {
    pub(super) fn from_run(setup: &FamilySetup, run: &MemberRun) -> Self {
        Self::new(setup, &setup.sizes[run.size], run.seed, &run.shares)
    }

    pub(super) fn next(setup: &FamilySetup, shares: &[f64]) -> Self {
        let last = &shares[shares.len().saturating_sub(1)..];
        Self::new(setup, &setup.next, 1, last)
    }

    fn new(setup: &FamilySetup, size: &FamilySize, seed: u64, shares: &[f64]) -> Self {
        let length = match shares.last() {
            Some(share) if setup.run_for_each_share => format!("-{share}"),
            _ => String::new(),
        };
        let folder = setup.folder.join(format!("size-{}-seed-{seed}{length}", size.size));
        Self { size: size.clone(), seed, shares: shares.to_vec(), folder }
    }

    pub(super) fn name(&self) -> String {
        format!("size {}, seed {}", self.size.size, self.seed)
    }

    pub(super) fn step_count(&self, setup: &FamilySetup) -> u64 {
        self.shares.last().map_or(1, |share| setup.step_count(*share))
    }

    pub(super) fn job_sets(&self, setup: &FamilySetup) -> Vec<String> {
        let steps = self.step_count(setup);
        let every = self.shares.first().map_or(steps, |share| setup.step_count(*share));
        let mut sets = process_sets(setup, self.size.size, &self.folder, steps);
        sets.push(format!("train.seed={}", self.seed));
        sets.push(format!("train.evaluate_every={every}"));
        if setup.run_for_each_share {
            // A schedule in epochs ends with the run.
            sets.push(format!("train.epoch_steps={steps}"));
        }
        sets
    }

    /// What it measured, if it has come to its end.
    pub(super) fn measured_points(&self, setup: &FamilySetup) -> Option<Vec<MemberPoint>> {
        let run = newest_run(&self.folder).filter(zagros_dense_worker::RunFolder::is_complete)?;
        let record = RunRecord::read(&run).ok()?;
        let seconds = record.summary.as_ref()?.seconds;
        // With a validation part, only that is scored while training.
        let part = if record.of_part("validation").next().is_some() { "validation" } else { "test" };
        let point = |share: &f64| {
            let step = setup.step_count(*share);
            let scored = record.of_part(part).find(|scored| scored.step == step)?;
            let (parameters, samples) = (self.size.parameters as f64, setup.sample_count(step));
            let measured = Measurement { parameters, samples, seed: self.seed, loss: scored.evaluation.logloss? };
            let size = self.size.size.to_string();
            Some(MemberPoint { size, share: *share, measured, auc: scored.evaluation.auc, seconds })
        };
        self.shares.iter().map(point).collect()
    }
}

/// Changes that every process of the family has.
fn process_sets(setup: &FamilySetup, size: zagros_job::ModelSize, folder: &Path, steps: u64) -> Vec<String> {
    let mut sets = setup.sets.clone();
    sets.push(size_set(size));
    sets.push(folder_set(folder));
    sets.push(format!("train.max_steps={steps}"));
    sets.extend(["train.epochs=1", "output.save_model=false"].map(str::to_owned));
    if setup.job.train.early_stop.is_some() {
        sets.push(format!("train.early_stop.patience={PATIENCE}"));
        sets.push("output.keep_best=0".to_owned());
    }
    let threads = thread_sets(&setup.file, &sets, setup.jobs);
    sets.extend(threads);
    sets
}

type ProcessEnd = (usize, std::io::Result<ExitStatus>, Duration);

struct FamilyTraining<'a> {
    setup: &'a FamilySetup,
    members: &'a [FamilyMember],
    /// Number of the member that is started next.
    next: usize,
    running: BTreeMap<usize, Option<Pid>>,
    processes: JoinSet<ProcessEnd>,
}

/// Trains the members that are not complete. On every way out, no process is left. A run that fails by its own size is a note.
pub(super) async fn train(
    setup: &FamilySetup,
    members: &[FamilyMember],
    shutdown: &Shutdown,
    deadline: Instant,
) -> Result<TrainingEnd, Failure> {
    let mut training = FamilyTraining { setup, members, next: 0, running: BTreeMap::new(), processes: JoinSet::new() };
    let ended = training.run(shutdown, deadline).await;
    training.stop().await;
    ended
}

impl FamilyTraining<'_> {
    async fn run(&mut self, shutdown: &Shutdown, deadline: Instant) -> Result<TrainingEnd, Failure> {
        loop {
            while self.running.len() < self.setup.jobs && self.next < self.members.len() {
                self.start().await?;
            }
            if self.processes.is_empty() {
                return Ok(TrainingEnd::Over);
            }
            tokio::select! {
                Some(ended) = self.processes.join_next() => self.note_end(ended.or_internal()?)?,
                () = shutdown.requested() => return Ok(TrainingEnd::Stopped),
                () = tokio::time::sleep_until(deadline) => return Ok(TrainingEnd::OutOfTime),
            }
        }
    }

    /// Starts the next member, unless it is complete.
    async fn start(&mut self) -> Result<(), Failure> {
        let number = self.next;
        self.next += 1;
        let member = &self.members[number];
        wait_for_earlier(&member.folder).await?;
        if member.measured_points(self.setup).is_some() {
            return Ok(());
        }
        let folder = std::path::absolute(&member.folder).or_internal()?;
        let sets = FamilyMember { folder: folder.clone(), ..member.clone() }.job_sets(self.setup);
        let process = TrainProcess::start(&self.setup.file, &folder, &sets, &[]).or_internal()?;
        self.running.insert(number, process.pid());
        self.processes.spawn(async move {
            let (status, length) = process.wait_end().await;
            (number, status, length)
        });
        Ok(())
    }

    fn note_end(&mut self, (number, status, length): ProcessEnd) -> Result<(), Failure> {
        self.running.remove(&number);
        let status = status.or_internal()?;
        let member = &self.members[number];
        match EndKind::from_status(status) {
            EndKind::Well => {
                let last = member
                    .measured_points(self.setup)
                    .and_then(|points| points.last().map(|point| point.measured.loss));
                let loss =
                    last.map_or_else(|| "no log loss was measured".to_owned(), |loss| format!("log loss {loss:.5}"));
                note!("{}: {loss} ({:.1} s)", member.name(), length.as_secs_f64());
            }
            EndKind::Interrupted => {}
            EndKind::Failed => note!("{} failed: {}", member.name(), failure_reason(&member.folder, status)),
            EndKind::Hopeless => return Err(hopeless_failure(&member.name(), "family", &member.folder, status)),
        }
        Ok(())
    }

    /// Asks the running processes to save and end, and waits for them.
    async fn stop(&mut self) {
        self.running.values().flatten().copied().for_each(ask_to_end);
        while self.processes.join_next().await.is_some() {}
    }
}

/// Compute of a short run, FLOP: some seconds of a core.
const COMPUTE: f64 = 1e11;
/// Steps of a short run, whatever its compute. The first ones are slow: few would make a small network look slow.
const STEPS: (f64, f64) = (10.0, 400.0);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MeasuredSpeed {
    pub(super) cost: RunCost,
    pub(super) held_out: u64,
}

struct ShortRun {
    sample: f64,
    /// Seconds of the process besides training.
    rest: f64,
    held_out: u64,
}

/// Trains both for a few steps.
pub(super) async fn measure(setup: &FamilySetup) -> Result<MeasuredSpeed, Failure> {
    let (small, large) = (&setup.sizes[0], &setup.sizes[setup.sizes.len() - 1]);
    note!("measuring the speed of the sizes {} and {}", small.size, large.size);
    let (first, second) = (short_run(setup, small).await?, short_run(setup, large).await?);
    let line = |size: &FamilySize, run: &ShortRun| (size.parameters as f64, run.sample);
    let cost = RunCost::from_runs(0.0, line(small, &first), line(large, &second));
    // The rest of the process is its start and the scoring of the held-out part.
    let scoring = cost.run_seconds(small.parameters as f64, 0.0, first.held_out as f64);
    let start = (first.rest - scoring).max(0.0);
    Ok(MeasuredSpeed { cost: RunCost { start, ..cost }, held_out: first.held_out })
}

async fn short_run(setup: &FamilySetup, size: &FamilySize) -> Result<ShortRun, Failure> {
    let folder = std::path::absolute(setup.folder.join(format!("speed-{}", size.size))).or_internal()?;
    let steps =
        steps(size.parameters, setup.job.train.batch_size).min(setup.step_count(setup.shares[setup.shares.len() - 1]));
    let sets = process_sets(setup, size.size, &folder, steps);
    let started = Instant::now();
    let process = TrainProcess::start(&setup.file, &folder, &sets, &["--fresh".to_owned()]).or_internal()?;
    let (status, _) = process.wait_end().await;
    let wall = started.elapsed().as_secs_f64();
    let status = status.or_internal()?;
    let name = format!("a short run of size {}", size.size);
    match EndKind::from_status(status) {
        EndKind::Well => {}
        EndKind::Failed => {
            let what = format!("{name} failed: {}", failure_reason(&folder, status));
            return Err(Failure::usage(what, format!("its output is in {}", folder.display())));
        }
        EndKind::Interrupted | EndKind::Hopeless => return Err(hopeless_failure(&name, "family", &folder, status)),
    }
    let record = newest_run(&folder).and_then(|run| RunRecord::read(&run).ok());
    let summary = record.as_ref().and_then(|record| record.summary.as_ref());
    let Some(summary) = summary.filter(|summary| summary.samples > 0) else {
        return Err(Failure::with_help(
            Exit::Data,
            format!("{name} trained on no sample"),
            "look at the data of the job",
        ));
    };
    let scored = summary.validation.as_ref().or(summary.evaluation.as_ref());
    let Some(scored) = scored.filter(|scored| scored.logloss.is_some()) else {
        let what = format!("{name} has no log loss of a held-out part");
        return Err(Failure::usage(what, "a scaling law is one of the log loss: of labels of kind click or classes"));
    };
    Ok(ShortRun {
        sample: summary.seconds / summary.samples as f64,
        rest: (wall - summary.seconds).max(0.0),
        held_out: scored.samples,
    })
}

/// Steps of a short run of a size.
fn steps(parameters: u64, batch: usize) -> u64 {
    let step = 6.0 * parameters as f64 * batch as f64;
    (COMPUTE / step.max(1.0)).clamp(STEPS.0, STEPS.1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_network_makes_few_steps_and_a_small_one_many() {
        assert_eq!([steps(1_000, 128), steps(100_000, 1024), steps(100_000_000, 4096)], [400, 162, 10]);
    }
}
