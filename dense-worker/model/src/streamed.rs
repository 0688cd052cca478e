//! Weights that are elsewhere: a window of layers that are here, and the exchange of their gradients.

mod layer_values;
mod window;

use std::sync::Arc;

use crate::ModelResult;

pub use layer_values::LayerValues;
pub use window::{GradientLimit, LayerStore, LayerWindow, PendingLayer, UseNumber};
pub use zagros_network::TraversalPurpose;

/// A worker's part in the steps of all workers: what it tells the servers besides the gradients of layers.
#[derive(Debug)]
pub(crate) struct StreamedExchange {
    pub(crate) window: Arc<LayerWindow>,
    /// Factor of this worker's gradients in the sum of all workers.
    pub(crate) share: f32,
    /// The sum of the squares of the last step's gradients that this worker pushed, where they wait for a commit. Then that of all
    /// workers takes its place.
    pub(crate) squares: f64,
}

impl StreamedExchange {
    pub(crate) fn new(window: Arc<LayerWindow>) -> Self {
        Self { window, share: 1.0, squares: 0.0 }
    }

    /// Before a forward and a backward at a step, by so many threads.
    pub(crate) fn start_step(&self, step: u64, threads: usize) {
        self.window.start(TraversalPurpose::Training, (step, self.share), threads);
    }

    /// After them: waits for the sums of all workers.
    pub(crate) fn end_step(&mut self) -> ModelResult {
        self.squares = self.window.store.summed()?;
        Ok(())
    }
}
