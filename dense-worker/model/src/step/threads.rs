//! The threads of a step: each takes a share of the batch, and then a share of adding up the gradients.

use zagros_job::{Job, Precision};
use zagros_network::{
    AlignedValues, BatchShare, CHUNK, DotsKernel, FlatLayers, HeldLayer, OutputLoss, ProductKernel, SampleBlocks, Step,
    Traversal, TraversalPurpose, UnitDropout,
};
use zagros_zip::ZipEq;

use super::{held_layers, make_step, step_form};
use crate::training::{MeanLoss, TargetLosses, mean_over};
use crate::{FinalGradients, ModelError, ModelResult};

/// The fewest samples for a thread: waking it takes as long as a few samples.
const LEAST: usize = 64;

/// Threads that make one step together. No share waits for another, so the threads meet twice per step, not in every
/// product. The result of a step depends on their number by rounding (and dropout), and on nothing else of them.
#[derive(Debug)]
pub(crate) struct ComputeThreads {
    pub(crate) kernel: &'static dyn ProductKernel,
    layers: Vec<HeldLayer>,
    lead: ComputeThread,
    /// Each with the gradients of its step.
    others: Vec<(ComputeThread, AlignedValues)>,
}

#[derive(Debug)]
struct ComputeThread {
    step: Step,
    /// Scores with products in bf16. In f32, the training's step does.
    scorer: Option<Step>,
    dropout: UnitDropout,
}

impl ComputeThreads {
    pub(crate) fn from_job(
        job: &Job,
        kernel: &'static dyn ProductKernel,
        dropout: impl Fn(u64) -> UnitDropout,
    ) -> ModelResult<Self> {
        let layers = job.dense_layers().ok_or(ModelError::Shape { what: "the network has no layers" })?;
        let layers = held_layers(&layers);
        let weights = layers.last().map_or(0, |layer| layer.range.end);
        let precision = job.train.precision;
        let thread = |index| {
            let step = make_step(job, step_form(&layers, CHUNK, precision, kernel))?;
            let scorer = || make_step(job, step_form(&layers, CHUNK, precision, &DotsKernel));
            let scorer = (precision == Precision::Bf16).then(scorer).transpose()?;
            Ok::<_, ModelError>(ComputeThread { step, scorer, dropout: dropout(index) })
        };
        let lead = thread(0)?;
        let other = |index: usize| Ok((thread(index as u64)?, AlignedValues::zeros(weights)));
        let others = (1..job.train.threads).map(other).collect::<ModelResult<_>>()?;
        Ok(Self { kernel, layers, lead, others })
    }

    /// Drops other units from now on. `dropout` makes each thread's.
    pub(crate) fn drop_by(&mut self, dropout: impl Fn(u64) -> UnitDropout) {
        self.lead.dropout = dropout(0);
        for (index, (thread, _)) in self.others.iter_mut().enumerate() {
            thread.dropout = dropout(index as u64 + 1);
        }
    }

    pub(crate) fn draw_for(&mut self, step: u64) {
        self.lead.dropout.draw_for(step);
        self.others.iter_mut().for_each(|(thread, _)| thread.dropout.draw_for(step));
    }

