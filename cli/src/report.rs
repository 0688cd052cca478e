//! The end of a training run: a short report, and what to do next.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{HumanBytes, HumanCount};
use owo_colors::OwoColorize;
use serde::{Deserialize, Serialize};
use zagros_dense_worker::{Evaluation, ExitClass, Observer, ObserverList, RunFolder, RunSummary, Worker, WorkerError};
use zagros_ingest::IngestError;
use zagros_job::{HeldOutRows, Job, Model};
use zagros_plumbing::lifecycle::StopSignals;
use zagros_scoring::TrainingOutcome;
use zagros_shell::{Exit, Failure, err, out};

use crate::terminal::{Terminal, WaitLines};
use crate::{measures, page};

/// The known measures of a generated data set: `planted.json` beside its files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlantedMeasures {
    pub(crate) rows: u64,
    pub(crate) test_rows: u64,
    pub(crate) seed: u64,
    /// Share of positives in the test part.
    pub(crate) positive_rate: f64,
    /// AUC of the planted probabilities on the test part. No model does better, except by luck.
    pub(crate) best_auc: f64,
    /// Logloss of the planted probabilities on the test part, nats.
    pub(crate) best_logloss: f64,
    /// Mean entropy of the planted probabilities of the test part, nats: the irreducible log loss, without the chance of its labels.
    #[serde(default)]
    pub(crate) irreducible_logloss: Option<f64>,
}

impl PlantedMeasures {
    pub(crate) const FILE: &str = "planted.json";

    /// Those of the job's test part, if it was generated.
    fn read(job: &Job) -> Option<Self> {
        let HeldOutRows::Files(files) = &job.data.test else { return None };
        let [file] = files.as_slice() else { return None };
        serde_json::from_slice(&std::fs::read(file.with_file_name(Self::FILE)).ok()?).ok()
    }
}

/// Runs the worker to its end. Shows the live line, and then the report. A worker that was too late for the run has finished.
pub(crate) async fn run_worker(
    mut worker: Worker,
    terminal: Terminal,
    signals: &StopSignals,
) -> Result<TrainingOutcome, Failure> {
    let leads = worker.index == 0;
    let terminal = Arc::new(terminal);
    let shown: Arc<dyn Observer> = if leads { terminal.clone() } else { Arc::new(WaitLines(terminal.clone())) };
    worker.observer = Arc::new(ObserverList(vec![worker.observer, shown]));
    let job = worker.job.clone();
    let run_folder = worker.folder.clone();
    let folder = run_folder.as_ref().map(|folder| folder.path().to_owned());
    let ended = worker.run().await;
    terminal.finish();
    // A failed run gets a page too: its curves show what happened before the failure.
    let page = run_folder.as_ref().and_then(write_page);
    let summary = match ended {
        Err(error) if error.exit_class() == ExitClass::NothingLeft => {
            err!("{error}");
            return Ok(TrainingOutcome::Finished);
        }
        ended => ended.map_err(|error| failure(error, signals))?,
    };
    if leads {
        RunReport { job: &job, summary: &summary, folder, page, planted: PlantedMeasures::read(&job) }.print();
    }
    Ok(summary.outcome)
}

pub(crate) fn exit_status(outcome: TrainingOutcome, signals: &StopSignals) -> Exit {
    if outcome == TrainingOutcome::Interrupted { interrupt_exit(signals) } else { Exit::Success }
}

/// Writes the page. A failure here does not fail the run.
fn write_page(folder: &RunFolder) -> Option<PathBuf> {
    // A run that failed before its first step has nothing to show.
    if !folder.metrics_file().is_file() {
        return None;
    }
    page::write(folder).map_err(|failure| failure.log_warning("no page of the run was written")).ok()
}

pub(crate) fn interrupt_exit(signals: &StopSignals) -> Exit {
    // Without a signal, the parent has gone away. That counts as SIGTERM.
    Exit::Signal(signals.exit_code().map_or(143, |code| code as u8))
}

