//! The threads of a step: each takes a share of the batch, and then a share of adding up the gradients.

use std::sync::Arc;

use zagros_job::{Job, Precision};
use zagros_network::{
    AlignedValues, BatchShare, CHUNK, DotsKernel, FlatLayers, HeldLayer, OutputLoss, ProductKernel, Step, StepForm,
    Traversal, TraversalPurpose, UnitDropout,
};
use zagros_zip::{ZipEq, number_from};

use super::window_layers::WindowLayers;
use super::{BLOCK, held_layers, make_step};
use crate::streamed::LayerWindow;
use crate::training::{MeanLoss, TargetLosses, mean_over};
use crate::{FinalGradients, ModelError, ModelResult};

/// The fewest samples for a thread: waking it takes as long as a few samples.
const LEAST: usize = 64;

/// Threads that make one step together. No share waits for another, so the threads meet twice per step, not in every
/// product. The result of a step depends on their number by rounding (and dropout), and on nothing else of them.
#[derive(Debug)]
pub(crate) struct StepThreads {
    pub(crate) kernel: &'static dyn ProductKernel,
    place: LayerPlace,
    /// The first one is the caller's. Each other one has gradients of its own, unless the weights are elsewhere.
    threads: Vec<(StepThread, AlignedValues)>,
    /// The most samples that are scored at once.
    most: usize,
}

#[derive(Debug)]
enum LayerPlace {
    /// All are here: a thread takes its samples in chunks, each through all layers.
    Here(Vec<HeldLayer>),
    /// They are elsewhere: all samples of a thread go through a layer before the next one, so that a layer's weights come twice per
    /// step, for the forward and for the backward. The products are those of a resident network, so the results have the same bits.
    Window(Arc<LayerWindow>),
}

#[derive(Debug)]
struct StepThread {
    step: Step,
    /// Scores with products in bf16. In f32, the training's step does.
    scorer: Option<Step>,
    dropout: UnitDropout,
}

/// What all threads do.
#[derive(Clone, Copy)]
struct ThreadWork<'a> {
    place: &'a LayerPlace,
    kernel: &'a dyn ProductKernel,
    purpose: TraversalPurpose,
    mean: MeanLoss<'a>,
    weights: &'a [f32],
}

impl StepThreads {
    /// For batches of up to `train.batch_size` samples, on weights that are here or come through a window.
    pub(crate) fn from_job(
        job: &Job,
        kernel: &'static dyn ProductKernel,
        window: Option<&Arc<LayerWindow>>,
        dropout: impl Fn(u64) -> UnitDropout,
    ) -> ModelResult<Self> {
        let (count, precision) = (job.train.threads.max(1), job.train.precision);
        let (layers, rows) = match window {
            None => (job.dense_layers().ok_or(ModelError::Shape { what: "the network has no layers" })?, CHUNK),
            Some(_) => (job.worker_layers(), most_samples(job.train.batch_size, count).next_multiple_of(BLOCK)),
        };
        let layers = held_layers(&layers);
        let thread = |index: usize| {
            let (is_streamed, recomputes) = (window.is_some(), window.is_some_and(|window| window.recomputes));
            let rounds = precision == Precision::Bf16;
            let form = StepForm { rows, layers: &layers, is_streamed, recomputes, rounds, kernel };
            let scorer = rounds.then(|| make_step(job, StepForm { kernel: &DotsKernel, ..form })).transpose()?;
            let thread = StepThread { step: make_step(job, form)?, scorer, dropout: dropout(index as u64) };
            let weights = layers.last().filter(|_| index > 0 && !is_streamed).map_or(0, |layer| layer.range.end);
            Ok::<_, ModelError>((thread, AlignedValues::zeros(weights)))
        };
        let threads = (0..count).map(thread).collect::<ModelResult<_>>()?;
        let most = window.map_or(usize::MAX, |_| rows * count);
        let place = window.map_or(LayerPlace::Here(layers), |window| LayerPlace::Window(Arc::clone(window)));
        Ok(Self { kernel, place, threads, most })
    }

    /// How many threads have a share of so many samples.
    pub(crate) fn busy_threads(&self, samples: usize) -> usize {
        share_sizes(samples, self.threads.len()).len()
    }

