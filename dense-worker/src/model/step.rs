//! The step without autograd ([`zagros_network::Step`]), on weights that are here or come layer by layer, with libtorch's products.

mod kernel;
mod streamed;
mod threads;

pub(super) use streamed::StreamedThreads;
pub(super) use threads::ComputeThreads;

use zagros_job::{Precision, StreamedLayer};
use zagros_network::{HeldLayer, StepForm};

use kernel::TorchKernel;

/// The layers that a step uses one after another.
fn held_layers(layers: &[StreamedLayer]) -> Vec<HeldLayer> {
    let held = |layer: &StreamedLayer| {
        let ranges = layer.tensors.iter().map(|tensor| &tensor.segment.range);
        let (start, end) = (ranges.clone().map(|range| range.start).min(), ranges.clone().map(|range| range.end).max());
        let first = ranges.clone().next().map_or(0, std::ops::Range::len);
        HeldLayer { first, range: start.unwrap_or(0)..end.unwrap_or(0) }
    };
    layers.iter().map(held).collect()
}

fn step_form(layers: &[HeldLayer], rows: usize, precision: Precision) -> StepForm<'_> {
    let rounds = precision == Precision::Bf16;
    StepForm { rows, layers, is_streamed: false, recomputes: false, rounds, kernel: &TorchKernel }
}

#[cfg(test)]
mod tests;
