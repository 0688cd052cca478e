//! Importance of features by permutation, in one reading of the held-out rows.
//!
//! Each block of rows is read and looked up once. It is scored as it is, and then for each feature, some times, with the feature's
//! values exchanged between the rows of the block. Values of other blocks do not come in: a feature that is the same in all rows
//! of a block, such as the day of rows in order of time, looks unimportant.

use std::sync::Arc;

use zagros_eval::Calibrator;
use zagros_eval::importance::PermutedScores;
use zagros_ingest::StreamStart;
use zagros_job::Job;

use super::evaluate::{HeldOut, Scorer};
use super::measures::{Importance, ImportanceOptions, Measures};
use super::part_scores::{PartScores, measures_of};
use crate::datapath::dense::Dense;
use crate::datapath::permuted::{FeatureIndex, PermutationSeed};
use crate::datapath::prepared::{Fetched, inconsistent};
use crate::error::WorkerError;
use crate::event::Event;
use crate::model::ModelError;

/// Names of the features, as [`FeatureIndex`] counts them.
fn names(job: &Job) -> Vec<String> {
    let numeric = job.features.numeric.iter().map(|feature| feature.name().to_owned());
    numeric.chain(job.features.categorical.iter().map(|feature| feature.name.clone())).collect()
}

/// All scores of one reading.
struct ImportanceScores {
    scores: PartScores,
    permuted: PermutedScores,
}

impl Scorer {
    /// Measures of a part, and the importance of each feature for them.
    ///
    /// # Errors
    /// When data, servers or libtorch fail, or the command must stop.
    pub(super) async fn importance(
        mut self,
        held_out: &HeldOut,
        step: u64,
        calibrator: Option<Calibrator>,
        ImportanceOptions { repeats }: ImportanceOptions,
    ) -> Result<Measures, WorkerError> {
        let (reader, mut prefetch) = self.look_up(held_out, StreamStart::default())?;
        let (total, mut done, features) = (held_out.files.iter().map(|file| file.bytes).sum(), 0, names(&self.job));
        let permuted = PermutedScores::new(features.len(), repeats as usize);
        let mut found = ImportanceScores { scores: PartScores::of(&self.job), permuted };
        while let Some(fetched) = self.next(&mut prefetch).await? {
            done += fetched.prepared.batch.bytes;
            found = self.add_permuted(fetched, found, (features.len(), repeats)).await?;
            self.observer.on(&Event::Evaluating { step, part: held_out.name, done, total });
        }
        reader.finish(self.job.cluster.timeout).await?;
        let features = found.permuted.report(&features);
        let importance = Importance { repeats, block_rows: self.job.train.batch_size, features };
        let measures = measures_of(found.scores, calibrator).await?;
        Ok(Measures { importance: Some(importance), ..measures })
    }

    async fn add_permuted(
        &mut self,
        fetched: Fetched,
        mut found: ImportanceScores,
        of: (usize, u32),
    ) -> Result<ImportanceScores, WorkerError> {
        let (fetched, seed) = (Arc::new(fetched), self.job.train.seed);
        for feature in 0..of.0 {
            for repeat in 0..of.1 {
                if self.stop.is_requested() {
                    return Err(WorkerError::Interrupted);
                }
                let (block, mut permuted) = (Arc::clone(&fetched), found.permuted);
                let work = move |dense: &mut Dense| -> Result<PermutedScores, ModelError> {
                    let seed = PermutationSeed { seed, batch: block.seq, repeat };
                    let logits = dense.predict_permuted(&block.prepared, &block.rows, FeatureIndex(feature), seed)?;
                    permuted.add_permuted(feature, repeat as usize, &block.prepared.batch.labels, &logits);
                    Ok(permuted)
                };
                found.permuted = self.dense.call(work).await??;
            }
        }
        let Some(fetched) = Arc::into_inner(fetched) else { return Ok(found) };
        let seq = fetched.seq;
        let (batch, logits) = self.logits(fetched).await?;
        found.permuted.add_plain(&batch.labels, &logits);
        found.scores.add(&batch, &logits).map_err(|error| inconsistent(seq, error.to_string()))?;
        Ok(found)
    }
}
