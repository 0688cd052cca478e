//! `zagros predict`: the scores of new rows, in one process.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::predictions::{PredictionColumns, PredictionCounts, PredictionError, PredictionFile, PredictionFormat};
use indicatif::{HumanBytes, HumanCount};
use serde_json::json;
use zagros_dense_worker::{Observer, ScoredRows, ScoringCommand, WorkerError, WorkerEvent, target_form};
use zagros_eval::TargetForm;
use zagros_ingest::{FileInfo, InputRows};
use zagros_job::{Job, PredictRows, STDIN, Target, TargetKind};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_scoring::Manifest;
use zagros_shell::{Exit, Failure, err, note, print_answer, watch_signals};
use zagros_zip::ZipEq;

use crate::args::{BadRowsChoice, PredictArgs};
use crate::averaged::{self, ModelScoresReader, ScoreForm};
use crate::backend::backend;
use crate::report;
use crate::resume::failed;
use crate::saved::{SavedModel, check_trust};
use crate::scored_rows::job_for;

/// With several models their scores are averaged.
pub(crate) async fn run(args: PredictArgs) -> Result<Exit, Failure> {
    let mut models = ScoringModel::all(&args)?;
    let scores = score_columns(&models[0].job, &args.score_column);
    let identity = models.iter().map(|model| identity(&args, model)).collect::<Result<Vec<_>, _>>()?.join("; ");
    let output = open_output(&args, scores, &identity).map_err(refused)?;
    let earlier_counts = output.written_counts();
    if earlier_counts.row_count() > 0 {
        err!("going on after {} rows that are written (--fresh starts over)", HumanCount(earlier_counts.row_count()));
    }
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let started = Instant::now();
    let places = averaged::score_files(&args.output, models.len(), &identity);
    let first = models.remove(0);
    let mut others = Vec::new();
    for (model, place) in models.into_iter().zip_eq(&places) {
        let (form, name) = (model.form(&args), model.name.clone());
        if args.fresh || !place.exists() {
            note!("scoring with {name}");
            let columns = (PredictionColumns::unnamed(form.columns()), PredictionFormat::Records);
            let file = PredictionFile::open(place, columns, &identity, args.save_every, args.fresh);
            let file = file.map_err(refused)?;
            let (before, average) = (file.written_counts(), ModelAverage::default());
            let writer = ScoreWriter { output: file, form: form.clone(), average };
            let written = model.predict(&args, before, &shutdown, writer).await;
            let writer =
                written.map_err(|error| report::scoring_failure(error, &signals, &args.keys))?.map_err(refused)?;
            writer.output.finish().map_err(refused)?;
        }
        others.push(ModelScoresReader::open(place, name, form.columns(), earlier_counts.samples).map_err(refused)?);
    }
    let form = first.form(&args);
    let (keeps_malformed, shows_predictions) = (args.bad_rows == BadRowsChoice::Empty, !args.logits);
    let average = ModelAverage { others, shows_predictions, keeps_malformed };
    let written = first.predict(&args, earlier_counts, &shutdown, ScoreWriter { output, form, average }).await;
    let output =
        written.map_err(|error| report::scoring_failure(error, &signals, &args.keys))?.map_err(refused)?.output;
    let counts = output.finish().map_err(refused)?;
    // They are no part of what was asked for.
    places.iter().for_each(|place| drop(std::fs::remove_file(place)));
    print(&args, earlier_counts, counts, started.elapsed())?;
    Ok(Exit::Success)
}

struct ScoringModel {
    /// As the command line has it.
    name: String,
    saved: SavedModel,
    job: Job,
}

impl ScoringModel {
    /// The models of the arguments, which predict the same.
    fn all(args: &PredictArgs) -> Result<Vec<Self>, Failure> {
        let named = averaged::models_of(&args.run);
        if named.len() > 1 && args.data.iter().any(|file| file == Path::new(STDIN)) {
            let help = "write the rows to a file first: each model reads them from the start";
            return Err(Failure::usage("standard input can be read by one model only", help));
        }
        let models = named.iter().map(|path| Self::open(path, args, named.len())).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = models.first() else {
            return Err(Failure::usage("no model is named", "name one, or several with commas between them"));
        };
        if let Some(other) = models.iter().find(|other| labels(&other.job) != labels(&first.job)) {
            let names = |model: &Self| labels(&model.job).join(", ");
            let what = format!(
                "{} and {} predict different labels ({} and {}), so their scores have no average",
                first.name,
                other.name,
                names(first),
                names(other)
            );
            return Err(Failure::usage(what, "name models whose features.label is the same"));
        }
        Ok(models)
    }

