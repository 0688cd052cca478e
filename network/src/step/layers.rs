//! The weights of layers, which a step uses one after another, and their gradients.

use std::ops::Range;

use crate::StepError;

/// A layer as a step uses it: the tensors that are used together, or a slice of a layer's outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLayer {
    /// Weights of its first tensor.
    pub first: usize,
    /// Where its weights are among all.
    pub range: Range<usize>,
}

/// Where a step finds the weights of layers, and leaves their gradients. Every step uses the layers in the same order.
pub trait LayerAccess {
    /// Before the layer's part of a forward. Waits for its weights.
    ///
    /// # Errors
    /// As all others: when the weights do not come, or the gradients cannot be given away.
    fn begin_forward(&mut self, layer: usize) -> Result<(), StepError>;

    /// After the layer's part of a forward.
    ///
    /// # Errors
    /// When the layer is not here.
    fn end_forward(&mut self, layer: usize) -> Result<(), StepError>;

    /// Before the layer's part of a backward. Waits for its weights. Its gradients are those of earlier chunks, or anything.
    ///
    /// # Errors
    /// When the weights do not come.
    fn begin_backward(&mut self, layer: usize) -> Result<(), StepError>;

    /// The gradients of the layer are those of the whole batch.
    fn note_final(&mut self, layer: usize);

    /// After the layer's part of a backward.
    ///
    /// # Errors
    /// When the gradients cannot be given away.
    fn end_backward(&mut self, layer: usize) -> Result<(), StepError>;

    /// Between begin and end.
    fn weights(&self, layer: usize) -> &[f32];

    /// Weights, and the gradients to be written. Within a backward.
    fn gradients(&mut self, layer: usize) -> (&[f32], &mut [f32]);
}

/// Layers that are all here.
pub struct FlatLayers<'a> {
    pub layers: &'a [HeldLayer],
    pub weights: &'a [f32],
    pub gradients: &'a mut [f32],
    /// Called with a weight, and the final gradients from that weight on: from the last layer to the first.
    pub on_final: &'a mut dyn FnMut(usize, &[f32]),
}

impl LayerAccess for FlatLayers<'_> {
    fn begin_forward(&mut self, _: usize) -> Result<(), StepError> {
        Ok(())
    }

    fn end_forward(&mut self, _: usize) -> Result<(), StepError> {
        Ok(())
    }

    fn begin_backward(&mut self, _: usize) -> Result<(), StepError> {
        Ok(())
    }

    fn note_final(&mut self, layer: usize) {
        let start = self.layers[layer].range.start;
        (self.on_final)(start, &self.gradients[start..]);
    }

    fn end_backward(&mut self, _: usize) -> Result<(), StepError> {
        Ok(())
    }

    fn weights(&self, layer: usize) -> &[f32] {
        &self.weights[self.layers[layer].range.clone()]
    }

    fn gradients(&mut self, layer: usize) -> (&[f32], &mut [f32]) {
        let range = self.layers[layer].range.clone();
        (&self.weights[range.clone()], &mut self.gradients[range])
    }
}
