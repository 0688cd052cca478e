//! `zagros train JOB --dates FIRST..LAST`: day after day. Each day is scored before it is learned, by the model of the days before.
//!
//! ```text
//! day 1:                      train ─► model 1
//! day 2: score by model 1 ─► train, from model 1 ─► model 2
//! day 3: score by model 2 ─► train, from model 2 ─► model 3
//! ```
//!
//! The same command goes on where it was interrupted: with the first day that is not done, in the middle of it if it has a checkpoint.

mod health;
mod history;
mod page;
mod range;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indicatif::HumanCount;
use zagros_dense_worker::{Evaluation, PartMeasures, RunSummary, ScoringCommand, Worker, WorkerError};
use zagros_ingest::profile::{self as ingest, DataProfile};
use zagros_job::{HeldOutRows, Job, KeyChange, Model, StartSteps};
use zagros_plumbing::durable;
use zagros_plumbing::lifecycle::{Shutdown, StopSignals};
use zagros_scoring::{TableLookups, TrainingOutcome};
use zagros_shell::launch::EmbeddedCluster;
use zagros_shell::{Exit, Failure, OrFailure, note, out};
use zagros_store::Folder;

use self::health::{DayHealth, IdCounts, ReferenceDrift};
use self::history::{DayData, DayHistory, DayRecord};
use self::range::PLACEHOLDER;
use crate::backend::backend;
use crate::resume::{ResumeChoice, RunStart};
use crate::saved::{SavedModel, check_trust};
use crate::terminal::Terminal;
use crate::{measures, report, steps};

pub(crate) use range::DateRange;

/// Requests to a store may take as long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Done days whose data is looked at again: rows come late by days, not by months.
const LATE_DAYS: usize = 7;

pub(crate) struct DailyTraining {
    /// The job, with the placeholder in its paths.
    pub(crate) job: Job,
    pub(crate) dates: DateRange,
    /// Whether the job says from what steps count.
    pub(crate) has_start_steps: bool,
    /// Models that are kept, of the newest days; `None` keeps all.
    pub(crate) keep_models: Option<usize>,
    pub(crate) choice: ResumeChoice,
}

struct Day {
    name: String,
    job: Job,
}

impl DailyTraining {
    /// Scores and trains each day that is not done, and prints a line for each. What is done stays done after an error.
    pub(crate) async fn run(self, shutdown: Shutdown, signals: &StopSignals) -> Result<Exit, Failure> {
        self.check()?;
        let mut history = DayHistory::load(&self.job)?;
        let days: Vec<String> = self.dates.days().iter().map(ToString::to_string).collect();
        let done = match self.choice {
            ResumeChoice::Nothing => 0,
            _ => self.done(&days, &history),
        };
        if done > 0 {
            note!("{} to {} are done (--fresh trains them again)", days[0], days[done - 1]);
            self.warn_of_changed(&days[..done], &history).await;
            // Fewer models may be wanted than before.
            self.delete_models(&mut history, &days[done - 1])?;
        }
        let mut from = match done {
            0 => self.first_from(&days[0], &history),
            done => history.get(&days[done - 1]).and_then(|record| record.model.clone()),
        };
        for day in &days[done..] {
            let day = self.day(day, from.clone());
            let (profile, reference) = profile(&day, &history, signals).await?;
            let Some((mut record, counts)) = train_day(&day, self.choice, &shutdown, signals).await? else {
                return Ok(report::interrupt_exit(signals));
            };
            record.health = Some(health(&day, (profile, reference), &counts, &history));
            from.clone_from(&record.model);
            print(&day.name, &record);
            history.record_day(&day.name, record)?;
            write_page(&self.job.name, &history);
            self.delete_models(&mut history, &day.name)?;
        }
        self.print_all(&history);
        Ok(Exit::Success)
    }

