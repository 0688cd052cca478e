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

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use indicatif::HumanCount;
use jiff::civil::Date;
use zagros_dense_worker::{PartMeasures, RunSummary, Worker, WorkerError};
use zagros_ingest::profile::{self as ingest, DataProfile};
use zagros_job::{HeldOutRows, Job, KeyChange, Model, StartSteps};
use zagros_plumbing::durable;
use zagros_plumbing::lifecycle::{Shutdown, StopSignals};
use zagros_scoring::TrainingOutcome;
use zagros_shell::{CommandReport, Exit, Failure, OrFailure, note};
use zagros_store::Folder;

use self::health::{DayHealth, ReferenceDrift};
use self::history::{DayData, DayHistory, DayRecord};
use crate::resume::{ResumeChoice, RunStart};
use crate::saved::{SavedModel, check_trust};
use crate::terminal::Terminal;
use crate::{measures, report, steps};

/// Requests to a store may take as long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Done days whose data is looked at again: rows come late by days, not by months.
const LATE_DAYS: usize = 7;
/// Rows of a day that are looked at before it is scored and learned: of each file an equal number, from its start.
const PROFILED_ROWS: u64 = 1_000_000;

const PLACEHOLDER: &str = "{date}";
const MOST: usize = 3_660;

/// The days of `--dates`: `2026-11-01..2026-11-07`, `2026-11-01..11-07`, `2026-11-01..07` or one day. Both ends are meant. At least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DateRange(Vec<Date>);

impl FromStr for DateRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let first: Date = parse_day(first)?;
        // What the last day leaves out is as in the first.
        let whole = first.to_string();
        let last = match last.len() {
            2 | 5 => parse_day(&format!("{}{last}", &whole[..whole.len() - last.len()]))?,
            _ => parse_day(last)?,
        };
        if last < first {
            return Err(format!("{last} is before {first}"));
        }
        let days: Vec<Date> =
            first.series(jiff::Span::new().days(1)).take_while(|day| *day <= last).take(MOST + 1).collect();
        if days.len() > MOST {
            return Err(format!("{first} to {last} are more than {MOST} days"));
        }
        Ok(Self(days))
    }
}

fn parse_day(text: &str) -> Result<Date, String> {
    text.parse().map_err(|_| format!("{text:?} is no day; write 2026-11-01, or 2026-11-01..2026-11-07"))
}

pub(crate) struct DailyTraining<'a> {
    /// The job, with the placeholder in its paths.
    pub(crate) job: Job,
    pub(crate) dates: DateRange,
    /// Whether the job says from what steps count.
    pub(crate) has_start_steps: bool,
    /// Models that are kept, of the newest days; `None` keeps all.
    pub(crate) keep_models: Option<usize>,
    pub(crate) choice: ResumeChoice,
    pub(crate) shutdown: Shutdown,
    pub(crate) signals: &'a StopSignals,
}

struct Day {
    name: String,
    job: Job,
}

