//! The step without autograd. A batch goes through the blocks of a network and back in chunks that stay in cache. Every step uses the
//! same memory.
//!
//! A library makes the matrix products ([`crate::ProductKernel`]). Bias, ReLU, interactions and the loss are loops of this crate.
//! Autograd would allocate, clear and page in every activation again, and walk over each several times.
//!
//! ```text
//! forward    block 2 ─► block 3 ─► … ─► outputs ─► loss
//! backward   block 2 ◄─ block 3 ◄─ … ◄─ slopes of the outputs
//! ```
//!
//! The first reader of a value in the backward writes its slopes, and the others add theirs: in the order in which autograd would.

mod build;
mod cross;
mod factors;
mod fusion;
mod join;
mod layers;
mod mixture;
mod pairs;
mod product;
mod share;
mod stack;

use layers::StepBuilder;
pub use layers::{FlatLayers, HeldLayer, LayerAccess, StepForm};
pub use product::CHUNK;
pub use share::{BatchShare, OutputLoss};

use crate::matrix::{AlignedValues, Matrix, View, ViewMut};
use crate::wiring::Value;
use crate::{ProductKernel, StepResult, UnitDropout};

/// Number of the block of numeric values, and of that of feature vectors.
const NUMBERS: usize = 0;
const VECTORS: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraversalPurpose {
    /// Forward, loss and backward.
    Training,
    /// Forward alone: the outputs are written, and no gradient.
    Scoring,
}

/// The way of a chunk through a network and back, with memory for it.
#[derive(Debug)]
pub struct Step {
    values: Vec<BlockValues>,
    /// `None` where a block has nothing to do.
    blocks: Vec<Option<Box<dyn BlockStep>>>,
    output: usize,
    /// Whether slopes of vectors are added to zeros.
    clears_vectors: bool,
    scratch: [AlignedValues; 2],
}

/// What a block gives, and its slopes: d loss / d output.
#[derive(Debug, Default)]
struct BlockValues {
    /// `[rows, width]`.
    output: Matrix,
    /// Perhaps of the last columns alone.
    slopes: Matrix,
}

/// A chunk's way through one block, and back.
trait BlockStep: std::fmt::Debug + Send {
    /// Reads the changed weights. Call it before each batch.
    fn refresh(&mut self, _layers: &dyn LayerAccess) -> StepResult {
        Ok(())
    }

    /// Writes the output from those of the blocks before.
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, context: &mut StepChunk<'_>) -> StepResult;

    /// From the slopes of the output to those of what it reads. Adds the gradients of weights to those of earlier chunks.
    fn backward(
        &mut self,
        before: &mut [BlockValues],
        own: &mut BlockValues,
        context: &mut StepChunk<'_>,
    ) -> StepResult;
}

/// What a backward does with the slopes of what a block reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlopeUse {
    /// They are of no use.
    Unread,
    Written,
    /// They are added, as others read the value as well.
    Added,
}

#[derive(Clone, Copy, Debug)]
struct ReadValue {
    value: Value,
    slopes: SlopeUse,
}

struct StepChunk<'a> {
    rows: usize,
    numbers: &'a [f32],
    vectors: &'a [f32],
    d_vectors: &'a mut [f32],
    /// Whether earlier chunks of the batch left gradients.
    earlier: bool,
    last: bool,
    dropout: &'a mut UnitDropout,
    layers: &'a mut dyn LayerAccess,
    kernel: &'a dyn ProductKernel,
    scratch: &'a mut [AlignedValues; 2],
}

/// How a share of a batch is taken through a network.
pub struct Traversal<'a> {
    pub purpose: TraversalPurpose,
    /// Samples of a chunk: all of the share, or so few that they stay in cache.
    pub chunk: usize,
    pub loss: &'a dyn OutputLoss,
    /// Factor of a sample of weight 1 in the mean loss.
    pub factor: f32,
    pub kernel: &'a dyn ProductKernel,
}

impl Step {
    /// Reads the changed weights, where the products have copies of them. Call it before each batch.
    pub fn refresh(&mut self, layers: &dyn LayerAccess) -> StepResult {
        self.blocks.iter_mut().flatten().try_for_each(|block| block.refresh(layers))
    }

