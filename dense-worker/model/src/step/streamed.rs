//! The step of a network whose weights are elsewhere: the whole batch goes through one layer after another.
//!
//! A resident network takes a batch in chunks, each through all layers. Here all chunks go through a layer before the next one,
//! so that a layer's weights come twice per step: for the forward, and for the backward. The products are those of a resident
//! network, so the results have the same bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use zagros_job::{Job, Precision};
use zagros_network::{
    BatchShare, DotsKernel, LayerAccess, OutputLoss, ProductKernel, SampleBlocks, Step, StepError, StepForm, Traversal,
    TraversalPurpose, UnitDropout,
};
use zagros_zip::{ZipEq, number_from};

use super::threads::{most_samples, share_sizes};
use super::{BLOCK, held_layers, make_step, step_form};
use crate::streamed::{LayerWindow, UseNumber};
use crate::training::{MeanLoss, TargetLosses, mean_over};
use crate::{LayerValues, ModelError, ModelResult};

/// Threads that make a step together, each with a share of the batch.
#[derive(Debug)]
pub(crate) struct StreamedThreads {
    pub(crate) kernel: &'static dyn ProductKernel,
    window: Arc<LayerWindow>,
    threads: Vec<StreamedThread>,
    /// The most samples of a thread, a multiple of [`BLOCK`].
    rows: usize,
}

#[derive(Debug)]
struct StreamedThread {
    step: Step,
    dropout: UnitDropout,
    keep: UnitDropout,
}

impl StreamedThreads {
    /// For batches of up to `train.batch_size` samples.
    pub(crate) fn from_job(
        job: &Job,
        kernel: &'static dyn ProductKernel,
        window: &Arc<LayerWindow>,
        dropout: impl Fn(u64) -> UnitDropout,
    ) -> ModelResult<Self> {
        let threads = job.train.threads;
        let rows = most_samples(job.train.batch_size, threads).next_multiple_of(BLOCK);
        let layers = held_layers(&job.worker_layers());
        let form = step_form(&layers, rows, Precision::F32, kernel);
        let form = StepForm { is_streamed: true, recomputes: window.recomputes, ..form };
        let thread = |index: usize| {
            let (step, dropout) = (make_step(job, form)?, dropout(index as u64));
            Ok(StreamedThread { step, dropout, keep: UnitDropout::new(0.0, 0, 0) })
        };
        let threads = (0..threads).map(thread).collect::<ModelResult<_>>()?;
        Ok(Self { kernel, window: Arc::clone(window), threads, rows })
    }

    /// How many threads have a share of so many samples.
    pub(crate) fn busy_threads(&self, samples: usize) -> usize {
        share_sizes(samples, self.threads.len()).len()
    }

    /// Drops other units from now on. `dropout` makes each thread's.
    pub(crate) fn drop_by(&mut self, dropout: impl Fn(u64) -> UnitDropout) {
        for (index, thread) in number_from(0, &mut self.threads) {
            thread.dropout = dropout(index);
        }
    }

    /// Sets the dropout to that of this step.
    pub(crate) fn draw_for(&mut self, step: u64) {
        self.threads.iter_mut().for_each(|thread| thread.dropout.draw_for(step));
    }

    /// The gradients go to where the weights are. Returns the mean loss of the batch. Call it once the window has started a step of
    /// [`Self::busy_threads`].
    pub(crate) fn train(&mut self, mut batch: BatchShare<'_>, losses: &TargetLosses) -> ModelResult<f32> {
        let (weight, factor) = mean_over(batch.weights, batch.samples);
        let sizes = share_sizes(batch.samples, self.threads.len());
        let shares: Vec<BatchShare<'_>> = sizes.map(|size| batch.split_off(size)).collect();
        let sum = self.run(TraversalPurpose::Training, MeanLoss { losses, factor }, shares)?;
        Ok((sum / weight.max(f64::MIN_POSITIVE)) as f32)
    }

    /// Outputs of samples, `[samples, outputs]`. `numeric` has `columns` values a sample, and `embeddings` `width`.
    pub(crate) fn score(
        &mut self,
        (numeric, columns): (&[f32], usize),
        (embeddings, width): (&[f32], usize),
        samples: usize,
        losses: &TargetLosses,
    ) -> ModelResult<Vec<f32>> {
        let outputs = losses.output_count();
        let mut logits = vec![0.0; samples * outputs];
        let most = self.rows * self.threads.len();
        for start in (0..samples).step_by(most) {
            let end = samples.min(start + most);
            let (numeric, embeddings) =
                (&numeric[start * columns..end * columns], &embeddings[start * width..end * width]);
            let logits = &mut logits[start * outputs..end * outputs];
            let mut batch = BatchShare::to_score(end - start, numeric, embeddings, logits);
            let sizes = share_sizes(batch.samples, self.threads.len());
            let shares: Vec<BatchShare<'_>> = sizes.map(|size| batch.split_off(size)).collect();
            self.window.start(TraversalPurpose::Scoring, (0, 0.0), shares.len());
            self.run(TraversalPurpose::Scoring, MeanLoss { losses, factor: 0.0 }, shares)?;
        }
        Ok(logits)
    }

    /// Each share on a thread, the first on this one. Returns the sum of the losses.
    fn run(&mut self, purpose: TraversalPurpose, mean: MeanLoss<'_>, shares: Vec<BatchShare<'_>>) -> ModelResult<f64> {
        let busy = shares.len();
        let (window, kernel, mut shares) = (&self.window, self.kernel, shares.into_iter());
        let (lead, others) = self.threads[..busy].split_at_mut(1);
        let first = shares.next().ok_or(ModelError::Thread)?;
        let results = std::thread::scope(|scope| {
            let work = |(index, thread): (usize, &mut StreamedThread), share| {
                let layers = WindowLayers { window, thread: index, present: BTreeMap::new() };
                thread.run((purpose, mean), kernel, share, layers).inspect_err(|_| window.note_failure())
            };
            let mut running = Vec::new();
            for (thread, share) in others.iter_mut().enumerate().zip_eq(shares) {
                let thread = (thread.0 + 1, thread.1);
                running.push(scope.spawn(move || work(thread, share)));
            }
            let mut results = vec![work((0, &mut lead[0]), first)];
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

impl StreamedThread {
    fn run(
        &mut self,
        (purpose, MeanLoss { losses, factor }): (TraversalPurpose, MeanLoss<'_>),
        kernel: &dyn ProductKernel,
        share: BatchShare<'_>,
        mut layers: WindowLayers<'_>,
    ) -> ModelResult<f64> {
        let _ready = kernel.prepare_thread();
        let dropout = if purpose == TraversalPurpose::Training { &mut self.dropout } else { &mut self.keep };
        let chunk = share.samples;
        let kernel: &dyn ProductKernel = match purpose {
            TraversalPurpose::Training => kernel,
            TraversalPurpose::Scoring => &DotsKernel,
        };
        let traversal = Traversal { purpose, blocks: SampleBlocks::TRAINING, chunk, loss: losses, factor, kernel };
        Ok(self.step.run(share, &traversal, dropout, &mut layers)?)
    }
}

/// The layers of a thread, which are here only while they are used.
struct WindowLayers<'a> {
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

impl WindowLayers<'_> {
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
