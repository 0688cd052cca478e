//! The step without autograd ([`zagros_network::Step`]), on weights that are here or come layer by layer.

mod threads;
mod window_layers;

pub(super) use threads::StepThreads;

use zagros_job::{Job, StreamedLayer};
use zagros_network::{HeldLayer, Step, StepForm};

use crate::{ModelError, ModelResult};

/// Samples that are scored together. With fewer, the weights are read more often.
pub const BLOCK: usize = 256;

/// The size of the batches that are scored: `batch`, made up to whole blocks.
pub fn batch_of_blocks(batch: usize) -> usize {
    batch.max(1).next_multiple_of(BLOCK)
}

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

fn make_step(job: &Job, form: StepForm<'_>) -> ModelResult<Step> {
    let network = job.network().ok_or(ModelError::Shape { what: "the network has no blocks" })?;
    Step::new(&network, form)?.ok_or(ModelError::Shape { what: "a block of the network has no backward of its own" })
}
