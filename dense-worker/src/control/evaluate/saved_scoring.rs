//! Rows of files are scored with a saved model, on one thread that may block: no servers, and nothing learns. They are measured, or
//! predicted: then each batch is written, in the order of the rows, while the next one is scored.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use tokio_util::task::AbortOnDropHandle;
use zagros_eval::importance::PermutedScores;
use zagros_ingest::{Batch, IngestError, InputRows, StreamStart};
use zagros_job::{Job, Target};
use zagros_model::Backend;
use zagros_plumbing::Shutdown;
use zagros_scoring::{GatheredBatch, ModelScorer, SavedModel};
use zagros_store::Folder;
use zagros_zip::{ZipEq, number_from};

use super::HeldOut;
use super::part_scores::{
    ImportanceReport, PartMeasures, PartScores, TargetImportance, block_rows, by_target, target_form,
};
use crate::datapath::prepared::inconsistent_batch;
use crate::error::WorkerError;
use crate::event::{HeldOutPart, Observer, WorkerEvent};
use crate::report::run_blocking;

/// A saved model, and the files whose rows it scores.
pub struct ScoringCommand {
    pub job: Job,
    pub model: Folder,
    /// `None`: the job's test part.
    pub files: Option<Vec<PathBuf>>,
    pub backend: Backend,
    pub observer: Arc<dyn Observer>,
    pub shutdown: Shutdown,
}

impl ScoringCommand {
    /// Loads the model, scores, measures (`zagros eval`), and measures the importance of each feature, with so many repeats, if that
    /// is wanted.
    ///
    /// # Errors
    /// When the model or the data cannot be read or do not fit the job, or there is nothing to score.
    pub async fn evaluate(mut self, importance: Option<u32>) -> Result<PartMeasures, WorkerError> {
        if importance.is_some() {
            self.job.train.batch_size = block_rows(&self.job);
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
            None => HeldOut::find(&self.job, HeldOutPart::Test)?.ok_or(IngestError::NoFiles { key: "test" })?,
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

    fn measure(mut self, importance: Option<u32>) -> Result<PartMeasures, WorkerError> {
        let calibrators = self.scorer.saved_model().read_calibrators(&self.job.features.targets)?;
        let (mut scores, cancel) = (PartScores::new(&self.job), Arc::clone(&self.cancel));
        let mut permuted = importance.map(|repeats| ImportanceScores::new(&self.job, repeats, cancel));
        let scored = self.each_batch(StreamStart::default(), |scorer, seq, batch| {
            let block = scorer.gather_batch(&batch)?;
            let outputs = block.score_unchanged()?;
            if let Some(permuted) = &mut permuted {
                permuted.add_block(&block, &batch, seq, &outputs)?;
            }
            scores.add(&batch, &outputs).map_err(|error| inconsistent_batch(seq, error))
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

/// Names of the features, numeric ones first. A column that is both a number and ids has two names.
fn names(job: &Job) -> Vec<String> {
    let numeric: Vec<&str> = job.features.numeric.iter().map(zagros_job::Numeric::name).collect();
    let categorical: Vec<&str> = job.features.categorical.iter().map(|feature| feature.name.as_str()).collect();
    let named = |name: &str, others: &[&str], kind: &str| match others.contains(&name) {
        true => format!("{name} ({kind})"),
        false => name.to_owned(),
    };
    let numbers = numeric.iter().map(|name| named(name, &categorical, "number"));
    numbers.chain(categorical.iter().map(|name| named(name, &numeric, "ids"))).collect()
}

/// Which order of the samples: the same for the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PermutationSeed {
    seed: u64,
    batch: u64,
    repeat: u32,
}

impl PermutationSeed {
    /// Which sample each sample has a feature's value of.
    fn order(self, feature: usize, samples: usize) -> Vec<u32> {
        let state = u128::from(self.seed) << 64 | u128::from(self.batch);
        let mut random = Pcg64::new(state, (feature as u128) << 32 | u128::from(self.repeat));
        let mut order: Vec<u32> = (0..samples as u32).collect();
        order.shuffle(&mut random);
        order
    }
}

/// Importance of features by permutation, in one reading of the held-out rows.
///
/// Each block of rows is read and looked up once. It is scored as it is, and then for each feature, some times, with the feature's
/// values exchanged between the rows of the block. Values of other blocks do not come in: a feature that is the same in all rows
/// of a block, such as the day of rows in order of time, looks unimportant.
struct ImportanceScores {
    job: Arc<Job>,
    features: Vec<String>,
    repeats: u32,
    permuted: Vec<PermutedScores>,
    cancel: Arc<AtomicBool>,
}

impl ImportanceScores {
    pub(super) fn new(job: &Arc<Job>, repeats: u32, cancel: Arc<AtomicBool>) -> Self {
        let features = names(job);
        let scores = |target: &Target| PermutedScores::new(target_form(target), features.len(), repeats as usize);
        let permuted = job.features.targets.iter().map(scores).collect();
        Self { job: Arc::clone(job), features, repeats, permuted, cancel }
    }

    /// Adds a block with its outputs, and scores it for each feature and repeat.
    pub(super) fn add_block(
        &mut self,
        block: &GatheredBatch<'_>,
        batch: &Batch,
        seq: u64,
        outputs: &[f32],
    ) -> Result<(), WorkerError> {
        let (seed, plain) = (self.job.train.seed, by_target(&self.job, &batch.labels, outputs));
        for (scores, (labels, outputs)) in self.permuted.iter_mut().zip_eq(plain) {
            scores.add_plain(&labels, &outputs);
        }
        for feature in 0..self.features.len() {
            for repeat in 0..self.repeats {
                if self.cancel.load(Ordering::Acquire) {
                    return Err(WorkerError::Interrupted);
                }
                let order = PermutationSeed { seed, batch: seq, repeat }.order(feature, batch.size);
                let permuted = by_target(&self.job, &batch.labels, &block.score_permuted(feature, &order)?);
                for (scores, (labels, outputs)) in self.permuted.iter_mut().zip_eq(permuted) {
                    scores.add_permuted(feature, repeat as usize, &labels, &outputs);
                }
            }
        }
        Ok(())
    }

    pub(super) fn into_report(self) -> ImportanceReport {
        let target_importance = |(target, permuted): (&Target, &PermutedScores)| TargetImportance {
            target: target.name.clone(),
            features: permuted.rank_features(&self.features),
        };
        let mut targets: Vec<_> =
            self.job.features.targets.iter().zip_eq(&self.permuted).map(target_importance).collect();
        let features = targets.remove(0).features;
        ImportanceReport { repeats: self.repeats, block_rows: self.job.train.batch_size, features, targets }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_those_of_their_seed() {
        let seed = PermutationSeed { seed: 1, batch: 0, repeat: 0 };
        let order = |seed: PermutationSeed, feature| seed.order(feature, 100);
        let first = order(seed, 0);
        assert_eq!(order(seed, 0), first);
        let others = [
            PermutationSeed { repeat: 1, ..seed },
            PermutationSeed { batch: 1, ..seed },
            PermutationSeed { seed: 2, ..seed },
        ];
        assert!(others.iter().all(|other| order(*other, 0) != first) && order(seed, 1) != first);
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
    }
}
