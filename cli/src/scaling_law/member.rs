//! A run of the family: its folder, its changes to the job, what it has measured, and what it costs on this machine.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use zagros_experiments::scaling::{Measurement, MemberRun, RunCost};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, note};

use super::setup::{FamilySetup, FamilySize, size_set};
use crate::experiment::{ExperimentMember, ExperimentPlan, FOREVER, TrainingEnd, newest_run, train_members};
use crate::page::RunRecord;

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
            Some(share) if setup.request.run_for_each_share => format!("-{share}"),
            _ => String::new(),
        };
        let folder = setup.base.folder.join(format!("size-{}-seed-{seed}{length}", size.size));
        Self { size: size.clone(), seed, shares: shares.to_vec(), folder }
    }

    fn name(&self) -> String {
        format!("size {}, seed {}", self.size.size, self.seed)
    }

    pub(super) fn step_count(&self, setup: &FamilySetup) -> u64 {
        self.shares.last().map_or(1, |share| setup.step_count(*share))
    }

    fn job_sets(&self, setup: &FamilySetup) -> Vec<String> {
        let steps = self.step_count(setup);
        let every = self.shares.first().map_or(steps, |share| setup.step_count(*share));
        let mut sets = run_sets(setup, self.size.size, steps);
        sets.push(format!("train.seed={}", self.seed));
        sets.push(format!("train.evaluate_every={every}"));
        if setup.request.run_for_each_share {
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
fn run_sets(setup: &FamilySetup, size: zagros_job::ModelSize, steps: u64) -> Vec<String> {
    let mut sets = setup.base.sets.clone();
    sets.extend([size_set(size), format!("train.max_steps={steps}")]);
    sets.extend(["train.epochs=1", "output.save_model=false"].map(str::to_owned));
    if setup.base.job.train.early_stop.is_some() {
        sets.push(format!("train.early_stop.patience={PATIENCE}"));
        sets.push("output.keep_best=0".to_owned());
    }
    sets
}

struct FamilyTraining<'a> {
    setup: &'a FamilySetup,
    members: &'a [FamilyMember],
    /// Measured, or failed.
    ended: BTreeSet<usize>,
}

/// Trains the members that are not complete. A run that fails by its own size is a note.
pub(super) async fn train(
    setup: &FamilySetup,
    members: &[FamilyMember],
    shutdown: &Shutdown,
    deadline: Instant,
) -> Result<TrainingEnd, Failure> {
    let mut training = FamilyTraining { setup, members, ended: BTreeSet::new() };
    train_members(&setup.base, &mut training, setup.base.jobs, shutdown, deadline).await
}

impl ExperimentPlan for FamilyTraining<'_> {
    fn next_member(&mut self, running: &BTreeSet<usize>) -> Result<Option<ExperimentMember>, Failure> {
        let is_left = |number: &usize| !self.ended.contains(number) && !running.contains(number);
        let next = (0..self.members.len()).find(is_left);
        Ok(next.map(|number| {
            let member = &self.members[number];
            let (name, folder, sets) = (member.name(), member.folder.clone(), member.job_sets(self.setup));
            ExperimentMember { number, name, folder, sets, options: Vec::new() }
        }))
    }

    fn note_measured(&mut self, number: usize, took: Option<Duration>) -> Result<bool, Failure> {
        let member = &self.members[number];
        let Some(points) = member.measured_points(self.setup) else { return Ok(false) };
        self.ended.insert(number);
        if let (Some(took), Some(last)) = (took, points.last()) {
            note!("{}: log loss {:.5} ({:.1} s)", member.name(), last.measured.loss, took.as_secs_f64());
        }
        Ok(true)
    }

    fn note_failed(&mut self, number: usize, reason: String) -> Result<(), Failure> {
        self.ended.insert(number);
        note!("{} failed: {reason}", self.members[number].name());
        Ok(())
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

struct SpeedRuns<'a> {
    setup: &'a FamilySetup,
    sizes: [&'a FamilySize; 2],
    runs: Vec<ShortRun>,
}

/// Trains the smallest and the largest size for a few steps. `None` if a signal asked for the end.
pub(super) async fn measure_speed(setup: &FamilySetup, shutdown: &Shutdown) -> Result<Option<MeasuredSpeed>, Failure> {
    let (small, large) = (&setup.sizes[0], &setup.sizes[setup.sizes.len() - 1]);
    note!("measuring the speed of the sizes {} and {}", small.size, large.size);
    let mut speed = SpeedRuns { setup, sizes: [small, large], runs: Vec::new() };
    train_members(&setup.base, &mut speed, 1, shutdown, Instant::now() + FOREVER).await?;
    let [first, second] = &speed.runs[..] else { return Ok(None) };
    let line = |size: &FamilySize, run: &ShortRun| (size.parameters as f64, run.sample);
    let cost = RunCost::from_runs(0.0, line(small, first), line(large, second));
    // The rest of the process is its start and the scoring of the held-out part.
    let scoring = cost.run_seconds(small.parameters as f64, 0.0, first.held_out as f64);
    let start = (first.rest - scoring).max(0.0);
    Ok(Some(MeasuredSpeed { cost: RunCost { start, ..cost }, held_out: first.held_out }))
}

impl SpeedRuns<'_> {
    fn folder(&self, number: usize) -> PathBuf {
        self.setup.base.folder.join(format!("speed-{}", self.sizes[number].size))
    }
}

impl ExperimentPlan for SpeedRuns<'_> {
    fn next_member(&mut self, _running: &BTreeSet<usize>) -> Result<Option<ExperimentMember>, Failure> {
        let (setup, number) = (self.setup, self.runs.len());
        let Some(size) = self.sizes.get(number) else { return Ok(None) };
        let most = setup.step_count(setup.request.shares[setup.request.shares.len() - 1]);
        let steps = steps(size.parameters, setup.base.job.train.batch_size).min(most);
        let sets = run_sets(setup, size.size, steps);
        let (name, folder) = (format!("a short run of size {}", size.size), self.folder(number));
        Ok(Some(ExperimentMember { number, name, folder, sets, options: vec!["--fresh".to_owned()] }))
    }

    fn note_measured(&mut self, number: usize, took: Option<Duration>) -> Result<bool, Failure> {
        // What an earlier process has left says nothing of the time of its start.
        let Some(took) = took else { return Ok(false) };
        let record = newest_run(&self.folder(number)).and_then(|run| RunRecord::read(&run).ok());
        let summary = record.as_ref().and_then(|record| record.summary.as_ref());
        let Some(summary) = summary.filter(|summary| summary.samples > 0) else {
            let what = format!("a short run of size {} trained on no sample", self.sizes[number].size);
            return Err(Failure::with_help(Exit::Data, what, "look at the data of the job"));
        };
        let scored = summary.validation.as_ref().or(summary.evaluation.as_ref());
        let Some(scored) = scored.filter(|scored| scored.logloss.is_some()) else {
            let what = format!("a short run of size {} has no log loss of a held-out part", self.sizes[number].size);
            let help = "a scaling law is one of the log loss: of labels of kind click or classes";
            return Err(Failure::usage(what, help));
        };
        self.runs.push(ShortRun {
            sample: summary.seconds / summary.samples as f64,
            rest: (took.as_secs_f64() - summary.seconds).max(0.0),
            held_out: scored.samples,
        });
        Ok(true)
    }

    fn note_failed(&mut self, number: usize, reason: String) -> Result<(), Failure> {
        let what = format!("a short run of size {} failed: {reason}", self.sizes[number].size);
        Err(Failure::usage(what, format!("its output is in {}", self.folder(number).display())))
    }
}

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
