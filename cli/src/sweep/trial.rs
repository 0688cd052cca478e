//! Trials in processes of their own: their folders and measures, and those that were killed, as a rule because memory ran out, which
//! trials side by side use up together.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use zagros_dense_worker::{Evaluation, RunFolder};
use zagros_experiments::sweep::{RungUnit, Rungs, TrialMeasures, TrialTask, Values};

use super::setup::SweepSetup;
use crate::page::RunRecord;
use crate::train_process::{TrainProcess, newest_run};

const HELD_OUT: &str = "validation";

pub(super) struct TrialEnd {
    pub(super) task: TrialTask,
    pub(super) status: io::Result<ExitStatus>,
    pub(super) length: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RungMeasures {
    pub(super) measures: TrialMeasures,
    pub(super) steps: u64,
}

pub(super) fn folder(sweep: &Path, trial: usize) -> PathBuf {
    sweep.join(format!("trial-{trial:03}"))
}

/// Starts its process, which resumes what an earlier one has left.
pub(super) fn start(setup: &SweepSetup, values: &Values, task: TrialTask) -> io::Result<TrainProcess> {
    let folder = std::path::absolute(folder(&setup.folder, task.trial))?;
    let mut options = Vec::new();
    if let Some(rungs) = setup.plan.rungs.as_ref().filter(|rungs| task.rung + 1 < rungs.levels.len()) {
        let option = match rungs.unit {
            RungUnit::Steps => "--pause-after-steps",
            RungUnit::Epochs => "--pause-after-epochs",
        };
        options = vec![option.to_owned(), rungs.levels[task.rung].to_string()];
    }
    TrainProcess::start(&setup.file, &folder, &setup.sets_of_process(values, &folder), &options)
}

/// The measures of a trial at a rung, if its run has come there. A run that ended before, by early stopping, has those of its end.
pub(super) fn rung_measures(
    sweep: &Path,
    rungs: Option<&Rungs>,
    TrialTask { trial, rung }: TrialTask,
) -> Option<RungMeasures> {
    let run = newest_run(&folder(sweep, trial))?;
    let record = RunRecord::read(&run).ok()?;
    if run.is_complete() {
        let summary = record.summary.as_ref()?;
        return Some(RungMeasures { measures: measures(summary.validation.as_ref()?), steps: summary.steps });
    }
    let rungs = rungs.filter(|rungs| rung + 1 < rungs.levels.len())?;
    let level = rungs.levels[rung];
    let step = match rungs.unit {
        RungUnit::Steps => level,
        RungUnit::Epochs => record.epochs.iter().find(|epoch| u64::from(epoch.epoch) + 1 == level)?.step,
    };
    let scored = record.evaluations.iter().rev().find(|scored| scored.part == HELD_OUT && scored.step == step)?;
    Some(RungMeasures { measures: measures(&scored.evaluation), steps: step })
}

/// The measures of a finished trial on the test part.
pub(super) fn tested(sweep: &Path, trial: usize) -> Option<Evaluation> {
    let run = newest_run(&folder(sweep, trial)).filter(RunFolder::is_complete)?;
    RunRecord::read(&run).ok()?.summary?.evaluation
}

fn measures(evaluation: &Evaluation) -> TrialMeasures {
    TrialMeasures { auc: evaluation.auc, logloss: evaluation.logloss, gauc: evaluation.gauc }
}

/// The trials that were killed beside others. Each is trained once more, alone, before it counts as failed.
#[derive(Debug, Default)]
pub(super) struct KilledTrials {
    /// Those that have not started again.
    waiting: Vec<TrialTask>,
    /// All of them. They run alone from now on.
    known: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStart {
    /// A trial that was killed, alone.
    Alone(TrialTask),
    /// Nothing, until a trial ends.
    Wait,
    Any,
}

impl KilledTrials {
    /// Notes that a trial was killed while so many others ran. Returns whether it is trained again.
    pub(super) fn note(&mut self, task: TrialTask, others: usize) -> bool {
        let again = others > 0 && self.known.insert(task.trial);
        self.waiting.extend(again.then_some(task));
        again
    }

    /// What starts beside these trials.
    pub(super) fn next(&mut self, mut running: impl Iterator<Item = usize>) -> NextStart {
        match running.next() {
            None => self.waiting.pop().map_or(NextStart::Any, NextStart::Alone),
            Some(first) if self.known.contains(&first) || !self.waiting.is_empty() => NextStart::Wait,
            Some(_) => NextStart::Any,
        }
    }
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
        let auc_at = |rung| {
            rung_measures(sweep.path(), Some(&rungs), TrialTask { trial: 2, rung })
                .map(|measured| measured.measures.auc)
        };
        assert_eq!(auc_at(0), None);
        let trial = folder(sweep.path(), 2);
        write(&trial.join("ads-20260101-000000"), &[evaluation(10, HELD_OUT, 0.9)]);
        write(
            &trial.join("ads-20260102-000000"),
            &[evaluation(10, HELD_OUT, 0.6), evaluation(10, "test", 0.7), evaluation(20, HELD_OUT, 0.8)],
        );
        assert_eq!((auc_at(0), auc_at(1)), (Some(Some(0.6)), None));
        let epochs = Rungs { unit: RungUnit::Epochs, levels: vec![2, 6] };
        let task = TrialTask { trial: 2, rung: 0 };
        assert_eq!(rung_measures(sweep.path(), Some(&epochs), task), None);
        let epoch = r#"{"type":"epoch","step":20,"epoch":1,"samples":9,"auc":0.5,"logloss":0.5,"positive_rate":0.5,"normalised_entropy":null,"calibration":null}"#;
        write(&trial.join("ads-20260103-000000"), &[evaluation(20, HELD_OUT, 0.75), epoch.to_owned()]);
        let found = rung_measures(sweep.path(), Some(&epochs), task).map(|found| (found.steps, found.measures.auc));
        assert_eq!(found, Some((20, Some(0.75))));
    }

    #[test]
    fn a_trial_that_was_killed_beside_others_is_trained_once_more_alone() {
        let task = |trial| TrialTask { trial, rung: 0 };
        let mut killed = KilledTrials::default();
        assert_eq!(killed.next([3, 4].into_iter()), NextStart::Any);
        assert!(killed.note(task(3), 1));
        assert_eq!(killed.next([4].into_iter()), NextStart::Wait, "trial 4 ends first");
        assert_eq!(killed.next([].into_iter()), NextStart::Alone(task(3)));
        assert_eq!(killed.next([3].into_iter()), NextStart::Wait, "it is alone");
        assert!(!killed.note(task(3), 0), "its own values need too much memory");
        assert_eq!(killed.next([].into_iter()), NextStart::Any);
        assert!(!killed.note(task(5), 0), "no other trial used memory");
    }
}