    /// Forward and backward. The gradients are then those of the mean loss of the batch, which is returned. If
    /// one thread makes the step, `ready` gets the last layers' gradients while the first layers' are not computed yet.
    pub(crate) fn run(
        &mut self,
        mut batch: BatchShare<'_>,
        losses: &TargetLosses,
        (weights, gradients): (&[f32], &mut [f32]),
        ready: FinalGradients<'_>,
    ) -> ModelResult<f32> {
        let samples = batch.samples;
        let (weight, factor) = mean_over(batch.weights, samples);
        let mean = MeanLoss { losses, factor };
        let mut sizes = share_sizes(samples, self.others.len() + 1);
        let Self { kernel, layers, lead, others } = self;
        let (kernel, layers) = (*kernel, &layers[..]);
        let first = batch.split_off(sizes.next().unwrap_or(samples));
        let alone = batch.samples == 0;
        let mut on_final = |from: usize, values: &[f32]| {
            if alone {
                ready(from, values);
            }
        };
        let (sum, busy) = std::thread::scope(|scope| {
            let mut running = Vec::new();
            // A thread without samples would add gradients of an earlier batch.
            let busy = sizes.len();
            for ((thread, own), size) in others[..busy].iter_mut().zip_eq(sizes) {
                let share = batch.split_off(size);
                running.push(scope.spawn(move || {
                    let on_final = &mut |_: usize, _: &[f32]| ();
                    thread.run(share, mean, kernel, FlatLayers { layers, weights, gradients: own, on_final })
                }));
            }
            let own = FlatLayers { layers, weights, gradients: &mut *gradients, on_final: &mut on_final };
            let mut sum = lead.run(first, mean, kernel, own)?;
            for thread in running {
                sum += thread.join().unwrap_or(Err(ModelError::Thread))?;
            }
            Ok::<_, ModelError>((sum, busy))
        })?;
        let parts: Vec<&[f32]> = others.iter().take(busy).map(|(_, own)| &own[..]).collect();
        add_up(gradients, &parts);
        Ok((sum / weight.max(f64::MIN_POSITIVE)) as f32)
    }
}

impl ComputeThreads {
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
        let mut sizes = share_sizes(samples, self.others.len() + 1);
        let Self { layers, lead, others, .. } = self;
        let layers = &layers[..];
        let first = batch.split_off(sizes.next().unwrap_or(samples));
        let work = |thread: &mut ComputeThread, share| {
            let on_final = &mut |_: usize, _: &[f32]| ();
            thread.score(share, losses, FlatLayers { layers, weights, gradients: &mut [], on_final })
        };
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            let busy = sizes.len();
            for ((thread, _), size) in others[..busy].iter_mut().zip_eq(sizes) {
                let share = batch.split_off(size);
                running.push(scope.spawn(move || work(thread, share)));
            }
            work(lead, first)?;
            running.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(ModelError::Thread)))
        })?;
        Ok(logits)
    }
}

impl ComputeThread {
    fn score(&mut self, share: BatchShare<'_>, losses: &TargetLosses, mut layers: FlatLayers<'_>) -> ModelResult {
        let (purpose, blocks) = (TraversalPurpose::Scoring, SampleBlocks::TRAINING);
        let traversal = Traversal { purpose, blocks, chunk: CHUNK, loss: losses, factor: 0.0, kernel: &DotsKernel };
        let step = self.scorer.as_mut().unwrap_or(&mut self.step);
        step.refresh(&layers)?;
        step.run(share, &traversal, &mut UnitDropout::new(0.0, 0, 0), &mut layers)?;
        Ok(())
    }

    fn run(
        &mut self,
        share: BatchShare<'_>,
        mean: MeanLoss<'_>,
        kernel: &dyn ProductKernel,
        mut layers: FlatLayers<'_>,
    ) -> ModelResult<f64> {
        let _ready = kernel.prepare_thread();
        let MeanLoss { losses, factor } = mean;
        let (purpose, blocks) = (TraversalPurpose::Training, SampleBlocks::TRAINING);
        let traversal = Traversal { purpose, blocks, chunk: CHUNK, loss: losses, factor, kernel };
        self.step.refresh(&layers)?;
        Ok(self.step.run(share, &traversal, &mut self.dropout, &mut layers)?)
    }
}

/// The most samples that a thread of these can have in a batch of `samples`.
pub(super) fn most_samples(samples: usize, threads: usize) -> usize {
    // Fewer samples may have fewer threads.
    (1..=threads)
        .map(|used| samples.min(used * LEAST).div_ceil(used))
        .chain([samples.div_ceil(threads.max(1))])
        .max()
        .unwrap_or(samples)
}

/// How many samples each used thread has: as even as possible, so that no thread waits for another.
pub(super) fn share_sizes(samples: usize, threads: usize) -> impl ExactSizeIterator<Item = usize> {
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
