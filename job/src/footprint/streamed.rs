//! The memory of a network whose weights are streamed: of the worker that holds two layers, and of the servers that
//! hold all. `scripts/memory_peaks.py --streamed` compares the sums with the peak of real runs.

use zagros_table::optimizer::dense::Staging;

use super::{LINE, VALUE, aligned_values, largest, outputs, weights};
use crate::settings::{DenseLayout, DenseTensor, Job, Model};

/// Samples that go through a layer together are made up to a multiple of so many.
const BLOCK: u64 = 256;
/// The fewest samples for which a step takes one more thread.
const LEAST: u64 = 64;
/// Bytes of a layer that are under way at once: four requests of 16 tiles.
const UNDER_WAY: u64 = 16 << 20;
/// Copies of them in a worker: of a pull and of a push, as values and as bytes, and in the buffers of connections.
const WORKER_COPIES: u64 = 6;
const SERVER_COPIES: u64 = 18;

/// Freed memory that the allocator keeps for each further thread of a step, at most: the size of its heaps.
const HEAP: u64 = 64 << 20;
const LARGEST_KEPT: u64 = 32 << 20;
/// What libtorch's autograd and its library of products keep, whatever the network.
const AUTOGRAD: u64 = 40 << 20;
/// Pieces as large as the largest layer that a thread frees.
const FREED: u64 = 12;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamedFootprint {
    /// In a worker: the weights of two layers, or of two slices of layers, and their gradients for each thread of a step.
    pub layers: u64,
    /// In a worker: values of all layers for its batch, and slopes.
    pub activations: u64,
    pub messages: u64,
    kept: u64,
    pub server_messages: u64,
    /// In all servers together: weights and optimiser state, and staged gradients where a step may be clipped or given up as a whole.
    pub store: u64,
}

impl StreamedFootprint {
    pub fn worker_bytes(&self) -> u64 {
        self.layers + self.activations + self.messages + self.kept
    }
}

impl Job {
    /// The memory with streamed weights; `None` for a user's module.
    pub fn streamed_footprint(&self) -> Option<StreamedFootprint> {
        let kept = if self.recomputes_outputs() { KeptOutputs::OfSegments } else { KeptOutputs::All };
        self.streamed_footprint_keeping(kept)
    }

    /// A streamed step whose outputs of all layers are beyond `train.memory` keeps some and computes the others again.
    pub fn recomputes_outputs(&self) -> bool {
        let needed = || self.streamed_footprint_keeping(KeptOutputs::All).map_or(0, |all| all.worker_bytes());
        !self.is_by_autograd() && self.train.memory.is_some_and(|memory| needed() > memory)
    }

    fn streamed_footprint_keeping(&self, outputs: KeptOutputs) -> Option<StreamedFootprint> {
        let layout = self.dense_layout()?;
        if self.is_by_autograd() {
            return self.streamed_footprint_by_layer(&layout);
        }
        let threads = self.train.threads.max(1) as u64;
        let shape = |tensor: &DenseTensor| [tensor.outputs.size, tensor.inputs.size];
        let matrices = self.worker_matrices().unwrap_or_else(|| weights(&layout).map(shape).collect());
        let sizes: Vec<u64> = matrices.iter().map(|[outputs, inputs]| outputs * inputs).collect();
        let largest_layer = VALUE * largest(sizes.iter().copied());
        let under_way = largest_layer.min(UNDER_WAY);
        let kept = if largest_layer > LARGEST_KEPT { 0 } else { (FREED * largest_layer).min(HEAP) };
        let layers = (1 + threads) * largest_pair(&sizes) + threads * largest(matrices.iter().map(aligned_values));
        let values = self.rows_of_thread(threads) * self.values_of_sample(&layout, outputs);
        Some(StreamedFootprint {
            layers: VALUE * layers,
            activations: VALUE * threads * values,
            messages: WORKER_COPIES * under_way,
            kept: (threads - 1) * kept,
            server_messages: SERVER_COPIES * under_way,
            store: self.store_bytes(&layout),
        })
    }

    /// Where autograd makes the step, on all threads together. It makes the gradient of a layer before that is copied for its push.
    fn streamed_footprint_by_layer(&self, layout: &DenseLayout) -> Option<StreamedFootprint> {
        let sizes: Vec<u64> = self.dense_layers()?.iter().map(|layer| layer.weight_count() as u64).collect();
        let largest_layer = VALUE * largest(sizes.iter().copied());
        Some(StreamedFootprint {
            layers: 2 * VALUE * largest_pair(&sizes) + largest_layer,
            activations: VALUE * self.train.batch_size as u64 * self.values_by_layer(layout),
            messages: WORKER_COPIES * largest_layer.min(UNDER_WAY),
            kept: AUTOGRAD,
            server_messages: SERVER_COPIES * largest_layer.min(UNDER_WAY),
            store: self.store_bytes(layout),
        })
    }

