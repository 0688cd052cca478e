//! `zagros sweep`: trains a job with many settings, side by side, and writes out the best job.
//!
//! ```text
//!  Sweep ── next_action() ──► zagros train JOB --set …   (a process for each trial, in a folder of its own)
//!    ▲                              │ ends
//!    └── journal.jsonl ◄── measures of the validation part, from the run folder
//! ```
//!
//! The journal has what was chosen and measured. The same command replays it, resumes trials that were interrupted, and trains no
//! trial twice.

mod journal;
mod report;
mod setup;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Pid;
use tokio::task::JoinSet;
use tokio::time::Instant;
use zagros_experiments::sweep::{NextAction, Sweep, SweepRecord, TrialTask};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, OrFailure, note, watch_signals};

use self::journal::SweepJournal;
use self::setup::SweepSetup;
use self::trial::{KilledTrials, NextStart, TrialEnd};
use crate::args::SweepArgs;
use crate::train_process::{
    self, EndKind, FOREVER, TrainingEnd, ask_to_end, hopeless_failure, is_killed, lock_folder, wait_for_earlier,
};

/// After an error, what was measured stays.
pub(crate) async fn run(args: SweepArgs) -> Result<Exit, Failure> {
    let setup = SweepSetup::load(&args)?;
    let Some(_lock) = lock_folder(&setup.folder)? else {
        let what = format!("another process sweeps in {}", setup.folder.display());
        return Err(Failure::usage(what, "wait for it, or start another sweep: --folder FOLDER"));
    };
    let (journal, sweep) = SweepJournal::open(&setup)?;
    report::print_start(&setup, &sweep);
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let (running, processes, killed) = (BTreeMap::new(), JoinSet::new(), KilledTrials::default());
    let mut search = SweepSearch { setup: &setup, journal, sweep, running, processes, killed };
    let end = search.run(&shutdown, Instant::now() + args.budget.unwrap_or(FOREVER)).await;
    // What is known so far is written, however the search ended.
    let written = report::write(&setup, &search.sweep);
    let end = end?;
    written?;
    report::report(&setup, &search.sweep).print();
    Ok(end.note_exit(&signals))
}

struct SweepSearch<'a> {
    setup: &'a SweepSetup,
    journal: SweepJournal,
    sweep: Sweep,
    running: BTreeMap<usize, Option<Pid>>,
    processes: JoinSet<TrialEnd>,
    killed: KilledTrials,
}

impl SweepSearch<'_> {
    /// Starts processes and takes their ends into account, until there is nothing left to do. On every way out, no process is left.
    async fn run(&mut self, shutdown: &Shutdown, deadline: Instant) -> Result<TrainingEnd, Failure> {
        let mut end = None;
        let mut failure = None;
        loop {
            if end.is_none() && failure.is_none() {
                match self.start_trials().await {
                    Ok(()) if self.processes.is_empty() => end = Some(TrainingEnd::Over),
                    Ok(()) => {}
                    Err(error) => failure = self.stop(error),
                }
            }
            if self.processes.is_empty() {
                return failure.map_or_else(|| Ok(end.unwrap_or(TrainingEnd::Over)), Err);
            }
            let goes_on = end.is_none() && failure.is_none();
            tokio::select! {
                Some(ended) = self.processes.join_next() => {
                    let noted = match ended {
                        Ok(ended) => self.note_end(&ended),
                        Err(error) => Err(error).or_internal(),
                    };
                    if let Err(error) = noted {
                        // The first is the cause.
                        let error = self.stop(error);
                        failure = failure.or(error);
                    }
                }
                () = shutdown.requested(), if goes_on => {
                    end = Some(TrainingEnd::Stopped);
                    self.ask_all();
                }
                () = tokio::time::sleep_until(deadline), if goes_on => {
                    end = Some(TrainingEnd::OutOfTime);
                    self.ask_all();
                }
            }
        }
    }

    /// Starts as many trials as may run side by side.
    async fn start_trials(&mut self) -> Result<(), Failure> {
        while self.running.len() < self.setup.jobs {
            match self.killed.next(self.running.keys().copied()) {
                NextStart::Any => {}
                NextStart::Wait => break,
                NextStart::Alone(task) => {
                    self.start(task).await?;
                    continue;
                }
            }
            let running: BTreeSet<usize> = self.running.keys().copied().collect();
            match self.sweep.next_action(&running) {
                NextAction::Note(record) => self.note(&record)?,
                NextAction::Train(task) => self.start(task).await?,
                NextAction::Wait | NextAction::Done => break,
            }
        }
        Ok(())
    }

    async fn start(&mut self, task: TrialTask) -> Result<(), Failure> {
        wait_for_earlier(&trial::folder(&self.setup.folder, task.trial)).await?;
        // A process may have ended well just before this command was killed.
        if let Some(record) = self.scored(task, Duration::ZERO) {
            return self.note(&record);
        }
        let values = &self.sweep.trials()[task.trial].values;
        let process = trial::start(self.setup, values, task).or_internal()?;
        self.running.insert(task.trial, process.pid());
        self.processes.spawn(async move {
            let (status, length) = process.wait_end().await;
            TrialEnd { task, status, length }
        });
        Ok(())
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

    fn note_end(&mut self, TrialEnd { task, status, length }: &TrialEnd) -> Result<(), Failure> {
        self.running.remove(&task.trial);
        let status = status.as_ref().map_err(|error| {
            let what = format!("trial {} cannot be waited for: {error}", task.trial);
            Failure::with_help(Exit::Internal, what, "the same command goes on")
        })?;
        match EndKind::from_status(*status) {
            EndKind::Well => match self.scored(*task, *length) {
                Some(record) => self.note(&record),
                None => {
                    let reason = "its run has no measures of the validation part".to_owned();
                    self.note(&SweepRecord::Failed { trial: task.trial, reason })
                }
            },
            // It has saved a checkpoint, from which the same command goes on.
            EndKind::Interrupted => Ok(()),
            EndKind::Failed if is_killed(*status) && self.killed.note(*task, self.running.len()) => {
                note!("trial {} was killed, perhaps for want of memory; it is trained once more, alone", task.trial);
                Ok(())
            }
            EndKind::Failed => {
                let reason = train_process::failure_reason(&trial::folder(&self.setup.folder, task.trial), *status);
                self.note(&SweepRecord::Failed { trial: task.trial, reason })
            }
            EndKind::Hopeless => {
                let folder = trial::folder(&self.setup.folder, task.trial);
                Err(hopeless_failure(&format!("trial {}", task.trial), "sweep", &folder, *status))
            }
        }
    }

    fn scored(&self, task: TrialTask, length: Duration) -> Option<SweepRecord> {
        let trial::RungMeasures { measures, steps } =
            trial::rung_measures(&self.setup.folder, self.setup.plan.rungs.as_ref(), task)?;
        let earlier_seconds = self.sweep.trials()[task.trial].scores.last().map_or(0.0, |score| score.seconds);
        let seconds = earlier_seconds + length.as_secs_f64();
        Some(SweepRecord::Scored { trial: task.trial, rung: task.rung, measures, steps, seconds })
    }

    /// Asks all trials to end after an error.
    fn stop(&self, error: Failure) -> Option<Failure> {
        self.ask_all();
        Some(error)
    }

    fn ask_all(&self) {
        self.running.values().flatten().copied().for_each(ask_to_end);
    }
}
