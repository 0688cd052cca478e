//! The step without autograd. A batch goes through the network and back in chunks that stay in cache. Every step uses the
//! same memory.
//!
//! libtorch makes the matrix products. Bias, ReLU, interactions and the loss are loops of this crate. Autograd would
//! allocate, clear and page in every activation again, and walk over each several times.

mod blocks;
mod cross;
mod dcnv2;
mod deepfm;
mod dlrm;
mod ffnn;
mod finalmlp;
mod fusion;
mod layer;
mod linear_term;
mod mixture;
mod pairs;
mod product;
mod stack;
mod streamed;
mod tasks;
mod threads;
mod wide_deep;

use super::layers::UnitDropout;
use super::streamed::TraversalPurpose;
use super::training::MeanLoss;
use super::{DenseNetwork, InputShape, ModelError};
use blocks::SampleBlocks;
use dcnv2::Dcnv2ForwardBackward;
use deepfm::DeepFmForwardBackward;
use dlrm::DlrmForwardBackward;
use ffnn::FfnnForwardBackward;
use finalmlp::FinalMlpForwardBackward;
use layer::StepParts;
pub(super) use streamed::StreamedThreads;
use tasks::TasksForwardBackward;
pub(super) use threads::ComputeThreads;
use wide_deep::WideDeepForwardBackward;

/// Samples per chunk. With fewer, the products copy the weights more often; with more, a chunk leaves the cache.
const CHUNK: usize = 1024;

/// The way of a chunk through one kind of network and back.
trait ChunkStep: std::fmt::Debug + Send {
    /// Reads the changed weights. Call it before each batch.
    fn refresh(&mut self) -> Result<(), ModelError>;

    /// Forward and backward of one chunk. Returns the sum of its losses.
    fn chunk(&mut self, share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError>;
}

#[derive(Debug)]
struct ForwardBackward(Box<dyn ChunkStep>);

/// A share of a batch, all row-major, and where its d loss / d embeddings is written.
#[derive(Debug)]
pub(super) struct BatchShare<'a> {
    pub(super) samples: usize,
    /// `[samples, numeric]`.
    pub(super) numeric: &'a [f32],
    /// `[samples, ΣD]`.
    pub(super) embeddings: &'a [f32],
    /// `[samples, targets]`.
    pub(super) labels: &'a [f32],
    /// `[samples]`; empty if each counts once.
    pub(super) weights: &'a [f32],
    /// `[samples, outputs]`, written.
    pub(super) logits: &'a mut [f32],
    /// `[samples, ΣD]`, written; empty when scoring.
    pub(super) gradients: &'a mut [f32],
}

struct ChunkProgress<'a> {
    /// The mean over the batch.
    mean: MeanLoss<'a>,
    /// Whether earlier chunks of the batch left gradients.
    earlier: bool,
    last: bool,
    blocks: SampleBlocks,
    purpose: TraversalPurpose,
    dropout: &'a mut UnitDropout,
    on_gradients: &'a mut dyn FnMut(usize),
}

impl ChunkProgress<'_> {
    fn ends_at_outputs(&self) -> bool {
        self.purpose == TraversalPurpose::Scoring
    }

    /// The sum of the losses, with their slopes; when scoring, 0, and no slope. The outputs become those that are measured.
    fn loss(&self, outputs: &mut [f32], (labels, weights): (&[f32], &[f32]), slopes: &mut [f32]) -> f64 {
        let MeanLoss { losses, factor } = self.mean;
        if self.ends_at_outputs() {
            losses.finish_outputs(outputs);
            return 0.0;
        }
        let (targets, width) = (losses.target_count(), losses.output_count());
        let rows = outputs.len() / width;
        let of_block = |(start, count): (usize, usize)| {
            let part = |values: usize| start * values..(start + count) * values;
            let weights = if weights.is_empty() { weights } else { &weights[part(1)] };
            let slopes = &mut slopes[part(width)];
            losses.sum_losses(&mut outputs[part(width)], (&labels[part(targets)], weights), factor, slopes)
        };
        self.blocks.row_ranges(rows).map(of_block).sum()
    }

    fn finished(&mut self, weights: usize) {
        if self.last {
            (self.on_gradients)(weights);
        }
    }
}

impl ForwardBackward {
    /// `None` for networks that have only autograd.
    pub(super) fn from_network(
        network: &DenseNetwork,
        shape: &InputShape,
        parts: &mut StepParts<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let numeric = shape.numeric;
        let step: Box<dyn ChunkStep> = match network {
            DenseNetwork::Dlrm(dlrm) => Box::new(DlrmForwardBackward::new(dlrm, parts)?),
            DenseNetwork::Ffnn(ffnn) => Box::new(FfnnForwardBackward::new(ffnn, numeric, parts)?),
            DenseNetwork::Dcnv2(dcnv2) => Box::new(Dcnv2ForwardBackward::new(dcnv2, shape, parts)?),
            DenseNetwork::DeepFm(deepfm) => Box::new(DeepFmForwardBackward::new(deepfm, numeric, parts)?),
            DenseNetwork::WideDeep(wide_deep) => Box::new(WideDeepForwardBackward::new(wide_deep, shape, parts)?),
            DenseNetwork::Tasks(tasks) => match TasksForwardBackward::new(tasks, shape, parts)? {
                Some(step) => Box::new(step),
                None => return Ok(None),
            },
            DenseNetwork::FinalMlp(finalmlp) => match FinalMlpForwardBackward::new(finalmlp, shape, parts)? {
                Some(step) => Box::new(step),
                None => return Ok(None),
            },
            DenseNetwork::Wukong(_) | DenseNetwork::Din(_) | DenseNetwork::Bst(_) | DenseNetwork::TorchScript(_) => {
                return Ok(None);
            }
        };
        Ok(Some(Self(step)))
    }

    /// Forward and backward of a share of a batch, whose loss is `mean`. The gradients of the variables are then this
    /// share's part of those of the batch's mean loss. Returns the sum of the share's losses, nats. Calls `finished` with
    /// the number of weights of each layer, from the last layer to the first, once the layer's gradients are complete.
    pub(super) fn run(
        &mut self,
        mut share: BatchShare<'_>,
        mean: MeanLoss<'_>,
        dropout: &mut UnitDropout,
        finished: &mut dyn FnMut(usize),
    ) -> Result<f64, ModelError> {
        let _no_grad = tch::no_grad_guard();
        self.0.refresh()?;
        let mut loss = 0.0;
        let mut earlier = false;
        while share.samples > 0 {
            let chunk = share.split_off(CHUNK.min(share.samples));
            let (last, blocks, purpose) = (share.samples == 0, SampleBlocks::TRAINING, TraversalPurpose::Training);
            let mut progress = ChunkProgress { mean, earlier, last, blocks, purpose, dropout, on_gradients: finished };
            loss += self.0.chunk(chunk, &mut progress)?;
            earlier = true;
        }
        Ok(loss)
    }
}

impl<'a> BatchShare<'a> {
    /// Removes the first `count` samples and returns them.
    pub(super) fn split_off(&mut self, count: usize) -> Self {
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

#[cfg(test)]
mod tests;
