//! The files of a run: its folder, and its measures over time. Files and all else that blocks are off the threads that must not wait.

mod run_folder;
pub mod tensorboard;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::task::spawn_blocking;
use zagros_plumbing::durable;
use zagros_store::StoreError;

use crate::error::WorkerError;
use crate::event::{Evaluation, Observer, StepReport, TargetMeasures, WorkerEvent};
use tensorboard::EventWriter;

pub use run_folder::{RunFolder, RunLock};

pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), WorkerError> {
    durable::write(path, content).map_err(|source| file_error("write", path, source))
}

pub(crate) fn file_error(what: &'static str, path: &Path, source: io::Error) -> WorkerError {
    StoreError::Disk { what, path: path.to_owned(), source }.into()
}

pub(crate) async fn run_blocking<T: Send + 'static>(
    thread: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkerError> {
    spawn_blocking(work).await.map_err(|error| WorkerError::Thread { thread, reason: error.to_string() })
}

pub(crate) fn seconds_since_epoch() -> f64 {
    // A clock before 1970 gives 0.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// All of the first steps are recorded, so that short runs can be compared step by step.
const EVERY_STEP_UNTIL: u64 = 1000;
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes the measures of a run, on its own thread: `metrics.jsonl` and TensorBoard events.
///
/// A line of `metrics.jsonl` has `type` and `time` (seconds since the epoch), then
/// - `step`: the fields of [`StepReport`]; each of the first 1,000 steps, then at most one a second;
/// - `evaluation`: `step`, `part` (`validation` or `test`), `epoch` and the fields of [`crate::Evaluation`];
/// - `epoch`: the same without `part`, of the training rows of an epoch;
/// - `resumed`: `step`; earlier lines of later steps are void. With step 0 the run has started over, without a checkpoint;
/// - `checkpoint`: `step`, `pause_seconds`, `seconds`;
/// - `choice`: `step` and `message`, if the validation part chose the state that is the model.
#[derive(Debug)]
pub struct MeasureRecorder {
    lines: Mutex<LineGate>,
    writer: Option<JoinHandle<()>>,
}

/// Decides on the training path which events become a line.
#[derive(Debug)]
struct LineGate {
    lines: Option<Sender<MetricLine>>,
    last: Option<Instant>,
    /// An earlier process has written into the file.
    has_earlier_lines: bool,
}

#[derive(Debug, Serialize)]
struct MetricLine {
    time: f64,
    #[serde(flatten)]
    event: WorkerEvent,
}

impl MeasureRecorder {
    /// Appends to the files of an earlier process.
    pub fn start(folder: &RunFolder) -> Result<Self, WorkerError> {
        let path = folder.metrics_file();
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let opened = opened.and_then(|file| Ok((file.metadata()?.len() > 0, file)));
        let (has_earlier_lines, metrics) = opened.map_err(|source| file_error("open", &path, source))?;
        let files = MeasureFiles { metrics, events: open_events(folder)? };
        let (send, receive) = mpsc::channel();
        let spawned = std::thread::Builder::new().name("recorder".to_owned()).spawn(move || files.run(&receive));
        let writer = spawned.map_err(|error| WorkerError::Thread { thread: "recorder", reason: error.to_string() })?;
        Ok(Self {
            lines: Mutex::new(LineGate { lines: Some(send), last: None, has_earlier_lines }),
            writer: Some(writer),
        })
    }
}

impl Observer for MeasureRecorder {
    fn observe(&self, event: &WorkerEvent) {
        let mut gate = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let event = match event {
            WorkerEvent::Step(report) if !gate.is_due(report.step) => return,
            WorkerEvent::StartedFrom { step, folder, .. } if *step > 0 => {
                WorkerEvent::Resumed { step: *step, folder: folder.clone() }
            }
            WorkerEvent::StartedOver if gate.has_earlier_lines => {
                WorkerEvent::Resumed { step: 0, folder: String::new() }
            }
            WorkerEvent::Step(_)
            | WorkerEvent::Evaluated { .. }
            | WorkerEvent::EpochEnded { .. }
            | WorkerEvent::Chosen { .. }
            | WorkerEvent::Resumed { .. }
            | WorkerEvent::Checkpoint { .. } => event.clone(),
            _ => return,
        };
        if let Some(lines) = &gate.lines {
            // If the writer has ended, it has logged why.
            let _ = lines.send(MetricLine { time: seconds_since_epoch(), event });
        }
    }
}

impl Drop for MeasureRecorder {
    /// Waits until the last line is written.
    fn drop(&mut self) {
        self.lines.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).lines = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the writer is on standard error.
            let _ = writer.join();
        }
    }
}

impl LineGate {
    fn is_due(&mut self, step: u64) -> bool {
        let due = step <= EVERY_STEP_UNTIL || self.last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}

struct MeasureFiles {
    metrics: File,
    events: EventWriter<File>,
}

impl MeasureFiles {
    /// Writes the lines. A full disk must not end training, so an error is reported once.
    fn run(mut self, lines: &Receiver<MetricLine>) {
        let mut reported = false;
        for line in lines {
            if let Err(error) = self.write(&line)
                && !reported
            {
                tracing::warn!(%error, "measures are not recorded; training continues");
                reported = true;
            }
        }
    }