    fn check(&self) -> Result<(), Failure> {
        let is_dated = |path: &PathBuf| path.to_string_lossy().contains(PLACEHOLDER);
        let usage = |what: &str, help: &str| Err(Failure::usage(what, help));
        if self.dates.days().len() > 1 && !self.job.data.train.iter().any(is_dated) {
            return usage(
                "`data.train` is the same for every day of --dates",
                "put {date} into it: --set data.train='logs/{date}.csv'",
            );
        }
        let (test, validation) = (&self.job.data.test, &self.job.data.validation);
        if test.newest_rows().or(validation.newest_rows()).is_some() {
            return usage(
                "`data.test_from` and `data.validation_from` are one time for all days of --dates",
                "leave them and `data.time_column` out: each day is scored before it is learned. `data.validation_share` = 0.1 holds out rows of each day",
            );
        }
        if !self.job.output.save_model {
            return usage("`output.save_model` is false", "the next day starts from the model of the day before");
        }
        if self.job.train.max_steps.is_some() {
            return usage("`train.max_steps` would count the steps of all days", "leave it out");
        }
        Ok(())
    }

    fn done(&self, days: &[String], history: &DayHistory) -> usize {
        history::done_count(days, history, |day, record, model| {
            let given = self.job.train.start_from.clone().filter(|_| *day == days[0]);
            was_trained_so(model, &self.day(day, given.or_else(|| record.from.clone())).job)
        })
    }

    /// The model that the first day starts from: the job's, otherwise that of the last day before it.
    fn first_from(&self, first: &str, history: &DayHistory) -> Option<String> {
        self.job.train.start_from.clone().or_else(|| {
            let (day, model) = history.model_before(first)?;
            note!("{first}: starts from the model of {day} (--from chooses another)");
            Some(model.clone())
        })
    }

    /// Says which of the last done days have other data than was learned, as days whose rows came late have.
    async fn warn_of_changed(&self, done: &[String], history: &DayHistory) {
        for day in &done[done.len().saturating_sub(LATE_DAYS)..] {
            let Some(learned) = history.get(day).and_then(|record| record.data) else { continue };
            if let Some(found) = DayData::measure(&self.day(day, None).job).await
                && found != learned
            {
                let help = format!("to learn the day again, --fresh --dates {day}..{}", done[done.len() - 1]);
                warn(day, &format!("it has {found} now, and {learned} were learned; {help}"));
            }
        }
    }

    fn day(&self, name: &str, from: Option<String>) -> Day {
        let mut job = self.job.clone();
        let dated = |path: &mut PathBuf| *path = path.to_string_lossy().replace(PLACEHOLDER, name).into();
        job.data.train.iter_mut().for_each(dated);
        for part in [&mut job.data.test, &mut job.data.validation] {
            if let HeldOutRows::Files(files) = part {
                files.iter_mut().for_each(dated);
            }
        }
        job.name = format!("{}-{name}", job.name);
        if from.is_some() && !self.has_start_steps {
            job.train.start_steps = StartSteps::Continue;
        }
        job.train.start_from = from;
        Day { name: name.to_owned(), job }
    }

    fn delete_models(&self, history: &mut DayHistory, day: &str) -> Result<(), Failure> {
        let Some(keep) = self.keep_models else { return Ok(()) };
        for (day, model) in history.models_beyond(day, keep) {
            let delete = || Folder::open(&model, TIMEOUT)?.delete();
            delete().map_err(|error| {
                let what = format!("the model of {day} cannot be deleted: {error}");
                Failure::with_help(
                    Exit::Storage,
                    what,
                    "the same command goes on; without --keep-models all models stay",
                )
            })?;
            history.forget_model(&day)?;
        }
        Ok(())
    }

