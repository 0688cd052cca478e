//! The threads of a step: each takes a share of the batch, and then a share of adding up the gradients.

use zagros_zip::ZipEq;

use super::layer::StepParts;
use super::{BatchShare, ForwardBackward};
use crate::model::layers::UnitDropout;
use crate::model::training::{MeanLoss, TargetLosses, mean_over};
use crate::model::weights::FlatParameters;
use crate::model::{DenseNetwork, FinalGradients, InputShape, ModelError};

/// The fewest samples for a thread: waking it takes as long as a few samples.
const LEAST: usize = 64;

/// Threads that make one step together. No share waits for another, so the threads meet twice per step, not in every
/// product. The result of a step depends on their number by rounding (and dropout), and on nothing else of them.
#[derive(Debug)]
pub(in crate::model) struct ComputeThreads {
    lead: ComputeThread,
    /// Each with the gradients of its step.
    others: Vec<(ComputeThread, FlatParameters)>,
}

#[derive(Debug)]
struct ComputeThread {
    step: ForwardBackward,
    dropout: UnitDropout,
}

impl ComputeThreads {
    /// `None` for networks that have only autograd. Steps write to `gradients`.
    pub(in crate::model) fn from_network(
        network: &DenseNetwork,
        shape: &InputShape,
        gradients: &FlatParameters,
        threads: usize,
        dropout: impl Fn(u64) -> UnitDropout,
    ) -> Result<Option<Self>, ModelError> {
        let Some(step) =
            ForwardBackward::from_network(network, shape, &mut StepParts::for_resident(&mut gradients.views()))?
        else {
            return Ok(None);
        };
        let lead = ComputeThread { step, dropout: dropout(0) };
        let mut others = Vec::new();
        for index in 1..threads {
            let own = gradients.with_same_shape()?;
            let Some(step) =
                ForwardBackward::from_network(network, shape, &mut StepParts::for_resident(&mut own.views()))?
            else {
                return Ok(None);
            };
            others.push((ComputeThread { step, dropout: dropout(index as u64) }, own));
        }
        Ok(Some(Self { lead, others }))
    }

    /// Drops other units from now on. `dropout` makes each thread's.
    pub(in crate::model) fn drop_by(&mut self, dropout: impl Fn(u64) -> UnitDropout) {
        self.lead.dropout = dropout(0);
        for (index, (thread, _)) in self.others.iter_mut().enumerate() {
            thread.dropout = dropout(index as u64 + 1);
        }
    }

    pub(in crate::model) fn draw_for(&mut self, step: u64) {
        self.lead.dropout.draw_for(step);
        self.others.iter_mut().for_each(|(thread, _)| thread.dropout.draw_for(step));
    }

    /// Forward and backward. The variables' gradients are then those of the mean loss of the batch, which is returned. If
    /// one thread makes the step, `ready` gets the last layers' gradients while the first layers' are not computed yet.
    pub(in crate::model) fn run(
        &mut self,
        mut batch: BatchShare<'_>,
        losses: &TargetLosses,
        gradients: &mut FlatParameters,
        ready: FinalGradients<'_>,
    ) -> Result<f32, ModelError> {
        let samples = batch.samples;
        let (weight, factor) = mean_over(batch.weights, samples);
        let mean = MeanLoss { losses, factor };
        let mut sizes = share_sizes(samples, self.others.len() + 1);
        let Self { lead, others } = self;
        let first = batch.split_off(sizes.next().unwrap_or(samples));
        let (alone, mut from) = (batch.samples == 0, gradients.values().len());
        let mut finished = |weights: usize| {
            from -= weights;
            if alone {
                ready(from, &gradients.values()[from..]);
            }
        };
        let (sum, busy) = std::thread::scope(|scope| {
            let mut running = Vec::new();
            // A thread without samples would add gradients of an earlier batch.
            let busy = sizes.len();
            for ((thread, _), size) in others[..busy].iter_mut().zip_eq(sizes) {
                let share = batch.split_off(size);
                running.push(scope.spawn(move || thread.run(share, mean, &mut |_| ())));
            }
            let mut sum = lead.run(first, mean, &mut finished)?;
            for thread in running {
                sum += thread.join().unwrap_or(Err(ModelError::Thread))?;
            }
            Ok::<_, ModelError>((sum, busy))
        })?;
        let parts: Vec<&[f32]> = others.iter().take(busy).map(|(_, own)| own.values()).collect();
        add_up(gradients.values_mut(), &parts);
        Ok((sum / weight.max(f64::MIN_POSITIVE)) as f32)
    }
}

impl ComputeThread {
    fn run(
        &mut self,
        share: BatchShare<'_>,
        mean: MeanLoss<'_>,
        finished: &mut dyn FnMut(usize),
    ) -> Result<f64, ModelError> {
        // The parallelism is between shares. libtorch counts its threads by calling thread.
        tch::set_num_threads(1);
        self.step.run(share, mean, &mut self.dropout, finished)
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
