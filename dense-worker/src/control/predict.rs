//! Predictions: the rows of files are scored in their order, and each batch is written while the next one is scored.

use std::sync::mpsc::sync_channel;
use std::thread;

use zagros_ingest::{InputRows, StreamStart};

use super::evaluate::{SavedScoring, ScoringCommand};
use crate::error::WorkerError;

/// Takes scored rows, in the order of the input. It may block.
pub trait ScoredRows: Send + Sized + 'static {
    type Error: Send + 'static;

    /// Takes rows; `logits` are those of the samples among them.
    ///
    /// # Errors
    /// When they cannot be taken. Nothing is scored then any more.
    fn take(&mut self, rows: &InputRows, logits: &[f32]) -> Result<(), Self::Error>;
}

impl ScoringCommand {
    /// Loads the model, scores every row, and hands the rows to `output` (`zagros predict`). The job has
    /// [`zagros_job::EvalSettings::predict`]. Without `calibrate` the logits are those of the network, whatever the model's calibration.
    /// `done` samples, the first of the files, were written before. A failure of `output` is the inner one.
    ///
    /// # Errors
    /// When the model or the data cannot be read or do not fit the job.
    pub async fn predict<O: ScoredRows>(
        self,
        calibrate: bool,
        done: u64,
        output: O,
    ) -> Result<Result<O, O::Error>, WorkerError> {
        self.run(move |mut scoring| {
            if calibrate {
                scoring.scorer.calibrate_scores()?;
            }
            scoring.write_scores(done, output)
        })
        .await
    }
}

impl SavedScoring {
    /// Skips the samples that are done.
    fn write_scores<O: ScoredRows>(mut self, done: u64, mut output: O) -> Result<Result<O, O::Error>, WorkerError> {
        let start = StreamStart { drop: done, ..StreamStart::default() };
        thread::scope(|threads| {
            let (send, scored) = sync_channel::<(InputRows, Vec<f32>)>(1);
            let writer = threads.spawn(move || {
                scored.into_iter().try_for_each(|(rows, outputs)| output.take(&rows, &outputs)).map(|()| output)
            });
            let scored = self.each_batch(start, |scorer, _, mut batch| {
                let outputs = scorer.score_batch(&batch)?;
                let Some(rows) = batch.input.take() else { return Ok(()) };
                // The writer has ended if it does not take them.
                send.send((rows, outputs)).map_err(|_| WorkerError::Interrupted)
            });
            drop(send);
            match writer.join() {
                Ok(Ok(output)) => scored.map(|()| Ok(output)),
                Ok(failed) => Ok(failed),
                Err(_) => Err(WorkerError::Thread { thread: "writer", reason: "panicked".to_owned() }),
            }
        })
    }
}