    fn open(path: &Path, args: &PredictArgs, count: usize) -> Result<Self, Failure> {
        let saved = SavedModel::find(path, Duration::from_secs(args.timeout))?;
        // By its malformed rows one model's rows are compared with those of another.
        let keep_bad = args.bad_rows == BadRowsChoice::Empty || count > 1;
        let read = PredictRows { keys: args.keys.clone(), keep_bad };
        let mut job = job_for(&saved, &args.sets, &args.data, Some(read))?;
        check_trust(&job, args.trust_module.as_deref())?;
        if args.bad_rows != BadRowsChoice::Refuse {
            job.data.max_bad_rows = u64::MAX;
        }
        Ok(Self { name: path.display().to_string(), saved, job })
    }

    /// What is averaged, or written of one model.
    fn form(&self, args: &PredictArgs) -> ScoreForm {
        let logits = args.logits || args.average == "logits";
        ScoreForm { logits, targets: self.job.features.targets.iter().map(target_form).collect() }
    }

    async fn predict<O: ScoredRows>(
        self,
        args: &PredictArgs,
        before: PredictionCounts,
        shutdown: &Shutdown,
        output: O,
    ) -> Result<Result<O, O::Error>, WorkerError> {
        let (model, files, shutdown) = (self.saved.folder, Some(args.data.clone()), shutdown.clone());
        let observer = Arc::new(ScoringProgress::new(before, &args.data));
        let scoring = ScoringCommand { job: self.job, model, files, backend: backend(), observer, shutdown };
        scoring.predict(!args.uncalibrated, before.samples, output).await
    }
}

const LINE_EVERY: Duration = Duration::from_secs(10);

struct ScoringProgress {
    /// Whether the files are read from their start, so that their bytes say how far it is.
    whole: bool,
    /// Whether the files say how large they are.
    is_known: bool,
    last_line: Mutex<Instant>,
}

impl ScoringProgress {
    fn new(before: PredictionCounts, data: &[PathBuf]) -> Self {
        let is_known = !data.iter().any(|file| file == Path::new(STDIN));
        Self { whole: before.row_count() == 0, is_known, last_line: Mutex::new(Instant::now()) }
    }
}

impl Observer for ScoringProgress {
    fn observe(&self, event: &WorkerEvent) {
        let WorkerEvent::Evaluating { done, total, .. } = event else { return };
        let mut last = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            let rest = if self.whole { String::new() } else { " since it went on".to_owned() };
            let whole = match self.is_known {
                true => format!(" of {}", HumanBytes(*total)),
                false => String::new(),
            };
            note!("scored {}{whole}{rest}", HumanBytes(*done));
        }
    }
}

/// What decides the scores: model, rows, and how they are read.
fn identity(args: &PredictArgs, ScoringModel { job, saved, .. }: &ScoringModel) -> Result<String, Failure> {
    let manifest = Manifest::read(&saved.folder).map_err(failed)?;
    let mut identity =
        format!("{} {} {} {:?}", env!("CARGO_PKG_VERSION"), manifest.manifest_sha256, manifest.steps, args.logits);
    for file in &args.data {
        if file == Path::new(STDIN) {
            // Other rows may come each time.
            let _ = write!(identity, " {:?}", SystemTime::now());
            continue;
        }
        // Those of a folder or a pattern one by one. What cannot be read is refused when it is.
        let found = zagros_ingest::find_files(job, std::slice::from_ref(file)).unwrap_or_default();
        for FileInfo { path, bytes, .. } in found {
            let data = std::fs::metadata(&path).ok();
            let changed = data.and_then(|data| data.modified().ok()?.duration_since(UNIX_EPOCH).ok());
            let path = std::path::absolute(&path).unwrap_or(path);
            // Text in memory takes everything.
            let _ = write!(identity, " {path:?} {bytes} {changed:?}");
        }
    }
    let _ = write!(identity, " {:?} {:?} {:?}", args.keys, args.bad_rows, (job.train.batch_size, job.train.threads));
    let _ = write!(identity, " {}", args.uncalibrated);
    let _ = write!(identity, " {} {:?}", job.fingerprint(), args.average);
    Ok(identity)
}

/// Names of the columns of scores: `score`, with several targets `score_NAME`, and for each class of one `score_CLASS`.
fn score_columns(job: &Job, score: &str) -> Vec<String> {
    let targets = &job.features.targets;
    let columns = targets.iter().flat_map(|target| {
        let name = if targets.len() > 1 { format!("{score}_{}", target.name) } else { score.to_owned() };
        match &target.kind {
            TargetKind::Classes { classes } => classes.iter().map(|class| format!("{name}_{class}")).collect(),
            TargetKind::Click { .. } | TargetKind::Regression { .. } => vec![name],
        }
    });
    columns.collect()
}