pub(crate) fn failure(error: WorkerError, signals: &StopSignals) -> Failure {
    let exit = match error.exit_class() {
        ExitClass::Data => Exit::Data,
        ExitClass::Cluster => Exit::Cluster,
        ExitClass::Diverged => Exit::Diverged,
        ExitClass::Fenced => Exit::Fenced,
        ExitClass::Interrupted => interrupt_exit(signals),
        ExitClass::Usage => Exit::Usage,
        ExitClass::Storage => Exit::Storage,
        ExitClass::Internal => Exit::Internal,
        ExitClass::NothingLeft => Exit::Success,
    };
    Failure::from_error(exit, error)
}

/// As [`failure`], of rows that a saved model scores, with columns `keys` that no model needs.
pub(crate) fn scoring_failure(error: WorkerError, signals: &StopSignals, keys: &[String]) -> Failure {
    let is_missing =
        matches!(&error, WorkerError::Ingest(IngestError::MissingColumn { column, .. }) if !keys.contains(column));
    let is_unusable = matches!(&error, WorkerError::Ingest(IngestError::UnusableColumn { .. }));
    let failure = failure(error, signals);
    if is_missing {
        return failure
            .with_advice("the model was trained with this column: add it to the rows, or train a model without it");
    }
    if is_unusable {
        return failure
            .with_advice("the model was trained with another type of this column: write the rows with that type");
    }
    failure
}

struct RunReport<'a> {
    job: &'a Job,
    summary: &'a RunSummary,
    folder: Option<PathBuf>,
    page: Option<PathBuf>,
    planted: Option<PlantedMeasures>,
}