impl DailyTraining<'_> {
    /// Scores and trains each day that is not done, and prints a line for each. What is done stays done after an error.
    pub(crate) async fn run(self) -> Result<Exit, Failure> {
        self.check()?;
        let mut history = DayHistory::load(&self.job)?;
        let days: Vec<String> = self.dates.0.iter().map(ToString::to_string).collect();
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
            let trained = match self.train(&day, &history).await {
                // While it was scored.
                Err(failure) if matches!(failure.exit_status(), Exit::Signal(_)) => None,
                trained => trained?,
            };
            let Some(record) = trained else {
                note!("stopped; the same command goes on");
                return Ok(report::interrupt_exit(self.signals));
            };
            from.clone_from(&record.model);
            print(&day.name, &record);
            history.record_day(&day.name, record)?;
            write_page(&self.job.name, &history);
            self.delete_models(&mut history, &day.name)?;
        }
        self.report(&days, &history).print();
        Ok(Exit::Success)
    }

    fn check(&self) -> Result<(), Failure> {
        let is_dated = |path: &PathBuf| path.to_string_lossy().contains(PLACEHOLDER);
        let usage = |what: &str, help: &str| Err(Failure::usage(what, help));
        if self.dates.0.len() > 1 && !self.job.data.train.iter().any(is_dated) {
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
                let help = "the same command goes on; without --keep-models all models stay";
                Failure::with_help(Exit::Storage, what, help)
            })?;
            history.forget_model(&day)?;
        }
        Ok(())
    }

    fn report(&self, days: &[String], history: &DayHistory) -> CommandReport {
        let done: Vec<_> = history.days().filter(|(day, _)| days.contains(day)).collect();
        let mut report = CommandReport::default();
        report.add_title("Days").add_table(page::measure_table(&done));
        if let Some(model) = done.last().and_then(|(_, record)| record.model.as_ref()) {
            report.add_lead("Each day was scored by the model of the days before it.").add_facts(vec![
                ("the newest model", model.clone()),
                ("page", format!("{} (open it in a browser)", history.page_file().display())),
                ("score new rows", format!("zagros predict {model} DATA -o scores.csv")),
                ("go back to a day", "--from MODEL --dates, from the day after it on".to_owned()),
            ]);
        }
        report
    }

    /// Looks at a day, scores it by the model that it starts from, and trains it. `None` if it was interrupted.
    async fn train(&self, day: &Day, history: &DayHistory) -> Result<Option<DayRecord>, Failure> {
        let Day { name, job } = day;
        let mut health = self.look_at_features(day, history).await?;
        let from = job.train.start_from.clone();
        let scored = match &from {
            Some(model) => {
                note!("{name}: scoring it by {model}");
                Some(self.score(job, Path::new(model)).await?)
            }
            None => None,
        };
        let data = DayData::measure(job).await;
        let start = RunStart::find(job, self.choice)?;
        let run = start.folder.path().to_owned();
        let mut counted = job.clone();
        steps::count_epochs(&mut counted, start.point.as_ref())?;
        let worker = start.worker(counted, self.shutdown.clone()).await?;
        // The servers live as long as what reaches them.
        let (registry, _kept_alive) = (worker.registry.clone(), Arc::clone(&worker.connect));
        let terminal = Arc::new(Terminal::new(false));
        let trained = Worker { observer: terminal.clone(), ..worker }.run().await;
        terminal.finish();
        let summary = trained.map_err(|error| report::failure(error, self.signals))?;
        if summary.outcome != TrainingOutcome::Finished {
            return Ok(None);
        }
        let names = job.tables.iter().map(|table| table.name.clone());
        let tables = health::table_health(names, scored.as_ref().map(|scored| scored.tables.as_slice()), &registry);
        let warnings = health.add_tables(tables, history.health_before(name));
        warnings.iter().for_each(|warning| warn(name, warning));
        let RunSummary { samples, steps, rows, model, .. } = summary;
        let model = model.map(|model| place(&run, &model));
        let evaluation = scored.map(|scored| scored.evaluation);
        Ok(Some(DayRecord { from, before: evaluation, samples, steps, rows, health: Some(health), data, run, model }))
    }

    /// Looks at the features, beside those of the day before and of an earlier one, and says at once what is wrong with them.
    async fn look_at_features(&self, Day { name, job }: &Day, history: &DayHistory) -> Result<DayHealth, Failure> {
        let previous = history.health_before(name);
        let profile = self.profile(job, previous.map(|(_, health)| health)).await?;
        let reference = match history.reference_day(name) {
            Some((day, health)) => Some(ReferenceDrift::new(day, &self.profile(job, Some(health)).await?)),
            None => None,
        };
        let health = DayHealth::new(profile, reference, previous);
        health.warnings.iter().for_each(|warning| warn(name, warning));
        Ok(health)
    }

    async fn profile(&self, job: &Job, before: Option<&DayHealth>) -> Result<DataProfile, Failure> {
        let (job, earlier) = (job.clone(), before.map(|health| health.profile.clone()));
        let look = move || ingest::profile_files(&job, &job.data.train, PROFILED_ROWS, earlier.as_ref());
        let looked = tokio::task::spawn_blocking(look).await.or_internal()?;
        looked.map_err(|error| report::failure(WorkerError::from(error), self.signals))
    }

    async fn score(&self, job: &Job, model: &Path) -> Result<PartMeasures, Failure> {
        let saved = SavedModel::find(model, TIMEOUT)?;
        let of_model = saved.load_job(&[])?;
        // The job that trains vouches for its module.
        let trusted = match &job.model {
            Model::TorchScript { sha256, .. } => Some(sha256.as_str()),
            _ => None,
        };
        check_trust(&of_model, trusted)?;
        let measured = saved.evaluate(of_model, Some(job.data.train.clone()), None, self.shutdown.clone()).await;
        measured.map_err(|error| report::failure(error, self.signals))
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

/// A failure here does not fail the days.
fn write_page(name: &str, history: &DayHistory) {
    let path = history.page_file();
    if let Err(error) = durable::write(&path, page::page(name, history).as_bytes()) {
        note!("{} cannot be written: {error}", path.display());
    }
}

fn warn(day: &str, warning: &str) {
    note!("{day}: warning: {warning}");
}

/// Where a model is that a summary names: relative to the run folder, or in full.
fn place(run: &Path, model: &str) -> String {
    let is_whole = model.contains("://") || Path::new(model).is_absolute();
    if is_whole { model.to_owned() } else { run.join(model).display().to_string() }
}

/// Whether a model is there, and learned what this job learns.
fn was_trained_so(model: &str, job: &Job) -> bool {
    let of_model = SavedModel::find(Path::new(model), TIMEOUT).and_then(|saved| saved.load_job(&[]));
    of_model.is_ok_and(|of_model| !job.changes_since(&of_model).iter().any(KeyChange::is_learning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(text: &str) -> Result<Vec<String>, String> {
        text.parse::<DateRange>().map(|range| range.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn both_ends_are_meant_and_the_last_may_be_short() {
        let expected = Ok(["2026-02-27", "2026-02-28", "2026-03-01"].map(str::to_owned).to_vec());
        assert_eq!(days("2026-02-27..2026-03-01"), expected);
        assert_eq!(days("2026-02-27..03-01"), expected);
        assert_eq!(days("2026-11-01..03").map(|days| days.len()), Ok(3));
        assert_eq!(days("2026-11-01"), Ok(vec!["2026-11-01".to_owned()]));
        assert_eq!(days("2028-02-28..2028-03-01").map(|days| days.len()), Ok(3), "a leap year");
    }

    #[test]
    fn what_is_no_range_is_refused_with_what_was_written() {
        assert_eq!(days("2026-11-07..2026-11-01"), Err("2026-11-01 is before 2026-11-07".to_owned()));
        for wrong in ["", "yesterday", "2026-13-01", "2026-11-01..x", "2026-11-01..31", "2026-11-01.."] {
            assert!(days(wrong).is_err_and(|error| error.contains("is no day")), "{wrong}");
        }
        assert!(days("1900-01-01..2026-01-01").is_err_and(|error| error.contains("more than 3660 days")));
    }
}
