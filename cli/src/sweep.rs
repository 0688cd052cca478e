//! `zagros sweep`: trains a job with many settings, side by side, and writes out the best job.
//!
//! Each trial is a member of the experiment. The journal has what was chosen and measured, and its replay is the sweep.

mod report;
mod setup;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;
use zagros_dense_worker::{Evaluation, RunFolder};
use zagros_experiments::sweep::{NextAction, RungUnit, Rungs, Sweep, SweepRecord, TrialMeasures};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, watch_signals};

use self::setup::SweepSetup;
use crate::args::SweepArgs;
use crate::experiment::{ExperimentJournal, ExperimentMember, ExperimentPlan, FOREVER, newest_run, train_members};
use crate::page::RunRecord;

const HELD_OUT: &str = "validation";

/// After an error, what was measured stays.
pub(crate) async fn run(args: SweepArgs) -> Result<Exit, Failure> {
    let setup = SweepSetup::load(&args)?;
    let _lock = setup.base.lock_folder()?;
    let mut search = SweepSearch::open(&setup)?;
    report::print_start(&setup, &search.sweep);
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let deadline = Instant::now() + args.budget.unwrap_or(FOREVER);
    let end = train_members(&setup.base, &mut search, setup.base.jobs, &shutdown, deadline).await;
    // What is known so far is written, however the search ended.
    let written = report::write(&setup, &search.sweep);
    let end = end?;
    written?;
    report::report(&setup, &search.sweep).print();
    Ok(end.note_exit(&signals))
}

struct SweepSearch<'a> {
    setup: &'a SweepSetup,
    journal: ExperimentJournal,
    sweep: Sweep,
}

impl<'a> SweepSearch<'a> {
    fn open(setup: &'a SweepSetup) -> Result<Self, Failure> {
        let (journal, records) = ExperimentJournal::open::<SweepRecord>(&setup.base, &setup.identity())?;
        let mut sweep = Sweep::new(setup.plan.clone());
        for (number, record) in records.iter().enumerate() {
            sweep.apply_record(record).map_err(|why| journal.damaged(number, why))?;
        }
        Ok(Self { setup, journal, sweep })
    }

    fn note(&mut self, record: &SweepRecord) -> Result<(), Failure> {
        self.journal.append(record)?;
        let noted = self.sweep.apply_record(record);
        noted.map_err(|why| {
            Failure::with_help(Exit::Internal, why, "this is a bug; the journal of the sweep shows it")
        })?;
        report::print_record(self.setup, &self.sweep, record);
        Ok(())
    }
}

impl ExperimentPlan for SweepSearch<'_> {
    fn next_member(&mut self, running: &BTreeSet<usize>) -> Result<Option<ExperimentMember>, Failure> {
        loop {
            match self.sweep.next_action(running) {
                NextAction::Note(record) => self.note(&record)?,
                NextAction::Train(task) => {
                    return Ok(Some(self.setup.member(task, &self.sweep.trials()[task.trial].values)));
                }
                NextAction::Wait | NextAction::Done => return Ok(None),
            }
        }
    }

    fn note_measured(&mut self, trial: usize, took: Option<Duration>) -> Result<bool, Failure> {
        let scores = &self.sweep.trials()[trial].scores;
        let (rung, folder) = (scores.len(), trial_folder(&self.setup.base.folder, trial));
        let measured = rung_measures(&folder, self.setup.plan.rungs.as_ref(), rung);
        let Some((measures, steps)) = measured else { return Ok(false) };
        let earlier_seconds = scores.last().map_or(0.0, |score| score.seconds);
        let seconds = earlier_seconds + took.unwrap_or_default().as_secs_f64();
        self.note(&SweepRecord::Scored { trial, rung, measures, steps, seconds })?;
        Ok(true)
    }

    fn note_failed(&mut self, trial: usize, reason: String) -> Result<(), Failure> {
        self.note(&SweepRecord::Failed { trial, reason })
    }
}

fn trial_folder(sweep: &Path, trial: usize) -> PathBuf {
    sweep.join(format!("trial-{trial:03}"))
}

/// The measures of a trial at a rung, and its steps up to there, if its run has come there. A run that ended before, by early stopping, has those of its end.
fn rung_measures(trial: &Path, rungs: Option<&Rungs>, rung: usize) -> Option<(TrialMeasures, u64)> {
    let run = newest_run(trial)?;
    let record = RunRecord::read(&run).ok()?;
    if run.is_complete() {
        let summary = record.summary.as_ref()?;
        return Some((trial_measures(summary.validation.as_ref()?), summary.steps));
    }
    let rungs = rungs.filter(|rungs| rung + 1 < rungs.levels.len())?;
    let level = rungs.levels[rung];
    let step = match rungs.unit {
        RungUnit::Steps => level,
        RungUnit::Epochs => record.epochs.iter().find(|epoch| u64::from(epoch.epoch) + 1 == level)?.step,
    };
    let scored = record.of_part(HELD_OUT).filter(|scored| scored.step == step).last()?;
    Some((trial_measures(&scored.evaluation), step))
}

fn trial_measures(evaluation: &Evaluation) -> TrialMeasures {
    TrialMeasures { auc: evaluation.auc, logloss: evaluation.logloss, gauc: evaluation.gauc }
}

/// The measures of a finished trial on the test part.
fn test_measures(trial: &Path) -> Option<Evaluation> {
    let run = newest_run(trial).filter(RunFolder::is_complete)?;
    RunRecord::read(&run).ok()?.summary?.evaluation
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
        let folder = tempfile::tempdir().unwrap();
        let trial = folder.path();
        let rungs = Rungs { unit: RungUnit::Steps, levels: vec![10, 30] };
        let auc_at = |rung| rung_measures(trial, Some(&rungs), rung).map(|(measures, _)| measures.auc);
        assert_eq!(auc_at(0), None);
        write(&trial.join("ads-20260101-000000"), &[evaluation(10, HELD_OUT, 0.9)]);
        write(
            &trial.join("ads-20260102-000000"),
            &[evaluation(10, HELD_OUT, 0.6), evaluation(10, "test", 0.7), evaluation(20, HELD_OUT, 0.8)],
        );
        assert_eq!((auc_at(0), auc_at(1)), (Some(Some(0.6)), None));
        let epochs = Rungs { unit: RungUnit::Epochs, levels: vec![2, 6] };
        assert_eq!(rung_measures(trial, Some(&epochs), 0), None);
        let epoch = r#"{"type":"epoch","step":20,"epoch":1,"samples":9,"auc":0.5,"logloss":0.5,"positive_rate":0.5,"normalised_entropy":null,"calibration":null}"#;
        write(&trial.join("ads-20260103-000000"), &[evaluation(20, HELD_OUT, 0.75), epoch.to_owned()]);
        let found = rung_measures(trial, Some(&epochs), 0).map(|(measures, steps)| (steps, measures.auc));
        assert_eq!(found, Some((20, Some(0.75))));
    }
}