impl RunReport<'_> {
    fn print(&self) {
        let summary = self.summary;
        let verb = if summary.outcome == TrainingOutcome::Finished { "trained on" } else { "stopped after" };
        out!(
            "\n{}  {verb} {} samples in {} steps, {:.1} s\n",
            self.job.name.bold(),
            HumanCount(summary.samples),
            HumanCount(summary.steps),
            summary.seconds
        );
        if let Some(choice) = &summary.choice {
            out!("  {choice}\n");
        }
        self.print_validation();
        self.print_measures();
        self.print_cost();
        if !summary.targets.is_empty() {
            out!("\n{}", "labels".bold());
            measures::print_targets(&summary.targets);
        }
        measures::print_slices(&self.summary.slices);
        self.print_next();
    }

    fn print_validation(&self) {
        let Some(validation) = &self.summary.validation else { return };
        let gauc = grouped_auc(validation).map_or_else(String::new, |gauc| format!(", GAUC {gauc}"));
        row("validation", &format!("{}{gauc}", measures::in_words(validation)));
    }

    fn print_measures(&self) {
        let evaluation = match unmeasured(&self.job.data.test, self.summary.evaluation.as_ref()) {
            Ok(evaluation) => evaluation,
            Err(why) => return row("test", why),
        };
        if !measures::of_others(evaluation).is_empty() {
            row("test", &measures::in_words(evaluation));
            return self.print_calibrated();
        }
        let best_auc = self.planted.as_ref().map(|planted| planted.best_auc);
        let best_logloss = self.planted.as_ref().map(|planted| planted.best_logloss);
        row("test AUC", &with_best(evaluation.auc, best_auc, auc_share(evaluation, best_auc)));
        row("test logloss", &with_best(evaluation.logloss, best_logloss, None));
        if let Some(gauc) = grouped_auc(evaluation) {
            row("test GAUC", &gauc);
        }
        let calibration = evaluation.calibration.map_or_else(|| "undefined".to_owned(), |c| format!("{c:.3}"));
        row("calibration", &format!("{calibration} predicted clicks per real one"));
        self.print_calibrated();
    }

    fn print_calibrated(&self) {
        if let Some(after) = &self.summary.calibrated {
            row("calibrated", &calibrated_text(after));
        }
    }

    fn print_cost(&self) {
        let summary = self.summary;
        row("speed", &format!("{} samples/s", HumanCount(summary.samples_per_second as u64)));
        if let Some(cost) = summary.cost.in_words() {
            row("cost", &cost);
        }
        let tables = self.job.tables.len();
        let bytes = HumanBytes(summary.table_bytes);
        row("embeddings", &format!("{} rows created in {tables} tables, {bytes}", HumanCount(summary.rows)));
        let staleness = summary.staleness;
        let bound = self.job.staleness();
        row(
            "staleness",
            &format!("{:.1} batches on average, {} at most (bound {bound})", staleness.mean, staleness.max),
        );
        if summary.skipped_steps > 0 {
            let skipped = HumanCount(summary.skipped_steps);
            row("skipped steps", &format!("{skipped}, not finite (train.non_finite)"));
        }
        if summary.bad_rows > 0 {
            row("bad rows", &format!("{} skipped (data.max_bad_rows)", HumanCount(summary.bad_rows)));
        }
        if let Some(folder) = &self.folder {
            row("run folder", &folder.display().to_string());
        }
        if let Some(model) = self.summary.model.as_ref().filter(|_| self.job.output.model_folder.is_some()) {
            row("model", model);
        }
        if let Some(page) = &self.page {
            row("page", &format!("{} (open it in a browser)", page.display()));
        }
    }

    fn print_next(&self) {
        let Some(folder) = &self.folder else { return };
        out!("\n{}", "next".bold());
        let commands = self.next_commands(folder);
        let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
        commands.iter().for_each(|(command, what)| out!("  {:<width$}  {}", command.cyan(), what.dimmed()));
        out!();
    }

    /// Commands that make sense now, and what each does.
    fn next_commands(&self, folder: &Path) -> Vec<(String, &'static str)> {
        let (zagros, run, mut commands) = (program(), folder.display(), Vec::new());
        if self.summary.outcome == TrainingOutcome::Interrupted && self.job.checkpoint.keep > 0 {
            commands.push(("the same command again".to_owned(), "goes on from here (--fresh starts over)"));
        }
        if self.job.output.save_model {
            let trust = match &self.job.model {
                Model::TorchScript { sha256, .. } => format!(" --trust-module {sha256}"),
                _ => String::new(),
            };
            commands.push((format!("{zagros} eval {run}{trust}"), "score the test part again, from the saved model"));
            commands.push((format!("{zagros} predict {run}{trust} ROWS -o scores.csv"), "score rows of your own"));
        }
        let curves = format!("tensorboard --logdir {}", folder.parent().unwrap_or(folder).display());
        commands.push((curves, "curves of this and earlier runs"));
        if self.planted.is_some() {
            commands.extend(planted_commands(Path::new(""), &zagros));
        }
        commands
    }
}

/// The evaluation, or the reason why there is none.
fn unmeasured<'a>(test: &HeldOutRows, evaluation: Option<&'a Evaluation>) -> Result<&'a Evaluation, &'static str> {
    match evaluation {
        Some(Evaluation { samples: 0, .. }) => {
            Err("no rows in the test part: check data.test, data.test_fraction or data.test_from")
        }
        Some(evaluation) => Ok(evaluation),
        None if *test == HeldOutRows::None => {
            Err("nothing held out: set data.test, data.test_fraction or data.test_from to measure what was learned")
        }
        None => Err("not scored before the end; `zagros eval` scores the saved model"),
    }
}

/// The AUC within groups, and the number of groups; `None` if no groups were asked for.
pub(crate) fn grouped_auc(evaluation: &Evaluation) -> Option<String> {
    let groups = evaluation.groups?;
    let Some(gauc) = evaluation.gauc else { return Some("undefined (no group has both classes)".to_owned()) };
    let share = evaluation.group_share.filter(|share| *share < 1.0);
    let sampled = share.map_or_else(String::new, |share| format!(", a sample of {:.3} % of all", share * 100.0));
    Some(format!("{gauc:.4} (mean over {} groups with both classes{sampled})", HumanCount(groups)))
}

