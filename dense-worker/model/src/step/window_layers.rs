//! The layers of a step whose weights are elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use zagros_network::{LayerAccess, StepError};

use crate::streamed::{LayerWindow, UseNumber};
use crate::{LayerValues, ModelError};

/// The layers of a thread, which are here only while they are used.
pub(super) struct WindowLayers<'a> {
    window: &'a LayerWindow,
    thread: usize,
    /// By layer: those in use.
    present: BTreeMap<usize, PresentLayer>,
}

struct PresentLayer {
    number: UseNumber,
    weights: Arc<LayerValues>,
    /// Within a backward.
    gradients: Option<LayerValues>,
}

impl<'a> WindowLayers<'a> {
    pub(super) fn new(window: &'a LayerWindow, thread: usize) -> Self {
        Self { window, thread, present: BTreeMap::new() }
    }

    fn begin(&mut self, layer: usize, gradients: Option<LayerValues>) -> Result<(), StepError> {
        let (number, weights) = self.window.begin_use(self.thread, layer).map_err(lost)?;
        self.present.insert(layer, PresentLayer { number, weights, gradients });
        Ok(())
    }

    fn end(&mut self, layer: usize) -> Result<Option<LayerValues>, StepError> {
        let PresentLayer { number, weights, gradients } =
            self.present.remove(&layer).ok_or_else(|| lost(ModelError::Thread))?;
        drop(weights);
        self.window.end_use(number).map_err(lost)?;
        Ok(gradients)
    }
}

fn lost(error: ModelError) -> StepError {
    StepError::Layer(Box::new(error))
}

impl LayerAccess for WindowLayers<'_> {
    fn begin_forward(&mut self, layer: usize) -> Result<(), StepError> {
        self.begin(layer, None)
    }

    fn end_forward(&mut self, layer: usize) -> Result<(), StepError> {
        self.end(layer).map(drop)
    }

    fn begin_backward(&mut self, layer: usize) -> Result<(), StepError> {
        self.begin(layer, Some(self.window.layer_memory(layer)))
    }

    fn end_backward(&mut self, layer: usize) -> Result<(), StepError> {
        match self.end(layer)? {
            Some(gradients) => self.window.give_gradients(self.thread, layer, gradients).map_err(lost),
            None => Ok(()),
        }
    }

    fn weights(&self, layer: usize) -> &[f32] {
        self.present.get(&layer).map_or(&[], |present| &present.weights)
    }

    fn gradients(&mut self, layer: usize) -> (&[f32], &mut [f32]) {
        match self.present.get_mut(&layer) {
            Some(PresentLayer { weights, gradients: Some(gradients), .. }) => (weights, gradients),
            Some(_) | None => (&[], &mut []),
        }
    }
}
