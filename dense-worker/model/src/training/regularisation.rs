//! What a training step changes of its samples against overfitting, before and after the network: smoothed labels (Szegedy et al.
//! 2016), dropped values of feature vectors, and a penalty on feature vectors. It is the same for every network.

use zagros_job::Job;
use zagros_zip::ZipEq;

use crate::{InputColumns, VectorForm};
use zagros_network::{UnitDropout, apply_mask};

/// Another stream than those of the networks' dropouts.
const STREAM: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct StepRegularisation {
    smoothing: f32,
    /// Factor of the penalty for each value of a sample; empty if there is none.
    l2: Vec<f32>,
    dropout: UnitDropout,
    /// Values of a sample, and the places of those that are no part of a vector: the numbers of real positions of sequences.
    width: usize,
    counts: Vec<usize>,
    /// Dropout's factors, `[batch, ΣD]`; empty if nothing is dropped.
    mask: Vec<f32>,
    /// `[batch]` and `[batch, ΣD]`.
    labels: Vec<f32>,
    embeddings: Vec<f32>,
}

impl StepRegularisation {
    /// `None` if the job asks for nothing.
    pub(crate) fn from_job(job: &Job, columns: &InputColumns) -> Option<Self> {
        let (train, l2) = (&job.train, penalties(job, columns));
        let (smoothing, dropped) = (train.label_smoothing, train.embedding_dropout);
        (smoothing > 0.0 || !l2.is_empty() || dropped > 0.0).then(|| Self {
            smoothing: smoothing as f32,
            l2,
            dropout: UnitDropout::new(dropped, train.seed, STREAM),
            width: columns.width,
            counts: columns.position_counts().map(|(place, _)| place).collect(),
            mask: Vec::new(),
            labels: Vec::new(),
            embeddings: Vec::new(),
        })
    }

    /// Seeds dropout from now on.
    pub(crate) fn drop_by(&mut self, seed: u64) {
        self.dropout = UnitDropout::new(self.dropout.share, seed, STREAM);
    }

    /// What the network sees in this step.
    pub(crate) fn prepare_inputs(&mut self, embeddings: &[f32], labels: &[f32], step: u64) -> (&[f32], &[f32]) {
        self.dropout.draw_for(step);
        self.mask.clear();
        self.dropout.draw_factors(0, embeddings.len(), &mut self.mask);
        for sample in self.mask.chunks_exact_mut(self.width.max(1)) {
            self.counts.iter().for_each(|count| sample[*count] = 1.0);
        }
        self.embeddings.clear();
        self.embeddings.extend_from_slice(embeddings);
        apply_mask(&mut self.embeddings, &self.mask);
        self.labels.clear();
        self.labels.extend(labels.iter().map(|label| label * (1.0 - self.smoothing) + 0.5 * self.smoothing));
        (&self.embeddings, &self.labels)
    }

    /// From the gradients of what the network saw to those of the feature vectors, without the penalty.
    pub(crate) fn mask_gradients(&self, gradients: &mut [f32]) {
        apply_mask(gradients, &self.mask);
    }

    /// Adds the gradients of the penalty. Each sample is so much of a step, whatever its weight.
    pub(crate) fn add_penalty(&self, embeddings: &[f32], share: f32, gradients: &mut [f32]) {
        if self.l2.is_empty() {
            return;
        }
        let of_sample = gradients.chunks_exact_mut(self.width).zip_eq(embeddings.chunks_exact(self.width));
        for (gradients, values) in of_sample {
            for ((gradient, value), l2) in gradients.iter_mut().zip_eq(values).zip_eq(&self.l2) {
                *gradient += l2 * share * value;
            }
        }
    }
}

/// The factor of the penalty for each value of a sample, in the order of the columns; empty if all are 0. The number of real
/// positions of a sequence has none.
fn penalties(job: &Job, columns: &InputColumns) -> Vec<f32> {
    let Job { features, train, .. } = job;
    let mut factors = vec![0.0; columns.width];
    for (feature, column) in features.categorical.iter().zip_eq(&columns.features) {
        let counts = usize::from(matches!(column.form, VectorForm::Sequence(_)));
        let factor = *train.feature_l2.get(&feature.name).unwrap_or(&train.embedding_l2) as f32;
        factors[column.offset..][..column.width() - counts].fill(factor);
    }
    if factors.iter().any(|factor| *factor > 0.0) { factors } else { Vec::new() }
}
