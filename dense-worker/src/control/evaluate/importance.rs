//! Importance of features by permutation, in one reading of the held-out rows.
//!
//! Each block of rows is read and looked up once. It is scored as it is, and then for each feature, some times, with the feature's
//! values exchanged between the rows of the block. Values of other blocks do not come in: a feature that is the same in all rows
//! of a block, such as the day of rows in order of time, looks unimportant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use zagros_eval::importance::PermutedScores;
use zagros_ingest::Batch;
use zagros_job::{Job, Target};
use zagros_scoring::GatheredBatch;
use zagros_zip::ZipEq;

use super::part_scores::{ImportanceOptions, ImportanceReport, TargetImportance, by_target, target_form};
use crate::error::WorkerError;

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

pub(super) struct ImportanceScores {
    job: Arc<Job>,
    /// Names.
    features: Vec<String>,
    repeats: u32,
    /// Of each target.
    permuted: Vec<PermutedScores>,
    cancel: Arc<AtomicBool>,
}

impl ImportanceScores {
    pub(super) fn new(
        job: &Arc<Job>,
        ImportanceOptions { repeats }: ImportanceOptions,
        cancel: Arc<AtomicBool>,
    ) -> Self {
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