/// The measures that calibration changes.
pub(crate) fn calibrated_text(after: &Evaluation) -> String {
    if !measures::of_others(after).is_empty() {
        return measures::in_words(after);
    }
    let Evaluation { logloss, calibration, ece, auc, .. } = *after;
    let [logloss, calibration, ece, auc] = [logloss, calibration, ece, auc].map(measures::format_measure);
    format!("logloss {logloss}, calibration {calibration}, calibration error {ece}, AUC {auc}")
}

fn row(name: &str, text: &str) {
    out!("  {:<14}{text}", name.dimmed());
}

/// What follows a run on generated data. A checkout has a makefile and the example's job file; elsewhere there is neither.
fn planted_commands(current: &Path, zagros: &str) -> Vec<(String, &'static str)> {
    let has = |file: &str| current.join(file).is_file();
    let mut commands = vec![(format!("{zagros} init /path/to/your.csv"), "a job file for your own data")];
    if has("Makefile") && has("rust-toolchain.toml") {
        commands[0] = ("make train DATA=/path/to/train.txt".to_owned(), "your own file in Criteo's format");
    }
    if has("examples/quickstart.toml") {
        commands.push((format!("{zagros} up examples/quickstart.toml --servers 3"), "the same as separate processes"));
    }
    commands
}

/// The command of this program, relative to the current directory, for the next commands.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_else(|| "zagros".to_owned());
    let here = std::env::current_dir().unwrap_or_default();
    Path::new(&called).strip_prefix(here).unwrap_or(Path::new(&called)).display().to_string()
}

/// A measure, with the best reachable one beside it.
fn with_best(value: Option<f64>, best: Option<f64>, note: Option<String>) -> String {
    let Some(value) = value else {
        return "undefined (the test part has one class only)".to_owned();
    };
    let best = best.map_or_else(String::new, |best| format!("   best reachable {best:.4}"));
    let note = note.map_or_else(String::new, |note| format!(" ({note})"));
    format!("{value:.4}{best}{note}")
}

/// How far the model came from no knowledge (AUC one half) to the best reachable AUC.
fn auc_share(evaluation: &Evaluation, best: Option<f64>) -> Option<String> {
    let share = (evaluation.auc? - 0.5) / (best? - 0.5);
    Some(format!("{:.1} % of the way from 0.5", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let commands = || planted_commands(folder.path(), "zagros").into_iter().map(|(command, _)| command);
        assert_eq!(commands().collect::<Vec<_>>(), ["zagros init /path/to/your.csv"]);
        std::fs::create_dir(folder.path().join("examples")).unwrap();
        for file in ["Makefile", "rust-toolchain.toml", "examples/quickstart.toml"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let checkout =
            ["make train DATA=/path/to/train.txt", "zagros up examples/quickstart.toml --servers 3"].map(str::to_owned);
        assert_eq!(commands().collect::<Vec<_>>(), checkout);
    }

    #[test]
    fn a_missing_measure_says_why() {
        let (empty, some) = (Evaluation::default(), Evaluation { samples: 1, ..Evaluation::default() });
        for (part, evaluation, why) in [
            (HeldOutRows::None, None, "nothing held out"),
            (HeldOutRows::Share(0.1), None, "not scored"),
            (HeldOutRows::Share(0.1), Some(&empty), "no rows"),
        ] {
            let problem = unmeasured(&part, evaluation).unwrap_err();
            assert!(problem.starts_with(why), "{problem}");
        }
        assert_eq!(unmeasured(&HeldOutRows::Share(0.1), Some(&some)), Ok(&some));
    }

    #[test]
    fn a_measure_is_shown_beside_the_best_reachable() {
        let evaluation = Evaluation { auc: Some(0.77), ..Evaluation::default() };
        let note = auc_share(&evaluation, Some(0.8));
        let shown = "0.7700   best reachable 0.8000 (90.0 % of the way from 0.5)";
        assert_eq!(with_best(evaluation.auc, Some(0.8), note), shown);
        assert_eq!(with_best(None, Some(0.8), None), "undefined (the test part has one class only)");
        assert_eq!(with_best(Some(0.5), None, None), "0.5000");
    }
}