    fn store_bytes(&self, layout: &DenseLayout) -> u64 {
        let values = 1 + self.state_values() + u64::from(self.gradient_staging() != Staging::None);
        VALUE * values * layout.parameter_count()
    }

    /// The most samples of a thread, with those that fill its last block.
    fn rows_of_thread(&self, threads: u64) -> u64 {
        let batch = self.train.batch_size as u64;
        batch.div_ceil(threads).max(batch.min(LEAST)).next_multiple_of(BLOCK)
    }

    /// Outputs of each layer, slopes of the last layer of each stack and of two more, and the widest other input with
    /// its slopes.
    fn values_of_sample(&self, layout: &DenseLayout, kept: KeptOutputs) -> u64 {
        // The products of two streams are never there.
        let read = weights(layout).filter(|tensor| tensor.inputs.power < 2);
        let shapes: Vec<[u64; 2]> = read.map(|tensor| [tensor.inputs.size, tensor.outputs.size]).collect();
        let ends = || shapes.windows(2).filter(|pair| pair[1][0] != pair[0][1]);
        let inputs = shapes.first().map(|first| first[0]).into_iter().chain(ends().map(|pair| pair[1][0]));
        let last = ends().map(|pair| pair[0][1]).chain(shapes.last().map(|last| last[1]));
        let slopes = last.sum::<u64>() + 2 * largest(outputs(layout));
        let dropped = u64::from(self.model.dropout_share() > 0.0);
        let all = outputs(layout).sum::<u64>();
        let outputs = match kept {
            KeptOutputs::All => all,
            KeptOutputs::OfSegments => {
                let stacks = shapes.chunk_by(|before, after| before[1] == after[0]);
                stacks.map(|stack| outputs_of_segments(&stack.iter().map(|shape| shape[1]).collect::<Vec<_>>())).sum()
            }
        };
        // A cross layer keeps its sum and its product, whatever the memory; and there are two slopes for all.
        let crossed =
            || weights(layout).filter(|tensor| tensor.name.starts_with("cross")).map(|tensor| tensor.outputs.size);
        let cross = crossed().sum::<u64>() + 2 * largest(crossed());
        let fused = self.values_of_fusion();
        outputs + dropped * all + slopes + cross + fused + 2 * largest(inputs).next_multiple_of(LINE)
    }

    /// Of the end of a FinalMLP: the second stream's outputs as each head's matrix takes them to the first, and slopes of one head's.
    fn values_of_fusion(&self) -> u64 {
        let Model::FinalMlp { second, heads, .. } = &self.model else { return 0 };
        let width = second.last().map_or(0, |width| width.unsigned_abs());
        width + width / (*heads as u64).max(1)
    }
}

/// The most weights of two layers that follow each other. A first layer has no layer before it.
fn largest_pair(sizes: &[u64]) -> u64 {
    largest(sizes.windows(2).map(|pair| pair[0] + pair[1]).chain(sizes.first().copied()))
}

#[derive(Clone, Copy, Debug)]
enum KeptOutputs {
    All,
    OfSegments,
}