fn labels(job: &Job) -> Vec<String> {
    let kind = |target: &Target| match (&target.kind, target_form(target)) {
        (TargetKind::Classes { classes }, _) => format!("classes {}", classes.join("|")),
        (_, TargetForm::Counts) => "counts".to_owned(),
        (TargetKind::Regression { .. }, _) => "regression".to_owned(),
        (TargetKind::Click { .. }, _) => "click".to_owned(),
    };
    job.features.targets.iter().map(|target| format!("{} ({})", target.name, kind(target))).collect()
}

/// Checks first what can be checked before the model is loaded.
fn open_output(args: &PredictArgs, scores: Vec<String>, identity: &str) -> Result<PredictionFile, PredictionError> {
    let path: &Path = &args.output;
    let columns = PredictionColumns::new(args.keys.clone(), scores)?;
    if path == Path::new("-") {
        return PredictionFile::open_stdout(columns, args.format.unwrap_or(PredictionFormat::Csv));
    }
    let format = args.format.map_or_else(|| PredictionFormat::from_path(path), Ok)?;
    if path.exists() && !args.force {
        let kept = format!("{} exists and is kept; choose another name, or use --force to replace it", path.display());
        return Err(PredictionError::Refused(kept));
    }
    PredictionFile::open(path, (columns, format), identity, args.save_every, args.fresh)
}

/// Logits become scores on their way to the output.
struct ScoreWriter {
    output: PredictionFile,
    form: ScoreForm,
    average: ModelAverage,
}

/// By default the scores as they are.
#[derive(Default)]
struct ModelAverage {
    /// None if there is one model.
    others: Vec<ModelScoresReader>,
    /// Whether averaged logits become predictions.
    shows_predictions: bool,
    keeps_malformed: bool,
}

impl ScoreWriter {
    fn scores(&mut self, rows: &InputRows, logits: &[f32]) -> Result<Vec<f64>, PredictionError> {
        let mut scores = self.form.scores(logits);
        let ModelAverage { others, shows_predictions, .. } = &mut self.average;
        others.iter_mut().try_for_each(|other| other.add_to(rows, &mut scores))?;
        let models = (1 + others.len()) as f64;
        if models > 1.0 {
            scores.iter_mut().for_each(|score| *score /= models);
        }
        if self.form.logits && *shows_predictions {
            let logits: Vec<f32> = scores.iter().map(|logit| *logit as f32).collect();
            return Ok(self.form.predictions(&logits));
        }
        Ok(scores)
    }
}

impl ScoredRows for ScoreWriter {
    type Error = PredictionError;

    fn take(&mut self, rows: &InputRows, logits: &[f32]) -> Result<(), PredictionError> {
        let scores = self.scores(rows, logits)?;
        let is_kept = self.average.others.is_empty() || self.average.keeps_malformed;
        let kept = (!is_kept).then(|| rows.samples_only());
        let rows = kept.as_ref().unwrap_or(rows);
        self.output.add_rows(rows, &scores)
    }
}

fn refused(error: PredictionError) -> Failure {
    let exit = match error {
        PredictionError::Write { .. } => Exit::Storage,
        PredictionError::Refused(_) => Exit::Usage,
    };
    Failure::from_error(exit, error)
}

fn print(args: &PredictArgs, before: PredictionCounts, all: PredictionCounts, took: Duration) -> Result<(), Failure> {
    let is_stream = args.output == Path::new("-");
    let rate = (all.row_count() - before.row_count()) as f64 / took.as_secs_f64().max(1e-9);
    if args.json && !is_stream {
        let report = json!({
            "file": args.output, "rows": all.row_count(), "malformed": all.malformed, "not_finite": all.not_finite, "rows_before": before.row_count(),
            "seconds": took.as_secs_f64(), "rows_per_second": rate,
        });
        return print_answer(&report.to_string());
    }
    let counted =
        |rows: u64, what: &str| if rows == 0 { String::new() } else { format!(", {} {what}", HumanCount(rows)) };
    let malformed = counted(all.malformed, "of them malformed and without a score");
    let not_finite = counted(all.not_finite, "with a score that is no finite number");
    err!(
        "{}: {} rows{malformed}{not_finite}; {:.1} s, {} rows/s",
        if is_stream { "standard output".to_owned() } else { args.output.display().to_string() },
        HumanCount(all.row_count()),
        took.as_secs_f64(),
        HumanCount(rate as u64)
    );
    Ok(())
}
