//! A share of a batch, and the loss of its outputs.

use super::Traversal;
use super::product::row_blocks;

/// A share of a batch, all row-major, and where its d loss / d embeddings is written.
#[derive(Debug)]
pub struct BatchShare<'a> {
    pub samples: usize,
    /// `[samples, numeric]`.
    pub numeric: &'a [f32],
    /// `[samples, ΣD]`.
    pub embeddings: &'a [f32],
    /// `[samples, targets]`.
    pub labels: &'a [f32],
    /// `[samples]`; empty if each counts once.
    pub weights: &'a [f32],
    /// `[samples, outputs]`, written.
    pub logits: &'a mut [f32],
    /// `[samples, ΣD]`, written; empty when scoring.
    pub gradients: &'a mut [f32],
}

/// The loss of a network's outputs, over all targets.
pub trait OutputLoss: Sync {
    fn target_count(&self) -> usize;

    fn output_count(&self) -> usize;

    /// Sum of the losses of samples. Writes `factor` times its slope at each output, `[samples, outputs]`. The outputs become those that
    /// are measured and predicted.
    fn sum_losses(&self, outputs: &mut [f32], labelled: (&[f32], &[f32]), factor: f32, slopes: &mut [f32]) -> f64;

    /// Turns the outputs of the network into those that are measured and predicted.
    fn finish_outputs(&self, outputs: &mut [f32]);
}

impl<'a> BatchShare<'a> {
    /// Samples that are scored alone: without labels, and without slopes.
    pub fn to_score(samples: usize, numeric: &'a [f32], embeddings: &'a [f32], logits: &'a mut [f32]) -> Self {
        Self { samples, numeric, embeddings, labels: &[], weights: &[], logits, gradients: &mut [] }
    }

    /// Removes the first `count` samples and returns them.
    pub fn split_off(&mut self, count: usize) -> Self {
        let samples = self.samples.max(1);
        self.samples -= count;
        let part = |values: usize| values / samples * count;
        let (numeric, width) = (part(self.numeric.len()), part(self.embeddings.len()));
        let (labels, weights, outputs) = (part(self.labels.len()), part(self.weights.len()), part(self.logits.len()));
        let slopes = part(self.gradients.len());
        Self {
            samples: count,
            numeric: take_front(&mut self.numeric, numeric),
            embeddings: take_front(&mut self.embeddings, width),
            labels: take_front(&mut self.labels, labels),
            weights: take_front(&mut self.weights, weights),
            logits: take_front_mut(&mut self.logits, outputs),
            gradients: take_front_mut(&mut self.gradients, slopes),
        }
    }

    /// The sum of the losses, with their slopes, block by block.
    pub(super) fn sum_losses(&mut self, traversal: &Traversal<'_>, slopes: &mut [f32]) -> f64 {
        let (targets, width) = (traversal.loss.target_count(), traversal.loss.output_count());
        let of_block = |(start, count): (usize, usize)| {
            let part = |values: usize| start * values..(start + count) * values;
            let weights = if self.weights.is_empty() { self.weights } else { &self.weights[part(1)] };
            let labelled = (&self.labels[part(targets)], weights);
            let slopes = &mut slopes[part(width)];
            traversal.loss.sum_losses(&mut self.logits[part(width)], labelled, traversal.factor, slopes)
        };
        row_blocks(self.samples).map(of_block).sum()
    }
}

fn take_front<'a>(from: &mut &'a [f32], count: usize) -> &'a [f32] {
    let (head, tail) = from.split_at(count);
    *from = tail;
    head
}

fn take_front_mut<'a>(from: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (head, tail) = std::mem::take(from).split_at_mut(count);
    *from = tail;
    head
}
