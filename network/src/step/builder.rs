//! What blocks get when a step is made: their layers, in the order of the tensors.

use super::layers::HeldLayer;
use crate::ProductKernel;
use crate::wiring::NetworkInputs;

/// What a step is made for.
#[derive(Clone, Copy)]
pub struct StepForm<'a> {
    /// The most samples of a chunk.
    pub rows: usize,
    /// The layers in the order of the weights.
    pub layers: &'a [HeldLayer],
    /// Whether layers come and go, so that nothing as large as a layer may stay.
    pub is_streamed: bool,
    /// Whether a stack keeps some outputs only, and computes the others again.
    pub recomputes: bool,
    /// Whether hidden layers have products in bf16.
    pub rounds: bool,
    pub kernel: &'a dyn ProductKernel,
}

/// Gives blocks their layers.
pub(super) struct StepBuilder<'a> {
    pub(super) form: StepForm<'a>,
    pub(super) inputs: &'a NetworkInputs,
    next: usize,
    /// Layers with dropout so far.
    dropouts: usize,
}

/// A layer, or a slice of its outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerSlice {
    pub(super) layer: usize,
    pub(super) start: usize,
    pub(super) outputs: usize,
}

impl<'a> StepBuilder<'a> {
    pub(super) fn new(form: StepForm<'a>, inputs: &'a NetworkInputs) -> Self {
        Self { form, inputs, next: 0, dropouts: 0 }
    }

    /// The next layer, in the order of the tensors.
    pub(super) fn next_layer(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn next_dropout(&mut self) -> usize {
        self.dropouts += 1;
        self.dropouts - 1
    }

    /// The slices of the next layer, whose weight is `[outputs, inputs]`. The last one has the bias.
    pub(super) fn next_slices(&mut self, outputs: usize, inputs: usize) -> Vec<LayerSlice> {
        let (mut slices, mut start) = (Vec::new(), 0);
        while start < outputs {
            let layer = self.next_layer();
            let held = self.form.layers.get(layer).map_or(outputs, |held| held.first / inputs.max(1));
            let count = held.clamp(1, outputs - start);
            slices.push(LayerSlice { layer, start, outputs: count });
            start += count;
        }
        slices
    }

    /// The length of the segments of a stack of so many layers: one layer of each keeps its output. About as many segments as layers in
    /// a segment take the least memory.
    pub(super) fn segment_length(&self, layers: usize) -> usize {
        if self.form.recomputes { layers.isqrt().max(1) } else { 1 }
    }
}
