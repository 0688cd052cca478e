//! Rows of files are scored with a saved model, on one thread that may block: no servers, and nothing learns.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::task::AbortOnDropHandle;
use zagros_ingest::{Batch, IngestError, StreamStart};
use zagros_job::Job;
use zagros_model::Backend;
use zagros_plumbing::Shutdown;
use zagros_scoring::{ModelScorer, SavedModel};
use zagros_store::Folder;
use zagros_zip::number_from;

use super::held_out::HeldOut;
use super::importance::ImportanceScores;
use super::part_scores::{ImportanceOptions, PartMeasures, PartScores};
use crate::datapath::prepared::inconsistent_batch;
use crate::error::WorkerError;
use crate::event::{Observer, WorkerEvent};
use crate::report::files::run_blocking;

/// A saved model, and the files whose rows it scores.
pub struct ScoringCommand {
    /// The job saved beside the model.
    pub job: Job,
    pub model: Folder,
    /// `None`: the job's test part.
    pub files: Option<Vec<PathBuf>>,
    /// Computes the network.
    pub backend: Backend,
    pub observer: Arc<dyn Observer>,
    pub shutdown: Shutdown,
}

impl ScoringCommand {
    /// Loads the model, scores, measures (`zagros eval`), and measures the importance of each feature, if that is wanted.
    ///
    /// # Errors
    /// When the model or the data cannot be read or do not fit the job, or there is nothing to score.
    pub async fn evaluate(mut self, importance: Option<ImportanceOptions>) -> Result<PartMeasures, WorkerError> {
        if importance.is_some() {
            self.job = ImportanceOptions::with_blocks(&self.job);
        }
        self.run(move |scoring| scoring.measure(importance)).await
    }

    /// Calls `work` on a thread that may block. A requested stop is seen between batches, and where rows do not come.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(SavedScoring) -> Result<T, WorkerError> + Send + 'static,
    ) -> Result<T, WorkerError> {
        let (cancel, shutdown) = (Arc::new(AtomicBool::new(false)), self.shutdown.clone());
        let flag = Arc::clone(&cancel);
        let _watched = AbortOnDropHandle::new(tokio::spawn(async move {
            shutdown.requested().await;
            flag.store(true, Ordering::Release);
        }));
        match run_blocking("scoring", move || work(self.load(cancel)?)).await? {
            Err(WorkerError::Ingest(IngestError::Cancelled)) => Err(WorkerError::Interrupted),
            done => done,
        }
    }

    fn load(self, cancel: Arc<AtomicBool>) -> Result<SavedScoring, WorkerError> {
        let saved = SavedModel::open(&self.model)?;
        let rows = match &self.files {
            Some(files) => HeldOut::find_rows(&self.job, files, &saved.manifest)?,
            None => HeldOut::find_test(&self.job)?.ok_or(IngestError::NoFiles { key: "test" })?,
        };
        let scorer = ModelScorer::load_model(saved, &self.job, self.backend)?;
        Ok(SavedScoring { scorer, job: Arc::new(self.job), rows, observer: self.observer, cancel })
    }
}

/// A saved model, and the rows that it scores batch by batch.
pub(crate) struct SavedScoring {
    pub(crate) scorer: ModelScorer,
    job: Arc<Job>,
    rows: HeldOut,
    observer: Arc<dyn Observer>,
    cancel: Arc<AtomicBool>,
}

impl SavedScoring {
    /// Calls `work` with each batch and its number, from 0.
    pub(crate) fn each_batch(
        &mut self,
        start: StreamStart,
        mut work: impl FnMut(&mut ModelScorer, u64, Batch) -> Result<(), WorkerError>,
    ) -> Result<(), WorkerError> {
        let (step, part, total) = (self.scorer.saved_model().manifest.steps, self.rows.name, self.rows.byte_count());
        let (stream, mut done) = (self.rows.open(&self.job, None, start, Arc::clone(&self.cancel))?, 0);
        for (seq, batch) in number_from(0, stream) {
            let batch = batch?;
            if self.cancel.load(Ordering::Acquire) {
                return Err(WorkerError::Interrupted);
            }
            done += batch.bytes;
            work(&mut self.scorer, seq, batch)?;
            self.observer.observe(&WorkerEvent::Evaluating { step, part, done, total });
        }
        Ok(())
    }

    fn measure(mut self, importance: Option<ImportanceOptions>) -> Result<PartMeasures, WorkerError> {
        let calibrators = self.scorer.saved_model().read_calibrators(&self.job.features.targets)?;
        let (mut scores, cancel) = (PartScores::new(&self.job), Arc::clone(&self.cancel));
        let mut permuted = importance.map(|options| ImportanceScores::new(&self.job, options, cancel));
        let scored = self.each_batch(StreamStart::default(), |scorer, seq, batch| {
            let block = scorer.gather_batch(&batch)?;
            let outputs = block.score_unchanged()?;
            if let Some(permuted) = &mut permuted {
                permuted.add_block(&block, &batch, seq, &outputs)?;
            }
            scores.add(&batch, &outputs).map_err(|error| inconsistent_batch(seq, error.to_string()))
        });
        match scored {
            // No failure: there is nothing to measure.
            Err(WorkerError::Ingest(error @ IngestError::NoRows { .. })) => tracing::warn!(%error, "nothing is scored"),
            scored => scored?,
        }
        let (importance, tables) = (permuted.map(ImportanceScores::into_report), self.scorer.table_lookups().to_vec());
        Ok(PartMeasures { importance, tables, ..scores.into_measures(calibrators.as_ref()) })
    }
}
