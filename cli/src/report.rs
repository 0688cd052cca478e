//! The end of a training run: a short report, and what to do next.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{HumanBytes, HumanCount};
use serde::{Deserialize, Serialize};
use zagros_dense_worker::{
    BaselineMeasures, Evaluation, ExitClass, Observer, ObserverList, RunFolder, RunSummary, Worker, WorkerError,
};
use zagros_ingest::IngestError;
use zagros_job::{HeldOutRows, Job, Model};
use zagros_plumbing::lifecycle::StopSignals;
use zagros_scoring::TrainingOutcome;
use zagros_shell::{CommandReport, Exit, Failure, ReportTable, err, out};

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
        let RunSummary { choice, advice, targets, slices, .. } = self.summary;
        let mut report = CommandReport::default();
        report.add_title(&format!("{}  {}", self.job.name, page::lead(self.summary)));
        for note in choice.iter().chain(advice) {
            report.add_note(note);
        }
        report.add_facts([self.measures(), self.cost(), self.places()].concat());
        report.add_title("labels").add_table(measures::target_table(targets));
        measures::add_slices(&mut report, slices);
        if let Some(folder) = &self.folder {
            let row = |(command, what): (String, &str)| vec![command, what.to_owned()];
            let commands = self.next_commands(folder).into_iter().map(row).collect();
            report.add_title("next").add_table(ReportTable::new(&["", ""], commands));
        }
        report.print();
        out!();
    }

    fn measures(&self) -> Vec<(&'static str, String)> {
        let mut facts = Vec::new();
        let baselines = self.summary.baselines.unwrap_or_default();
        let BaselineMeasures { prevalence_logloss, logistic_auc, .. } = baselines;
        if let Some(part) = &self.summary.validation {
            // Baselines are of the test part, if there is one.
            let own = Some(baselines).filter(|_| self.summary.evaluation.is_none()).unwrap_or_default();
            let text = with_baseline(measures::in_words(part), "logistic regression AUC", own.logistic_auc);
            let text = with_baseline(text, "logloss of the prevalence alone", own.prevalence_logloss);
            facts.push(("validation", text));
        }
        match unmeasured(&self.job.data.test, self.summary.evaluation.as_ref()) {
            Err(why) => {
                facts.push(("test", why.to_owned()));
                return facts;
            }
            Ok(evaluation) if !measures::is_of_clicks(evaluation) => {
                facts.push(("test", measures::in_words(evaluation)));
            }
            Ok(evaluation) => {
                let best_auc = self.planted.as_ref().map(|planted| planted.best_auc);
                let best_logloss = self.planted.as_ref().map(|planted| planted.best_logloss);
                let auc = with_best(evaluation.auc, best_auc, auc_share(evaluation, best_auc));
                facts.push(("test AUC", with_baseline(auc, "logistic regression", logistic_auc)));
                let logloss = with_best(evaluation.logloss, best_logloss, None);
                facts.push(("test logloss", with_baseline(logloss, "of the prevalence alone", prevalence_logloss)));
                facts.extend(measures::grouped_auc(evaluation).map(|gauc| ("test GAUC", gauc)));
                let calibration = evaluation.calibration.map_or_else(|| "undefined".to_owned(), |c| format!("{c:.3}"));
                facts.push(("calibration", format!("{calibration} predicted clicks per real one")));
            }
        }
        facts.extend(self.summary.calibrated.as_ref().map(|after| ("calibrated", measures::calibrated_text(after))));
        facts
    }

    fn cost(&self) -> Vec<(&'static str, String)> {
        let summary = self.summary;
        let (tables, bytes) = (self.job.tables.len(), HumanBytes(summary.table_bytes));
        let (staleness, bound) = (summary.staleness, self.job.train.staleness);
        let skipped = HumanCount(summary.skipped_steps);
        let facts = [
            ("speed", Some(format!("{} samples/s", HumanCount(summary.samples_per_second as u64)))),
            ("cost", summary.cost.in_words()),
            ("embeddings", Some(format!("{} rows created in {tables} tables, {bytes}", HumanCount(summary.rows)))),
            (
                "staleness",
                Some(format!("{:.1} batches on average, {} at most (bound {bound})", staleness.mean, staleness.max)),
            ),
            ("skipped steps", (summary.skipped_steps > 0).then(|| format!("{skipped}, not finite (train.non_finite)"))),
            (
                "bad rows",
                (summary.bad_rows > 0).then(|| format!("{} skipped (data.max_bad_rows)", HumanCount(summary.bad_rows))),
            ),
        ];
        facts.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
    }

    fn places(&self) -> Vec<(&'static str, String)> {
        let model = self.summary.model.clone().filter(|_| self.job.output.model_folder.is_some());
        let facts = [
            ("run folder", self.folder.as_ref().map(|folder| folder.display().to_string())),
            ("model", model),
            ("page", self.page.as_ref().map(|page| format!("{} (open it in a browser)", page.display()))),
        ];
        facts.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
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
            commands.push((format!("{zagros} init /path/to/your.csv"), "a job file for your own data"));
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

/// The command of this program, relative to the current directory: the next commands can be copied.
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

/// A measure, with the one of a simple model beside it, if that is known.
fn with_baseline(measure: String, name: &str, value: Option<f64>) -> String {
    match value {
        Some(value) => format!("{measure}; {name} {value:.4}"),
        None => measure,
    }
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
        let shown = |value| with_baseline("0.7586".to_owned(), "logistic regression", value);
        assert_eq!((shown(Some(0.7555)), shown(None)), ("0.7586; logistic regression 0.7555".into(), "0.7586".into()));
    }
}
