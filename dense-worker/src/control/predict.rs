//! Predictions: the rows of files are scored in their order, and each batch is written while the next one is scored.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::{JoinHandle, spawn_blocking};
use zagros_ingest::{Batch, InputRows, StreamStart};
use zagros_job::Job;
use zagros_store::Folder;

use super::evaluate::{HeldOut, PartScorer, ScoringParts, rows_to_score};
use super::save::ModelCalibrators;
use crate::datapath::prefetch::RowPrefetch;
use crate::datapath::prepared::FetchedBatch;
use crate::error::WorkerError;
use crate::event::WorkerEvent;

/// Takes scored rows, in the order of the input. It may block.
pub trait ScoredRows: Send + Sized + 'static {
    type Error: Send + 'static;

    /// Takes rows; `logits` are those of the samples among them.
    ///
    /// # Errors
    /// When they cannot be taken. Nothing is scored then any more.
    fn take(&mut self, rows: &InputRows, logits: &[f32]) -> Result<(), Self::Error>;
}

/// Scores the rows of files with a saved model (`zagros predict`).
pub struct PredictCommand {
    /// The job saved beside the model, with [`zagros_job::EvalSettings::predict`].
    pub job: Job,
    pub model: Folder,
    pub files: Vec<PathBuf>,
    /// Whether a model's calibration is applied; without, the logits are those of the network.
    pub calibrate: bool,
    /// Samples that were written before: the first of the files.
    pub done: u64,
    pub parts: ScoringParts,
}

impl PredictCommand {
    /// Loads the model, scores every row, and hands the rows to `output`. A failure of `output` is the inner one.
    ///
    /// # Errors
    /// When the model or the data cannot be read or do not fit the job.
    pub async fn run<O: ScoredRows>(self, output: O) -> Result<Result<O, O::Error>, WorkerError> {
        let job = Arc::new(self.job);
        let rows = rows_to_score(Arc::clone(&job), self.files, &self.model).await?;
        let (scorer, saved) = self.parts.load(job, &self.model).await?;
        let calibrators = match self.calibrate {
            true => saved.read_calibrators(&scorer.job.features.targets).await?,
            false => None,
        };
        scorer.predict(&rows, (self.done, saved.manifest.steps), calibrators.as_ref(), output).await
    }
}

impl PartScorer {
    /// Skips the samples that are done.
    async fn predict<O: ScoredRows>(
        mut self,
        held_out: &HeldOut,
        (done, step): (u64, u64),
        calibrators: Option<&ModelCalibrators>,
        output: O,
    ) -> Result<Result<O, O::Error>, WorkerError> {
        let start = StreamStart { drop: done, ..StreamStart::default() };
        let (reader, mut prefetch) = self.look_up(held_out, start)?;
        let total = held_out.files.iter().map(|file| file.bytes).sum();
        let mut passed = 0;
        // What the output does while a batch is scored.
        let mut writing = spawn_blocking(move || Ok(output));
        while let Some(fetched) = self.fetched(&mut prefetch).await? {
            passed += fetched.prepared.batch.bytes;
            let (batch, mut logits) = match fetched.prepared.batch.size {
                0 => (fetched.prepared.batch, Vec::new()),
                _ => self.logits(fetched).await?,
            };
            if let Some(calibrators) = calibrators {
                calibrators.apply(&mut logits);
            }
            let idle = match wait_for_output(writing).await? {
                Ok(idle) => idle,
                failed => return Ok(failed),
            };
            self.observer.observe(&WorkerEvent::Evaluating { step, part: held_out.name, done: passed, total });
            writing = spawn_blocking(move || take(idle, &batch, &logits));
        }
        reader.finish(self.job.cluster.timeout).await?;
        wait_for_output(writing).await
    }
}

impl PartScorer {
    /// The next batch. Files without a row that can be scored are a failure here.
    async fn fetched(&mut self, prefetch: &mut RowPrefetch) -> Result<Option<FetchedBatch>, WorkerError> {
        tokio::select! {
            reason = self.stop.wait_for_request() => Err(reason),
            next = prefetch.next() => next.transpose(),
        }
    }
}

async fn wait_for_output<T>(writing: JoinHandle<T>) -> Result<T, WorkerError> {
    writing.await.map_err(|error| WorkerError::Thread { thread: "writer", reason: error.to_string() })
}

fn take<O: ScoredRows>(mut output: O, batch: &Batch, logits: &[f32]) -> Result<O, O::Error> {
    if let Some(rows) = &batch.input {
        output.take(rows, logits)?;
    }
    Ok(output)
}
