//! A run of the family: its folder, its changes to the job, and what it has measured.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zagros_scaling::{Measurement, MemberRun};

use super::setup::{FamilySetup, FamilySize, size_set};
use crate::page::RunRecord;
use crate::train_process::{folder_set, newest_run, thread_sets};

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
pub(super) fn process_sets(setup: &FamilySetup, size: zagros_job::ModelSize, folder: &Path, steps: u64) -> Vec<String> {
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
