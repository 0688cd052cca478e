//! `zagros predict`: the scores of new rows, in one process.

use std::fmt::Write as _;
use std::io::{BufWriter, Stdout};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{HumanBytes, HumanCount};
use serde_json::json;
use zagros_dense_worker::{Event, Manifest, Observer, Predict, ScoredRows, target_form};
use zagros_eval::TargetForm;
use zagros_ingest::InputRows;
use zagros_job::{Job, PredictRows, STDIN, TargetKind};
use zagros_launch::EmbeddedCluster;
use zagros_plumbing::lifecycle::Shutdown;
use zagros_predictions::{
    PredictionColumns, PredictionCounts, PredictionError, PredictionFile, PredictionFormat, PredictionStream,
};
use zagros_shell::{Exit, Failure, answer, err, note, watch_signals};

use crate::args::{BadRowsChoice, PredictArgs};
use crate::report;
use crate::resume::failed;
use crate::saved::{SavedModel, check_trust};

/// Bytes that standard output is given at once.
const BUFFER: usize = 64 << 10;

/// Loads, scores, writes.
pub(crate) async fn run(args: PredictArgs) -> Result<Exit, Failure> {
    let saved = SavedModel::find(&args.run, Duration::from_secs(args.timeout))?;
    let mut job = saved.job(&args.sets)?;
    check_trust(&job, args.trust_module.as_deref())?;
    let keep_bad = args.bad_rows == BadRowsChoice::Empty;
    job.eval.predict = Some(PredictRows { keys: args.keys.clone(), keep_bad });
    if args.bad_rows != BadRowsChoice::Refuse {
        job.data.max_bad_rows = u64::MAX;
    }
    let manifest = Manifest::read(&saved.folder).map_err(failed)?;
    let scores = score_columns(&job, &args.score_column);
    let output = Output::open(&args, scores, &identity(&args, &job, &manifest)).map_err(refused)?;
    let before = output.counts();
    if before.rows() > 0 {
        err!("going on after {} rows that are written (--fresh starts over)", HumanCount(before.rows()));
    }
    let targets = job.features.targets.iter().map(target_form).collect();
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let EmbeddedCluster { control, connect, .. } = EmbeddedCluster::start(&job).await?;
    let predict = Predict {
        job,
        model: saved.folder,
        files: args.data.clone(),
        calibrate: !args.uncalibrated,
        done: before.samples,
        control,
        connect,
        observer: Arc::new(Progress::new(before, &args.data)),
        shutdown,
    };
    let started = Instant::now();
    let output = Scores { output, logits: args.logits, targets };
    let written = predict.run(output).await;
    let output =
        written.map_err(|error| report::scoring_failure(error, &signals, &args.keys))?.map_err(refused)?.output;
    let counts = output.finish().map_err(refused)?;
    print(&args, before, counts, started.elapsed())?;
    Ok(Exit::Success)
}

/// Pause between two lines that say how far it is.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Says how far it is.
struct Progress {
    /// Whether the files are read from their start, so that their bytes say how far it is.
    whole: bool,
    /// Whether the files say how large they are.
    is_known: bool,
    last_line: Mutex<Instant>,
}

impl Progress {
    fn new(before: PredictionCounts, data: &[PathBuf]) -> Self {
        let is_known = !data.iter().any(|file| file == Path::new(STDIN));
        Self { whole: before.rows() == 0, is_known, last_line: Mutex::new(Instant::now()) }
    }
}