    fn print_all(&self, history: &DayHistory) {
        out!(
            "\n{:<12} {:>12} {:>8} {:>8} {:>12} {:>12}",
            "day",
            "scored",
            "AUC",
            "logloss",
            "calibration",
            "trained on"
        );
        for day in self.dates.days() {
            let Some(record) = history.get(&day.to_string()) else { continue };
            let measure = |of: fn(&Evaluation) -> Option<f64>, digits: usize| {
                let value = record.before.as_ref().and_then(of);
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let scored = record.before.map_or_else(|| "-".to_owned(), |before| HumanCount(before.samples).to_string());
            out!(
                "{:<12} {scored:>12} {:>8} {:>8} {:>12} {:>12}",
                day.to_string(),
                measure(|of| of.auc, 4),
                measure(|of| of.logloss, 4),
                measure(|of| of.calibration, 3),
                HumanCount(record.samples).to_string()
            );
        }
        let last = self.dates.days().last().and_then(|day| history.get(&day.to_string()));
        if let Some(model) = last.and_then(|last| last.model.as_ref()) {
            out!("\nEach day was scored by the model of the days before it.\n");
            out!("  the newest model      {model}");
            out!("  page                  {} (open it in a browser)", history.page_file().display());
            out!("  score new rows        zagros predict {model} DATA -o scores.csv");
            out!("  go back to a day      --from MODEL --dates, from the day after it on");
        }
    }
}

fn print(name: &str, record: &DayRecord) {
    let scored = record.before.map_or_else(String::new, |before| {
        let [auc, logloss] = [before.auc, before.logloss].map(measures::format_measure);
        format!("scored before: AUC {auc}, logloss {logloss}; ")
    });
    let (samples, rows) = (HumanCount(record.samples), HumanCount(record.rows));
    note!("{name}: {scored}trained on {samples} samples, {rows} rows");
}

/// Rows of a day that are looked at before it is scored and learned: of each file an equal number, from its start.
const PROFILED_ROWS: u64 = 1_000_000;

/// Looks at a day's features, beside those of the day before and of an earlier one, and says at once what is wrong with them.
async fn profile(
    day: &Day,
    history: &DayHistory,
    signals: &StopSignals,
) -> Result<(DataProfile, Option<ReferenceDrift>), Failure> {
    let of_day = |(day, health): (&String, &DayHealth)| (day.clone(), health.profile.clone());
    let previous = history.health_before(&day.name).map(of_day);
    let profile = look(day, previous.as_ref().map(|(_, profile)| profile.clone()), signals).await?;
    if let Some((earlier, previous)) = &previous {
        health::warnings(&profile, earlier, previous).iter().for_each(|warning| warn(&day.name, warning));
    }
    let Some((earlier, reference)) = history.reference_day(&day.name).map(of_day) else { return Ok((profile, None)) };
    let reference = ReferenceDrift::new(&earlier, &look(day, Some(reference), signals).await?);
    reference.warnings(&profile).iter().for_each(|warning| warn(&day.name, warning));
    Ok((profile, Some(reference)))
}

async fn look(day: &Day, before: Option<DataProfile>, signals: &StopSignals) -> Result<DataProfile, Failure> {
    let (job, files) = (day.job.clone(), day.job.data.train.clone());
    let look = move || ingest::profile_files(&job, &files, PROFILED_ROWS, before.as_ref());
    let looked = tokio::task::spawn_blocking(look).await.or_internal()?;
    looked.map_err(|error| report::failure(WorkerError::from(error), signals))
}

fn health(
    day: &Day,
    (profile, reference): (DataProfile, Option<ReferenceDrift>),
    counts: &DayCounts,
    history: &DayHistory,
) -> DayHealth {
    let names = day.job.tables.iter().map(|table| table.name.clone());
    let tables = health::table_health(names, counts.scored.as_deref(), &counts.trained);
    let mut warnings = Vec::new();
    if let Some((earlier, before)) = history.health_before(&day.name) {
        warnings.extend(health::warnings(&profile, earlier, &before.profile));
        warnings.extend(reference.iter().flat_map(|reference| reference.warnings(&profile)));
        let of_tables = health::table_warnings(&tables, earlier, &before.tables);
        of_tables.iter().for_each(|warning| warn(&day.name, warning));
        warnings.extend(of_tables);
    }
    DayHealth { profile, tables, reference, warnings }
}

fn warn(day: &str, warning: &str) {
    note!("{day}: warning: {warning}");
}

/// A failure here does not fail the days.
fn write_page(name: &str, history: &DayHistory) {
    let path = history.page_file();
    if let Err(error) = durable::write(&path, page::page(name, history).as_bytes()) {
        note!("{} cannot be written: {error}", path.display());
    }
}

struct DayCounts {
    /// While the day was scored; `None` on a first day.
    scored: Option<Vec<TableLookups>>,
    /// While it was trained, by the process that finished it.
    trained: IdCounts,
}

/// Scores a day by the model that it starts from, and trains it. `None` if it was interrupted.
async fn train_day(
    day: &Day,
    choice: ResumeChoice,
    shutdown: &Shutdown,
    signals: &StopSignals,
) -> Result<Option<(DayRecord, DayCounts)>, Failure> {
    let (before, scored) = match &day.job.train.start_from {
        Some(model) => {
            note!("{}: scoring it by {model}", day.name);
            let PartMeasures { evaluation, tables, .. } = score(Path::new(model), &day.job, shutdown, signals).await?;
            (Some(evaluation), Some(tables))
        }
        None => (None, None),
    };
    let data = DayData::measure(&day.job).await;
    let start = RunStart::find(&day.job, choice)?;
    let run = start.folder.path().to_owned();
    let mut job = day.job.clone();
    steps::count_epochs(&mut job, start.point.as_ref())?;
    let (summary, trained) = train(&job, start, shutdown, signals).await?;
    if summary.outcome != TrainingOutcome::Finished {
        return Ok(None);
    }
    let model = summary.model.map(|model| place(&run, &model));
    let from = day.job.train.start_from.clone();
    let RunSummary { samples, steps, rows, .. } = summary;
    let record = DayRecord { from, before, samples, steps, rows, health: None, data, run, model };
    Ok(Some((record, DayCounts { scored, trained })))
}

/// Where a model is that a summary names: relative to the run folder, or in full.
fn place(run: &Path, model: &str) -> String {
    let is_whole = model.contains("://") || Path::new(model).is_absolute();
    if is_whole { model.to_owned() } else { run.join(model).display().to_string() }
}

async fn score(model: &Path, job: &Job, shutdown: &Shutdown, signals: &StopSignals) -> Result<PartMeasures, Failure> {
    let saved = SavedModel::find(model, TIMEOUT)?;
    let of_model = saved.load_job(&[])?;
    // The job that trains vouches for its module.
    let trusted = match &job.model {
        Model::TorchScript { sha256, .. } => Some(sha256.as_str()),
        _ => None,
    };
    check_trust(&of_model, trusted)?;
    let terminal = Arc::new(Terminal::new(false));
    let scoring = ScoringCommand {
        job: of_model,
        model: saved.folder,
        files: Some(job.data.train.clone()),
        backend: backend(),
        observer: terminal.clone(),
        shutdown: shutdown.clone(),
    };
    let measured = scoring.evaluate(None).await;
    terminal.finish();
    measured.map_err(|error| report::failure(error, signals))
}

async fn train(
    job: &Job,
    start: RunStart,
    shutdown: &Shutdown,
    signals: &StopSignals,
) -> Result<(RunSummary, IdCounts), Failure> {
    let EmbeddedCluster { control, connect, registry } = EmbeddedCluster::start(job).await?;
    let (folder, resume) = (Some(start.folder.clone()), start.point.clone());
    let terminal = Arc::new(Terminal::new(false));
    let _kept_alive = Arc::clone(&connect);
    let worker = Worker::without_peers(job.clone(), backend(), control, connect, registry.clone());
    let worker = Worker { folder, resume, shutdown: shutdown.clone(), observer: terminal.clone(), ..worker };
    let trained = worker.run().await;
    terminal.finish();
    let summary = trained.map_err(|error| report::failure(error, signals))?;
    Ok((summary, IdCounts::from_registry(&registry)))
}

/// Whether a model is there, and learned what this job learns.
fn was_trained_so(model: &str, job: &Job) -> bool {
    let of_model = SavedModel::find(Path::new(model), TIMEOUT).and_then(|saved| saved.load_job(&[]));
    of_model.is_ok_and(|of_model| !job.changes_since(&of_model).iter().any(KeyChange::is_learning))
}