    fn write(&mut self, line: &MetricLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.metrics.write_all(&text)?;
        let (time, events) = (line.time, &mut self.events);
        match &line.event {
            WorkerEvent::Step(report) => events.write_scalars(time, report.step, &step_scalars(report)),
            WorkerEvent::Evaluated { step, part, evaluation, targets, .. } => {
                let of_target =
                    |of: &TargetMeasures| evaluation_scalars(&format!("{}/{}", part.name(), of.target), &of.evaluation);
                let whole = evaluation_scalars(part.name(), evaluation);
                let all: Vec<_> = whole.into_iter().chain(targets.iter().flat_map(of_target)).collect();
                events.write_scalars(time, *step, &all)
            }
            WorkerEvent::EpochEnded { step, training, .. } => {
                events.write_scalars(time, *step, &evaluation_scalars("epoch", training))
            }
            _ => Ok(()),
        }
    }
}

fn step_scalars(report: &StepReport) -> Vec<(&'static str, f64)> {
    let mut scalars = vec![
        ("train/loss", report.loss),
        ("train/loss_smoothed", report.loss_smoothed),
        ("train/samples_per_second", report.samples_per_second),
        ("train/staleness", f64::from(report.staleness)),
    ];
    scalars.extend(report.auc_so_far.map(|auc| ("train/auc", auc)));
    scalars.extend(report.normalised_entropy.map(|entropy| ("train/normalised_entropy", entropy)));
    scalars.extend(report.calibration.map(|calibration| ("train/calibration", calibration)));
    scalars
}

fn evaluation_scalars(part: &str, evaluation: &Evaluation) -> Vec<(String, f64)> {
    let measures = [
        ("auc", evaluation.auc),
        ("gauc", evaluation.gauc),
        ("logloss", evaluation.logloss),
        ("normalised_entropy", evaluation.normalised_entropy),
        ("calibration", evaluation.calibration),
        ("mse", evaluation.mse),
        ("mae", evaluation.mae),
        ("deviance", evaluation.deviance),
        ("accuracy", evaluation.accuracy),
    ];
    measures.into_iter().filter_map(|(name, value)| Some((format!("{part}/{name}"), value?))).collect()
}

fn open_events(folder: &RunFolder) -> Result<EventWriter<File>, WorkerError> {
    let parent = folder.path().join("tensorboard");
    fs::create_dir_all(&parent).map_err(|source| file_error("create", &parent, source))?;
    let now = seconds_since_epoch();
    // TensorBoard looks for `tfevents` in the name and orders files by name.
    let path = parent.join(format!("events.out.tfevents.{}.{}.zagros", now as u64, std::process::id()));
    let opened = File::create(&path).and_then(|file| EventWriter::new(file, now));
    opened.map_err(|source| file_error("write", &path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::HeldOutPart;

    fn step(step: u64) -> WorkerEvent {
        let auc_so_far = (step > 1).then_some(0.5);
        WorkerEvent::Step(StepReport { step, loss: 0.25, auc_so_far, ..StepReport::default() })
    }

    fn lines(folder: &RunFolder) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(folder.metrics_file()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn steps_and_evaluations_are_recorded_with_their_fields() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(parent.path()).unwrap();
        let recorder = MeasureRecorder::start(&folder).unwrap();
        recorder.observe(&step(1));
        recorder.observe(&step(2));
        let evaluation = Evaluation { samples: 10, auc: Some(0.75), ..Evaluation::default() };
        recorder.observe(&WorkerEvent::EpochEnded { step: 2, epoch: 0, training: evaluation });
        let targets = vec![TargetMeasures { target: "buy".into(), evaluation, calibrated: None }];
        let part = HeldOutPart::Validation;
        recorder.observe(&WorkerEvent::Evaluated { step: 2, part, epoch: 0, evaluation, targets });
        recorder.observe(&WorkerEvent::Chosen { step: 2, message: "as the test wants".to_owned() });
        drop(recorder);
        let lines = lines(&folder);
        assert_eq!((&lines[0]["type"], &lines[0]["step"]), (&"step".into(), &1.into()));
        assert_eq!(lines[0]["loss"], 0.25);
        assert!(lines[0]["time"].as_f64().unwrap() > 1e9 && lines[0]["auc_so_far"].is_null());
        assert_eq!((&lines[2]["type"], &lines[2]["auc"]), (&"epoch".into(), &0.75.into()));
        assert_eq!((&lines[3]["type"], &lines[3]["part"]), (&"evaluation".into(), &"validation".into()));
        assert_eq!((&lines[4]["type"], &lines[4]["message"]), (&"choice".into(), &"as the test wants".into()));
        assert_eq!(lines.len(), 5);
        assert_eq!(fs::read_dir(folder.path().join("tensorboard")).unwrap().count(), 1);
    }

    /// Regression: a run of mode `sync` that lost a worker before its first checkpoint had each step twice.
    #[test]
    fn a_run_that_starts_over_in_its_folder_says_that_earlier_lines_are_void() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(parent.path()).unwrap();
        for _ in 0..2 {
            let recorder = MeasureRecorder::start(&folder).unwrap();
            [WorkerEvent::StartedOver, step(1)].iter().for_each(|event| recorder.observe(event));
        }
        let kinds: Vec<_> = lines(&folder).iter().map(|line| (line["type"].clone(), line["step"].clone())).collect();
        let expected = [("step", 1), ("resumed", 0), ("step", 1)].map(|(kind, step)| (kind.into(), step.into()));
        assert_eq!(kinds, expected);
    }

    #[test]
    fn a_restart_appends_and_late_steps_are_thinned() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(parent.path()).unwrap();
        for _ in 0..2 {
            let recorder = MeasureRecorder::start(&folder).unwrap();
            (EVERY_STEP_UNTIL + 1..EVERY_STEP_UNTIL + 400).for_each(|index| recorder.observe(&step(index)));
        }
        let lines = lines(&folder);
        // The first line of each kind is due. There are more only if this machine took seconds for a loop of 400.
        assert!(lines.len() >= 2 && lines.len() < 400, "{}", lines.len());
    }
}
