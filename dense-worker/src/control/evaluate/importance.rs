//! Importance of features by permutation, in one reading of the held-out rows.
//!
//! Each block of rows is read and looked up once. It is scored as it is, and then for each feature, some times, with the feature's
//! values exchanged between the rows of the block. Values of other blocks do not come in: a feature that is the same in all rows
//! of a block, such as the day of rows in order of time, looks unimportant.

use std::sync::Arc;

use zagros_eval::importance::PermutedScores;
use zagros_ingest::StreamStart;
use zagros_job::{Job, Target};
use zagros_zip::ZipEq;

use super::part_scores::{
    ImportanceOptions, ImportanceReport, PartMeasures, PartScores, TargetImportance, by_target, measures_of,
    target_form,
};
use super::scorer::{HeldOut, PartScorer};
use crate::control::save::ModelCalibrators;
use crate::datapath::dense::DenseStage;
use crate::datapath::permuted::{FeatureIndex, PermutationSeed};
use crate::datapath::prepared::{FetchedBatch, inconsistent_batch};
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use zagros_model::ModelError;

/// Names of the features, as [`FeatureIndex`] counts them. A column that is both a number and ids has two names.
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

struct ImportanceScores {
    scores: PartScores,
    permuted: Vec<PermutedScores>,
}

impl PartScorer {
    pub(super) async fn measure_importance(
        mut self,
        held_out: &HeldOut,
        step: u64,
        calibrators: Option<ModelCalibrators>,
        ImportanceOptions { repeats }: ImportanceOptions,
    ) -> Result<PartMeasures, WorkerError> {
        let (reader, mut prefetch) = self.look_up(held_out, StreamStart::default())?;
        let (total, mut done, features) = (held_out.files.iter().map(|file| file.bytes).sum(), 0, names(&self.job));
        let permuted_scores =
            |target: &Target| PermutedScores::new(target_form(target), features.len(), repeats as usize);
        let permuted = self.job.features.targets.iter().map(permuted_scores).collect();
        let mut found = ImportanceScores { scores: PartScores::new(&self.job), permuted };
        while let Some(fetched) = self.next(&mut prefetch).await? {
            done += fetched.prepared.batch.bytes;
            found = self.add_permuted(fetched, found, (features.len(), repeats)).await?;
            self.observer.observe(&WorkerEvent::Evaluating { step, part: held_out.name, done, total });
        }
        reader.finish(self.job.cluster.timeout).await?;
        let target_importance = |(target, permuted): (&Target, &PermutedScores)| TargetImportance {
            target: target.name.clone(),
            features: permuted.rank_features(&features),
        };
        let mut targets: Vec<_> =
            self.job.features.targets.iter().zip_eq(&found.permuted).map(target_importance).collect();
        let features = targets.remove(0).features;
        let importance = ImportanceReport { repeats, block_rows: self.job.train.batch_size, features, targets };
        let measures = measures_of(found.scores, calibrators).await?;
        Ok(PartMeasures { importance: Some(importance), ..measures })
    }

    async fn add_permuted(
        &mut self,
        fetched: FetchedBatch,
        mut found: ImportanceScores,
        of: (usize, u32),
    ) -> Result<ImportanceScores, WorkerError> {
        let (fetched, seed) = (Arc::new(fetched), self.job.train.seed);
        for feature in 0..of.0 {
            for repeat in 0..of.1 {
                if self.stop.is_requested() {
                    return Err(WorkerError::Interrupted);
                }
                let (block, mut permuted, job) = (Arc::clone(&fetched), found.permuted, Arc::clone(&self.job));
                let work = move |dense: &mut DenseStage| -> Result<Vec<PermutedScores>, ModelError> {
                    let seed = PermutationSeed { seed, batch: block.seq, repeat };
                    let logits = dense.predict_permuted(&block.prepared, &block.rows, FeatureIndex(feature), seed)?;
                    let by_target = by_target(&job, &block.prepared.batch.labels, &logits);
                    for (scores, (labels, outputs)) in permuted.iter_mut().zip_eq(by_target) {
                        scores.add_permuted(feature, repeat as usize, &labels, &outputs);
                    }
                    Ok(permuted)
                };
                found.permuted = self.dense.call(work).await??;
            }
        }
        let Some(fetched) = Arc::into_inner(fetched) else { return Ok(found) };
        let seq = fetched.seq;
        let (batch, logits) = self.logits(fetched).await?;
        for (scores, (labels, outputs)) in
            found.permuted.iter_mut().zip_eq(by_target(&self.job, &batch.labels, &logits))
        {
            scores.add_plain(&labels, &outputs);
        }
        found.scores.add(&batch, &logits).map_err(|error| inconsistent_batch(seq, error.to_string()))?;
        Ok(found)
    }
}