impl Observer for Progress {
    fn on(&self, event: &Event) {
        let Event::Evaluating { done, total, .. } = event else { return };
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
fn identity(args: &PredictArgs, job: &Job, manifest: &Manifest) -> String {
    let mut identity =
        format!("{} {} {} {:?}", env!("CARGO_PKG_VERSION"), manifest.manifest_sha256, manifest.steps, args.logits);
    for file in &args.data {
        if file == Path::new(STDIN) {
            // Other rows may come each time.
            let _ = write!(identity, " {:?}", SystemTime::now());
            continue;
        }
        let found = std::fs::metadata(file).ok();
        let changed = found.as_ref().and_then(|data| data.modified().ok()?.duration_since(UNIX_EPOCH).ok());
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        // Text in memory takes everything.
        let _ = write!(identity, " {file:?} {:?} {changed:?}", found.map(|data| data.len()));
    }
    let _ = write!(identity, " {:?} {:?} {:?}", args.keys, args.bad_rows, (job.train.batch_size, job.train.threads));
    let _ = write!(identity, " {}", args.uncalibrated);
    let _ = write!(identity, " {}", job.fingerprint());
    identity
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

/// Where the scores go.
enum Output {
    File(PredictionFile),
    Stream(PredictionStream<BufWriter<Stdout>>),
}

impl Output {
    /// Checks first what can be checked before the model is loaded.
    fn open(args: &PredictArgs, scores: Vec<String>, identity: &str) -> Result<Self, PredictionError> {
        let to: &Path = &args.output;
        let columns = PredictionColumns::new(args.keys.clone(), scores)?;
        let format = args.format.map(PredictionFormat::from);
        if to == Path::new("-") {
            let stdout = BufWriter::with_capacity(BUFFER, std::io::stdout());
            return PredictionStream::start(stdout, columns, format.unwrap_or(PredictionFormat::Csv)).map(Self::Stream);
        }
        let format = format.map_or_else(|| PredictionFormat::of(to), Ok)?;
        if to.exists() && !args.force {
            return Err(PredictionError::Exists { path: to.to_owned() });
        }
        PredictionFile::open(to, (columns, format), identity, args.save_every, args.fresh).map(Self::File)
    }

    fn counts(&self) -> PredictionCounts {
        match self {
            Self::File(file) => file.counts(),
            Self::Stream(_) => PredictionCounts::default(),
        }
    }

    fn finish(self) -> Result<PredictionCounts, PredictionError> {
        match self {
            Self::File(file) => file.finish(),
            Self::Stream(stream) => stream.finish(),
        }
    }
}

/// Logits become scores on their way to the output.
struct Scores {
    output: Output,
    logits: bool,
    /// In the order of the network's outputs.
    targets: Vec<TargetForm>,
}

impl Scores {
    /// What the outputs of the samples predict.
    fn predictions(&self, outputs: &[f32]) -> Vec<f64> {
        let mut scores = Vec::with_capacity(outputs.len());
        let mut rest = outputs;
        while !rest.is_empty() {
            for target in &self.targets {
                let (own, others) = rest.split_at(target.outputs().min(rest.len()));
                target.predict(own, &mut scores);
                rest = others;
            }
        }
        scores
    }
}

impl ScoredRows for Scores {
    type Error = PredictionError;

    fn take(&mut self, rows: &InputRows, logits: &[f32]) -> Result<(), PredictionError> {
        let scores = match self.logits {
            true => logits.iter().map(|logit| f64::from(*logit)).collect(),
            false => self.predictions(logits),
        };
        match &mut self.output {
            Output::File(file) => file.add(rows, &scores),
            Output::Stream(stream) => stream.add(rows, &scores),
        }
    }
}

fn refused(error: PredictionError) -> Failure {
    let exit = match error {
        PredictionError::Write { .. } => Exit::Storage,
        PredictionError::Format { .. }
        | PredictionError::Stream
        | PredictionError::Exists { .. }
        | PredictionError::Columns { .. }
        | PredictionError::Busy { .. } => Exit::Usage,
    };
    Failure::from_error(exit, error)
}

fn print(args: &PredictArgs, before: PredictionCounts, all: PredictionCounts, took: Duration) -> Result<(), Failure> {
    let is_stream = args.output == Path::new("-");
    let rate = (all.rows() - before.rows()) as f64 / took.as_secs_f64().max(1e-9);
    if args.json && !is_stream {
        let report = json!({
            "file": args.output, "rows": all.rows(), "malformed": all.malformed, "rows_before": before.rows(),
            "seconds": took.as_secs_f64(), "rows_per_second": rate,
        });
        return answer(&report.to_string());
    }
    let malformed = match all.malformed {
        0 => String::new(),
        rows => format!(", {} of them malformed and without a score", HumanCount(rows)),
    };
    err!(
        "{}: {} rows{malformed}; {:.1} s, {} rows/s",
        if is_stream { "standard output".to_owned() } else { args.output.display().to_string() },
        HumanCount(all.rows()),
        took.as_secs_f64(),
        HumanCount(rate as u64)
    );
    Ok(())
}