    /// Forward and backward of a share of a batch. The gradients are then this share's part of those of the batch's mean loss. Returns
    /// the sum of the share's losses, nats.
    pub fn run(
        &mut self,
        mut share: BatchShare<'_>,
        traversal: &Traversal<'_>,
        dropout: &mut UnitDropout,
        layers: &mut dyn LayerAccess,
    ) -> StepResult<f64> {
        let (mut loss, mut earlier) = (0.0, false);
        while share.samples > 0 {
            let mut chunk = share.split_off(traversal.chunk.min(share.samples));
            let last = share.samples == 0;
            let mut context = StepChunk {
                rows: chunk.samples,
                numbers: chunk.numeric,
                vectors: chunk.embeddings,
                d_vectors: std::mem::take(&mut chunk.gradients),
                earlier,
                last,
                dropout: &mut *dropout,
                layers: &mut *layers,
                kernel: traversal.kernel,
                scratch: &mut self.scratch,
            };
            let blocks = &mut BlockChain { values: &mut self.values, steps: &mut self.blocks };
            loss += blocks.run_chunk((self.output, self.clears_vectors), &mut chunk, traversal, &mut context)?;
            earlier = true;
        }
        Ok(loss)
    }
}

/// Blocks one after another, and what each gives.
struct BlockChain<'a> {
    values: &'a mut [BlockValues],
    steps: &'a mut [Option<Box<dyn BlockStep>>],
}

impl BlockChain<'_> {
    fn run_chunk(
        &mut self,
        (output, clears_vectors): (usize, bool),
        chunk: &mut BatchShare<'_>,
        traversal: &Traversal<'_>,
        context: &mut StepChunk<'_>,
    ) -> StepResult<f64> {
        let Self { values, steps } = self;
        for (index, step) in steps.iter_mut().enumerate() {
            let (before, rest) = values.split_at_mut(index);
            step.as_mut().map_or(Ok(()), |step| step.forward(before, &mut rest[0], context))?;
        }
        let BlockValues { output: made, slopes } = &mut values[output];
        chunk.logits.copy_from_slice(made.values(context.rows));
        if traversal.purpose == TraversalPurpose::Scoring {
            traversal.loss.finish_outputs(chunk.logits);
            return Ok(0.0);
        }
        let loss = chunk.sum_losses(traversal, slopes.values_mut(context.rows));
        if clears_vectors {
            context.d_vectors.fill(0.0);
        }
        for (index, step) in steps.iter_mut().enumerate().rev() {
            let (before, rest) = values.split_at_mut(index);
            step.as_mut().map_or(Ok(()), |step| step.backward(before, &mut rest[0], context))?;
        }
        Ok(loss)
    }
}

impl SlopeUse {
    /// Of a reader in the backward. The first one that wants them writes them.
    fn of_reader(is_wanted: bool, is_written: bool) -> Self {
        match (is_wanted, is_written) {
            (false, _) => Self::Unread,
            (true, false) => Self::Written,
            (true, true) => Self::Added,
        }
    }

    /// Where the slopes go, and whether they are added.
    fn place(self, slopes: &mut Matrix, rows: usize) -> Option<(ViewMut<'_>, bool)> {
        (self != Self::Unread).then(|| (slopes.view_mut(rows), self == Self::Added))
    }
}

impl ReadValue {
    fn block(&self) -> usize {
        self.value.block
    }

    /// `[rows, width]`.
    fn view<'v>(&self, before: &'v [BlockValues], rows: usize) -> View<'v> {
        before[self.block()].output.view(rows)
    }

    /// Where its slopes go, and whether they are added; `None` if they are of no use.
    fn slopes<'v>(&self, before: &'v mut [BlockValues], rows: usize) -> Option<(ViewMut<'v>, bool)> {
        self.slopes.place(&mut before[self.block()].slopes, rows)
    }

    /// Calls `work` with the value, and with where its slopes go.
    fn with_slopes<T>(
        &self,
        before: &mut [BlockValues],
        rows: usize,
        work: impl FnOnce(View<'_>, Option<(ViewMut<'_>, bool)>) -> T,
    ) -> T {
        let BlockValues { output, slopes } = &mut before[self.block()];
        work(output.view(rows), self.slopes.place(slopes, rows))
    }
}

impl StepChunk<'_> {
    /// The gradients of a layer are those of this chunk and all before.
    fn note_final(&mut self, layer: usize) {
        if self.last {
            self.layers.note_final(layer);
        }
    }
}

#[cfg(test)]
mod tests;
