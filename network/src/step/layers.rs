//! The layers that a step uses one after another: their weights and gradients, and which block has which.

use std::ops::Range;

use crate::wiring::NetworkInputs;
use crate::{ProductKernel, StepResult};

/// A layer as a step uses it: the tensors that are used together, or a slice of a layer's outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLayer {
    /// Weights of its first tensor.
    pub first: usize,
    pub range: Range<usize>,
}

/// Where a step finds the weights of layers, and leaves their gradients. Every step uses the layers in the same order. Layers that are
/// always here neither begin nor end.
pub trait LayerAccess {
    /// Before the layer's part of a forward. Waits for its weights.
    fn begin_forward(&mut self, _layer: usize) -> StepResult {
        Ok(())
    }

    /// After the layer's part of a forward.
    fn end_forward(&mut self, _layer: usize) -> StepResult {
        Ok(())
    }

    /// Before the layer's part of a backward. Waits for its weights. Its gradients are those of earlier chunks, or anything.
    fn begin_backward(&mut self, _layer: usize) -> StepResult {
        Ok(())
    }

    /// The gradients of the layer are those of the whole batch.
    fn note_final(&mut self, _layer: usize) {}

    /// After the layer's part of a backward.
    fn end_backward(&mut self, _layer: usize) -> StepResult {
        Ok(())
    }

    /// Between begin and end.
    fn weights(&self, layer: usize) -> &[f32];

    /// Weights, and the gradients to be written. Within a backward.
    fn gradients(&mut self, layer: usize) -> (&[f32], &mut [f32]);
}

pub struct FlatLayers<'a> {
    pub layers: &'a [HeldLayer],
    pub weights: &'a [f32],
    pub gradients: &'a mut [f32],
    /// Called with a weight, and the final gradients from that weight on: from the last layer to the first.
    pub on_final: &'a mut dyn FnMut(usize, &[f32]),
}

impl LayerAccess for FlatLayers<'_> {
    fn note_final(&mut self, layer: usize) {
        let start = self.layers[layer].range.start;
        (self.on_final)(start, &self.gradients[start..]);
    }

    fn weights(&self, layer: usize) -> &[f32] {
        &self.weights[self.layers[layer].range.clone()]
    }

    fn gradients(&mut self, layer: usize) -> (&[f32], &mut [f32]) {
        let range = self.layers[layer].range.clone();
        (&self.weights[range.clone()], &mut self.gradients[range])
    }
}

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