    /// Drops other units from now on. `dropout` makes each thread's.
    pub(crate) fn drop_by(&mut self, dropout: impl Fn(u64) -> UnitDropout) {
        for (index, (thread, _)) in number_from(0, &mut self.threads) {
            thread.dropout = dropout(index);
        }
    }

    pub(crate) fn draw_for(&mut self, step: u64) {
        self.threads.iter_mut().for_each(|(thread, _)| thread.dropout.draw_for(step));
    }

    /// Forward and backward. The gradients are then those of the mean loss of the batch, which is returned; those of weights that are
    /// elsewhere go there, once the window has started a step of [`Self::busy_threads`]. If one thread makes the step, `ready` gets
    /// the last layers' gradients while the first layers' are not computed yet.
    pub(crate) fn train(
        &mut self,
        batch: BatchShare<'_>,
        losses: &TargetLosses,
        (weights, gradients): (&[f32], &mut [f32]),
        ready: FinalGradients<'_>,
    ) -> ModelResult<f32> {
        let (weight, factor) = mean_over(batch.weights, batch.samples);
        let (busy, mean) = (self.busy_threads(batch.samples), MeanLoss { losses, factor });
        let sum = self.run(TraversalPurpose::Training, mean, batch, (weights, &mut *gradients), ready)?;
        // A thread without samples has gradients of an earlier batch.
        let parts: Vec<&[f32]> = self.threads[1..busy].iter().map(|(_, own)| &own[..]).collect();
        add_up(gradients, &parts);
        Ok((sum / weight.max(f64::MIN_POSITIVE)) as f32)
    }

    /// Outputs of samples, `[samples, outputs]`. Those of a sample are a function of the sample and the weights alone.
    pub(crate) fn score(
        &mut self,
        (numeric, embeddings): (&[f32], &[f32]),
        samples: usize,
        losses: &TargetLosses,
        weights: &[f32],
    ) -> ModelResult<Vec<f32>> {
        let mut logits = vec![0.0; samples * losses.output_count()];
        let mut batch = BatchShare::to_score(samples, numeric, embeddings, &mut logits);
        while batch.samples > 0 {
            let part = batch.split_off(self.most.min(batch.samples));
            if let LayerPlace::Window(window) = &self.place {
                window.start(TraversalPurpose::Scoring, (0, 0.0), self.busy_threads(part.samples));
            }
            let mean = MeanLoss { losses, factor: 0.0 };
            self.run(TraversalPurpose::Scoring, mean, part, (weights, &mut []), &mut |_, _| ())?;
        }
        Ok(logits)
    }

    /// Each share on a thread, the first on this one. Returns the sum of the losses.
    fn run(
        &mut self,
        purpose: TraversalPurpose,
        mean: MeanLoss<'_>,
        mut batch: BatchShare<'_>,
        (weights, gradients): (&[f32], &mut [f32]),
        ready: FinalGradients<'_>,
    ) -> ModelResult<f64> {
        let Self { kernel, place, threads, .. } = self;
        let work = ThreadWork { place, kernel: *kernel, purpose, mean, weights };
        let mut sizes = share_sizes(batch.samples, threads.len());
        let first = batch.split_off(sizes.next().unwrap_or(batch.samples));
        let alone = batch.samples == 0;
        let mut on_final = |from: usize, values: &[f32]| {
            if alone {
                ready(from, values);
            }
        };
        let [(lead, _), others @ ..] = &mut threads[..] else { return Err(ModelError::Thread) };
        let results = std::thread::scope(|scope| {
            let mut running = Vec::new();
            let busy = sizes.len();
            for (number, ((thread, own), size)) in number_from(1, others[..busy].iter_mut().zip_eq(sizes)) {
                let share = batch.split_off(size);
                running.push(scope.spawn(move || thread.run(number, work, share, own, &mut |_, _| ())));
            }
            let mut results = vec![lead.run(0, work, first, gradients, &mut on_final)];
            results.extend(running.into_iter().map(|thread| thread.join().unwrap_or(Err(ModelError::Thread))));
            results
        });
        let mut sum = 0.0;
        let mut failed = None;
        for result in results {
            match result {
                Ok(part) => sum += part,
                // A thread that only ended because another one failed does not know why.
                Err(error) if failed.is_none() || matches!(failed, Some(ModelError::Thread)) => failed = Some(error),
                Err(_) => {}
            }
        }
        failed.map_or(Ok(sum), Err)
    }
}