/// Outputs of the last layers of segments, and memory for those between, of a stack with these widths.
fn outputs_of_segments(widths: &[u64]) -> u64 {
    let segment = widths.len().isqrt().max(1);
    let is_kept = |index: usize| index % segment == segment - 1 || index + 1 == widths.len();
    let kept = widths.iter().enumerate().filter(|(index, _)| is_kept(*index)).map(|(_, width)| width);
    kept.sum::<u64>() + (segment as u64 - 1) * largest(widths.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, job};

    const FFNN: &str = "[model]\nkind = 'ffnn'\nhidden = [64, 32]\n";

    fn footprint(text: &str) -> StreamedFootprint {
        job(CRITEO, &format!("{FFNN}{text}")).streamed_footprint().unwrap()
    }

    #[test]
    fn a_worker_holds_two_layers_and_the_servers_all() {
        let adam = footprint("[train]\nthreads = 1\n");
        // The first two layers, and a copy of the first one's gradient with rows of 432.
        assert_eq!(adam.layers, 4 * (2 * (429 * 64 + 64 * 32) + 64 * 432));
        assert_eq!((adam.messages, adam.server_messages), (6 * 4 * 429 * 64, 18 * 4 * 429 * 64));
        let weights = 429 * 64 + 64 + 64 * 32 + 32 + 33;
        assert_eq!(adam.store, 12 * weights);
        assert_eq!(footprint("[train]\nclip_norm = 1\n").store, 16 * weights);
        assert_eq!(footprint("[optimizer]\nkind = 'sgd'\n").store, 4 * weights);
        let two = footprint("[train]\nthreads = 2\n");
        assert_eq!(two.layers, 4 * (3 * (429 * 64 + 64 * 32) + 2 * 64 * 432));
        assert_eq!(adam.worker_bytes(), adam.layers + adam.activations + adam.messages);
        assert_eq!(two.worker_bytes(), two.layers + two.activations + two.messages + 12 * 4 * 429 * 64);
    }

    #[test]
    fn cross_layers_keep_two_values_for_each_output() {
        let activations = |layers: u64| {
            let text =
                format!("[model]\nkind = 'dcnv2'\ncross_layers = {layers}\nhidden = [8]\n[train]\nthreads = 1\n");
            job(CRITEO, &format!("{text}batch_size = 256\n")).streamed_footprint().unwrap().activations
        };
        assert_eq!(activations(4) - activations(3), 4 * 256 * 2 * 429);
    }

    #[test]
    fn a_worker_that_lacks_memory_keeps_fewer_outputs() {
        // Segments of two of the four layers: one output of each is kept, one memory is for the others.
        assert_eq!(outputs_of_segments(&[64, 32, 16, 1]), 32 + 1 + 64);
        assert_eq!(outputs_of_segments(&[7]), 7);
        const ROWS: u64 = 256;
        let deep = |train: &str| {
            let text = format!("[model]\nkind = 'ffnn'\nhidden = [64, 64, 64, 64, 64, 64, 64, 64]\n[train]\n{train}");
            job(CRITEO, &format!("{text}threads = 1\nbatch_size = {ROWS}\nweights = 'streamed'\n"))
        };
        let kept = deep("").streamed_footprint().unwrap();
        let (enough, short) = (kept.worker_bytes(), kept.worker_bytes() - 1);
        let enough = deep(&format!("memory = '{enough}'\n"));
        assert!(!enough.recomputes_outputs() && enough.streamed_footprint() == Some(kept));
        let short = deep(&format!("memory = '{short}'\n"));
        assert!(short.recomputes_outputs());
        let fewer = short.streamed_footprint().unwrap();
        // Of nine outputs the third, the sixth and the last, and memory for two.
        assert_eq!(kept.activations - fewer.activations, 4 * ROWS * (8 * 64 + 1 - (2 * 64 + 1 + 2 * 64)));
        assert_eq!((fewer.layers, fewer.store), (kept.layers, kept.store));
    }

    /// Autograd's step has one share of the batch, and keeps all outputs.
    #[test]
    fn a_step_by_autograd_holds_two_layers_and_a_gradient() {
        let text = "[mlp]\nactivation = 'gelu'\n[train]\nweights = 'streamed'\nbatch_size = 100\n";
        let [one, two] = [1, 2].map(|threads| footprint(&format!("{text}threads = {threads}\n")));
        let sizes = [429 * 64 + 64, 64 * 32 + 32];
        assert_eq!(one.layers, 4 * (2 * (sizes[0] + sizes[1]) + sizes[0]));
        assert_eq!((one.store, one), (12 * (sizes[0] + sizes[1] + 33), two));
        assert_eq!(one.activations % (4 * 100), 0);
        assert!(!job(CRITEO, &format!("{FFNN}{text}memory = '64KiB'\n")).recomputes_outputs());
    }

    #[test]
    fn a_worker_that_lacks_memory_for_two_layers_holds_slices() {
        let wide = |train: &str| {
            let text =
                format!("[model]\nkind = 'ffnn'\nhidden = [512, 1024, 1024]\n[train]\nweights = 'streamed'\n{train}");
            job(CRITEO, &format!("{text}threads = 1\nbatch_size = 256\n"))
        };
        let whole = wide("").streamed_footprint().unwrap();
        assert_eq!(whole.layers, 4 * (2 * (512 * 1024 + 1024 * 1024) + 512 * 432));
        // A slice of at most 2^18 weights, of which five take half of the memory.
        let cut = wide(&format!("memory = '{}'\n", 2 * 5 * 4 * (1 << 18))).streamed_footprint().unwrap();
        assert_eq!(cut.layers, 4 * (2 * 2 * (1 << 18) + 512 * 432));
        assert_eq!((cut.store, cut.messages), (whole.store, 6 * 4 * (1 << 18)));
    }

    #[test]
    fn values_of_a_batch_are_made_up_to_blocks() {
        let values = 4 * (97 + (1 + 2 * 64) + 2 * 432);
        let activations = |batch: u64, threads: u64| {
            footprint(&format!("[train]\nbatch_size = {batch}\nthreads = {threads}\n")).activations / values
        };
        assert_eq!([1, 256, 257].map(|batch| activations(batch, 1)), [256, 256, 512]);
        // Each thread has blocks of its own.
        assert_eq!([activations(300, 2), activations(1000, 3)], [512, 3 * 512]);
    }
}