impl StepThread {
    fn run(
        &mut self,
        number: usize,
        work: ThreadWork<'_>,
        share: BatchShare<'_>,
        gradients: &mut [f32],
        on_final: &mut dyn FnMut(usize, &[f32]),
    ) -> ModelResult<f64> {
        let ThreadWork { place, kernel, purpose, mean: MeanLoss { losses, factor }, weights } = work;
        let _ready = kernel.prepare_thread();
        let (is_training, mut still) = (purpose == TraversalPurpose::Training, UnitDropout::new(0.0, 0, 0));
        let Self { step, scorer, dropout } = self;
        let step = if is_training { step } else { scorer.as_mut().unwrap_or(step) };
        let dropout = if is_training { dropout } else { &mut still };
        let kernel: &dyn ProductKernel = if is_training { kernel } else { &DotsKernel };
        let traversal = |chunk| Traversal { purpose, chunk, loss: losses, factor, kernel };
        match place {
            LayerPlace::Here(layers) => {
                let mut layers = FlatLayers { layers, weights, gradients, on_final };
                step.refresh(&layers)?;
                Ok(step.run(share, &traversal(CHUNK), dropout, &mut layers)?)
            }
            LayerPlace::Window(window) => {
                let traversal = traversal(share.samples);
                let made = step.run(share, &traversal, dropout, &mut WindowLayers::new(window, number));
                Ok(made.inspect_err(|_| window.note_failure())?)
            }
        }
    }
}

/// The most samples that a thread of these can have in a batch of `samples`.
fn most_samples(samples: usize, threads: usize) -> usize {
    // Fewer samples may have fewer threads.
    (1..=threads)
        .map(|used| samples.min(used * LEAST).div_ceil(used))
        .chain([samples.div_ceil(threads.max(1))])
        .max()
        .unwrap_or(samples)
}

/// How many samples each used thread has: as even as possible, so that no thread waits for another.
fn share_sizes(samples: usize, threads: usize) -> impl ExactSizeIterator<Item = usize> {
    let threads = threads.min(samples.div_ceil(LEAST)).max(1);
    (0..threads).map(move |thread| samples / threads + usize::from(thread < samples % threads))
}

/// Adds the parts in their order. Each thread adds its piece of all parts.
fn add_up(sum: &mut [f32], parts: &[&[f32]]) {
    if parts.is_empty() {
        return;
    }
    let piece = sum.len().div_ceil(parts.len() + 1).max(1);
    std::thread::scope(|scope| {
        for (index, sum) in sum.chunks_mut(piece).enumerate() {
            scope.spawn(move || {
                for part in parts {
                    let part = &part[index * piece..][..sum.len()];
                    sum.iter_mut().zip_eq(part).for_each(|(sum, value)| *sum += value);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_shared_evenly_by_all_threads() {
        let sizes = |samples, threads| share_sizes(samples, threads).collect::<Vec<_>>();
        assert_eq!(sizes(4096, 4), [1024; 4]);
        assert_eq!(sizes(4096, 8), [512; 8]);
        assert_eq!(sizes(1025, 2), [513, 512]);
        assert_eq!(sizes(1025, 1), [1025]);
        // One thread suffices; a second one just pays off.
        assert_eq!((sizes(64, 8), sizes(65, 8)), (vec![64], vec![33, 32]));
        assert_eq!(sizes(0, 8), [0]);
        for samples in [1, 63, 1000, 4099] {
            for threads in 1..20 {
                let sizes = sizes(samples, threads);
                assert!(sizes.len() <= threads && sizes.iter().sum::<usize>() == samples, "{sizes:?}");
                assert!(sizes.iter().max() <= sizes.iter().min().map(|least| least + 1).as_ref(), "{sizes:?}");
            }
        }
    }

    #[test]
    fn no_batch_gives_a_thread_more_than_the_most() {
        for (batch, threads) in [(4096, 4), (100, 8), (64, 8), (1, 3), (1000, 1)] {
            let most = most_samples(batch, threads);
            for samples in 1..=batch {
                let largest = share_sizes(samples, threads).max().unwrap();
                assert!(largest <= most, "{samples} of {batch} on {threads}: {largest}, not {most}");
            }
        }
    }
}
