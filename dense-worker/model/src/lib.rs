//! The dense network over numeric values and pooled embeddings: its weights, losses, gradients and updates, and the scores of samples.
//!
//! A network whose blocks all have a backward makes its step by [`zagros_network::Step`], and needs no library but for its products
//! ([`Backend`]). Every other network is at a library with autograd ([`AutogradNetwork`]). A network runs on one thread, and starts
//! others for a step.

mod backend;
mod error;
mod gather;
mod shape;
mod step;
mod streamed;
mod training;
mod weights;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use zagros_job::{Job, NonFinitePolicy, Precision};
use zagros_network::{BatchShare, OutputLoss, ReadInputs, UnitDropout};
use zagros_zip::ZipEq;

pub use backend::{AutogradLibrary, AutogradNetwork, Backend, NetworkBuffers, has_units, without_units};
pub use error::{ModelError, ModelResult};
pub use gather::{InputColumn, InputColumns, RowPositions, VectorForm, gather, scatter_add};
pub use shape::check_inputs;
use step::StepThreads;
pub use step::{BLOCK, batch_of_blocks};
use streamed::StreamedExchange;
pub use streamed::{GradientLimit, LayerStore, LayerValues, LayerWindow, PendingLayer, TraversalPurpose, UseNumber};
pub use training::{FinalGradients, LabelledSamples, RateRange, TargetLosses, mean_over, seed_of_rank};
use training::{LossScale, StepRegularisation, WeightAverage, WeightUpdater};
use weights::HeldWeights;
pub use weights::{SameInputs, TensorForm, first_values};

#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Mean loss of the batch before the update, weighted; nats for a click.
    pub loss: f32,
    /// `[batch, outputs]`, before the update.
    pub logits: Vec<f32>,
    /// d loss / d embeddings, row-major `[batch, ΣD]`.
    pub gradients: Vec<f32>,
}

/// Who makes the steps, with the weights that are here.
#[derive(Debug)]
enum StepCompute {
    /// Without autograd, on weights that are here, or elsewhere: then none are held. Scoring uses the memory of a step.
    Threads(Box<RefCell<StepThreads>>, HeldWeights),
    /// By a library's autograd, on weights that are here or elsewhere.
    Autograd(Box<dyn AutogradNetwork>),
}

/// A network, its weights and its optimiser. Streamed weights are elsewhere, and so is their optimiser's state: all vectors of
/// weights are empty here.
#[derive(Debug)]
pub struct DenseModel {
    columns: InputColumns,
    losses: TargetLosses,
    compute: StepCompute,
    /// By name of a tensor: what it reads by its place; `None` for a user's module.
    read: Option<HashMap<String, ReadInputs>>,
    /// If the weights are elsewhere.
    exchange: Option<StreamedExchange>,
    updater: WeightUpdater,
    /// Updates so far, including skipped ones.
    steps: u64,
    /// Share of the units that a step drops.
    dropout: f64,
    /// What changes the samples of a step.
    regularisation: Option<StepRegularisation>,
    /// The average of the weights, with which samples are scored.
    average: Option<WeightAverage>,
    /// What happens to a batch with a value that is not finite.
    non_finite: NonFinitePolicy,
    /// The scale for products in f16.
    loss_scale: Option<LossScale>,
}

impl StepCompute {
    fn new(job: &Job, backend: Backend, losses: &TargetLosses, window: Option<&Arc<LayerWindow>>) -> ModelResult<Self> {
        let forced = backend.kernels.is_empty().then_some("a program without products of its own");
        if let Some(key) = job.autograd_key().or(forced) {
            let library = backend.autograd.ok_or(ModelError::NoAutograd { key })?;
            return Ok(Self::Autograd(library.make_network(job, losses, window)?));
        }
        check_inputs(job)?;
        let kernel = backend.kernel(job.train.precision);
        let dropout = |stream| UnitDropout::new(job.model.dropout_share(), job.train.seed, stream);
        let threads = StepThreads::from_job(job, kernel, window, dropout)?;
        let held = if window.is_some() { HeldWeights::default() } else { HeldWeights::from_job(job) };
        Ok(Self::Threads(Box::new(RefCell::new(threads)), held))
    }

    fn weights(&self) -> &[f32] {
        match self {
            Self::Threads(_, held) => &held.values,
            Self::Autograd(network) => network.weights(),
        }
    }

    fn gradients(&self) -> &[f32] {
        match self {
            Self::Threads(_, held) => &held.gradients,
            Self::Autograd(network) => network.gradients(),
        }
    }

    fn weights_and_gradients(&mut self) -> (&mut [f32], &mut [f32]) {
        match self {
            Self::Threads(_, held) => (&mut held.values[..], &mut held.gradients[..]),
            Self::Autograd(network) => network.weights_and_gradients(),
        }
    }

    /// Its tensors, ascending by name.
    fn tensor_forms(&self) -> ModelResult<Vec<TensorForm>> {
        match self {
            Self::Threads(_, held) => Ok(held.tensor_forms()),
            Self::Autograd(network) => network.tensor_forms(),
        }
    }

    /// Takes saved values of these tensors; none stays as it is.
    fn take_tensors(&mut self, saved: &[Option<&[u8]>]) -> ModelResult {
        match self {
            Self::Threads(_, held) => held.take_tensors(saved),
            Self::Autograd(network) => network.take_tensors(saved)?,
        }
        Ok(())
    }

    fn buffers(&self) -> Option<&dyn NetworkBuffers> {
        let Self::Autograd(network) = self else { return None };
        Some(network.buffers())
    }

    fn buffers_mut(&mut self) -> Option<&mut dyn NetworkBuffers> {
        let Self::Autograd(network) = self else { return None };
        Some(network.buffers_mut())
    }

    /// How many threads of the window make a step of so many samples.
    fn window_threads(&self, samples: usize) -> usize {
        match self {
            Self::Threads(threads, _) => threads.borrow().busy_threads(samples),
            // A library with autograd has threads of its own.
            Self::Autograd(_) => 1,
        }
    }

    fn draw_for(&mut self, step: u64) {
        match self {
            Self::Threads(threads, _) => threads.get_mut().draw_for(step),
            Self::Autograd(network) => network.draw_for(step),
        }
    }
}

impl DenseModel {
    /// A network whose first weights are a function of the job's seed. They have PyTorch's default distribution for linear
    /// layers: uniform in ±1/√inputs.
    ///
    /// # Errors
    /// When the shape leaves the network without input, or the network needs a library that the program lacks, or it fails.
    pub fn new(job: &Job, backend: Backend) -> ModelResult<Self> {
        Self::with_store(job, backend, None)
    }

    /// A network whose weights are in `store`, if there is one, as `train.weights = "streamed"` asks for: no weight, no gradient and no
    /// state of the optimiser stay here.
    pub fn with_store(job: &Job, backend: Backend, store: Option<Arc<dyn LayerStore>>) -> ModelResult<Self> {
        let losses = TargetLosses::new(&job.features.targets);
        let exchange = store.map(|store| StreamedExchange::new(Arc::new(LayerWindow::new(job, store))));
        let compute = StepCompute::new(job, backend, &losses, exchange.as_ref().map(|exchange| &exchange.window))?;
        let columns = InputColumns::new(job);
        let rates = RateRange::from_job(job, compute.weights().len());
        let updater = WeightUpdater::new(&job.dense_optimizer, job.train.updates, rates);
        let read = job.network().map(|network| {
            let names = network.layout.tensors.iter().map(|tensor| tensor.name.clone());
            names.zip_eq(network.read_inputs()).collect()
        });
        let mut made = Self {
            regularisation: StepRegularisation::from_job(job, &columns),
            average: job.train.ema.map(|keep| WeightAverage::new(keep, compute.weights())),
            columns,
            losses,
            compute,
            read,
            exchange,
            updater,
            steps: 0,
            dropout: job.model.dropout_share(),
            non_finite: job.train.updates.non_finite,
            loss_scale: (job.train.precision == Precision::F16).then(LossScale::default),
        };
        made.learn_order()?;
        Ok(made)
    }

    /// Goes through the layers with a sample of zeros, forward and backward, and forward: the window notes the order.
    fn learn_order(&mut self) -> ModelResult {
        let Some(window) = self.exchange.as_ref().map(|exchange| Arc::clone(&exchange.window)) else { return Ok(()) };
        let [numeric, embeddings, labels] = &self.zero_sample();
        window.learn_order(|| {
            self.traverse(LabelledSamples::unweighted(numeric, embeddings, labels), 1, &mut |_, _| ())?;
            self.drop_buffers();
            self.predict(numeric, embeddings, 1).map(drop)
        })
    }

    /// Numbers, vectors and labels of a sample of zeros.
    fn zero_sample(&self) -> [Vec<f32>; 3] {
        [self.columns.numeric_inputs(), self.columns.width, self.losses.target_count()].map(|values| vec![0.0; values])
    }

    /// The library that makes the products of its steps.
    pub fn products(&self) -> &'static str {
        match &self.compute {
            StepCompute::Threads(threads, _) => threads.borrow().kernel.name(),
            StepCompute::Autograd(network) => network.library(),
        }
    }

    pub fn input_columns(&self) -> &InputColumns {
        &self.columns
    }

    /// Forward, backward and one optimiser step on the mean loss of a batch: `numeric` is `[batch, numeric]`,
    /// `embeddings` `[batch, ΣD]`, `labels` `[batch, targets]`, all row-major. Each sample counts once.
    ///
    /// # Errors
    /// When lengths disagree, libtorch fails, or the loss or any gradient is not finite ([`ModelError::Skipped`] if
    /// training goes on without the batch). The weights have not changed then.
    pub fn step(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> ModelResult<StepOutput> {
        self.step_on(LabelledSamples::unweighted(numeric, embeddings, labels))
    }

    /// As [`Self::step`], for samples that may have weights.
    pub fn step_on(&mut self, samples: LabelledSamples<'_>) -> ModelResult<StepOutput> {
        let output = self.backward_whole(samples).map_err(|error| self.skipped(error))?;
        let made = self.check_finite(&output).and_then(|()| self.update());
        made.map_err(|error| self.skipped(error))?;
        Ok(output)
    }

    /// The gradients are finite.
    fn update(&mut self) -> ModelResult {
        if let Some(exchange) = &self.exchange {
            exchange.window.store.commit(self.steps, self.updater.norm_factor(exchange.squares)?)?;
        }
        let (weights, gradients) = self.compute.weights_and_gradients();
        self.updater.apply(self.steps, weights, gradients)?;
        if let Some(average) = &mut self.average {
            average.add(self.compute.weights());
        }
        self.made()
    }

    fn made(&mut self) -> ModelResult {
        self.steps += 1;
        if let Some(scale) = &mut self.loss_scale {
            scale.note_finite();
        }
        self.compute.buffers_mut().map_or(Ok(()), NetworkBuffers::commit_step)
    }

    /// Notes that a step was not made because a value is not finite. The step still counts for the schedule. Returns
    /// whether only its batch is skipped: because the job says so, or because the loss scale was too large.
    pub fn leave_out(&mut self) -> bool {
        self.steps += 1;
        self.drop_buffers();
        let was_too_large = self.loss_scale.as_mut().is_some_and(LossScale::note_overflow);
        was_too_large || self.non_finite == NonFinitePolicy::Skip
    }

    fn skipped(&mut self, error: ModelError) -> ModelError {
        match error {
            ModelError::NotFinite { what } if self.leave_out() => ModelError::Skipped { what },
            ModelError::LayerNotFinite { .. } if self.leave_out() => {
                ModelError::Skipped { what: "a gradient of the dense network" }
            }
            error => error,
        }
    }

    /// Forward and backward without an update. Inputs as for [`Self::step`].
    pub fn backward(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> ModelResult<StepOutput> {
        self.backward_whole(LabelledSamples::unweighted(numeric, embeddings, labels))
    }

    /// As [`Self::backward`], for samples that may have weights and are all those of the step.
    fn backward_whole(&mut self, samples: LabelledSamples<'_>) -> ModelResult<StepOutput> {
        let mut output = self.backward_in_parts(samples, &mut |_, _| ())?;
        self.add_penalty(samples, 1.0, &mut output.gradients);
        Ok(output)
    }

    /// Adds the penalty on feature vectors (`train.embedding_l2`) to the gradients of samples that are `share` of those of the step.
    pub fn add_penalty(&self, samples: LabelledSamples<'_>, share: f32, gradients: &mut [f32]) {
        if let Some(regularisation) = &self.regularisation {
            let batch = samples.embeddings.len() / self.columns.width.max(1);
            regularisation.add_penalty(samples.embeddings, share / batch.max(1) as f32, gradients);
        }
    }

    /// As [`Self::backward`], without the penalty ([`Self::add_penalty`]), but calls `ready` as soon as gradients are final: with the
    /// first weight of the range, and its gradients. A network with autograd makes no such call.
    pub fn backward_in_parts(
        &mut self,
        samples: LabelledSamples<'_>,
        ready: FinalGradients<'_>,
    ) -> ModelResult<StepOutput> {
        let batch = self.count(samples)?;
        let Some(mut regularisation) = self.regularisation.take() else {
            return self.backward_of(samples, batch, ready);
        };
        let (embeddings, labels) = regularisation.prepare_inputs(samples.embeddings, samples.labels, self.steps);
        let mut output = self.backward_of(LabelledSamples { embeddings, labels, ..samples }, batch, ready);
        if let Ok(output) = &mut output {
            regularisation.mask_gradients(&mut output.gradients);
        }
        self.regularisation = Some(regularisation);
        output
    }

    fn backward_of(
        &mut self,
        samples: LabelledSamples<'_>,
        batch: usize,
        ready: FinalGradients<'_>,
    ) -> ModelResult<StepOutput> {
        let output = self.traverse(samples, batch, ready)?;
        self.exchange.as_mut().map_or(Ok(()), StreamedExchange::end_step)?;
        Ok(output)
    }

    /// Forward and backward. Gradients of streamed weights are then on their way.
    fn traverse(
        &mut self,
        samples: LabelledSamples<'_>,
        batch: usize,
        ready: FinalGradients<'_>,
    ) -> ModelResult<StepOutput> {
        self.compute.draw_for(self.steps);
        if let Some(exchange) = &self.exchange {
            exchange.start_step(self.steps, self.compute.window_threads(batch));
        }
        let LabelledSamples { numeric, embeddings, labels, weights } = samples;
        let (mut logits, mut gradients) = (vec![0.0; batch * self.losses.output_count()], vec![0.0; embeddings.len()]);
        let share = {
            let (samples, logits, gradients) = (batch, &mut logits[..], &mut gradients[..]);
            BatchShare { samples, numeric, embeddings, labels, weights, logits, gradients }
        };
        let loss = match &mut self.compute {
            StepCompute::Threads(threads, held) => {
                let values = (&held.values[..], &mut held.gradients[..]);
                threads.get_mut().train(share, &self.losses, values, ready)?
            }
            StepCompute::Autograd(network) => {
                return network.backward(samples, batch, self.loss_scale.as_ref().map_or(1.0, |scale| scale.value));
            }
        };
        Ok(StepOutput { loss, logits, gradients })
    }

    fn drop_buffers(&mut self) {
        if let Some(buffers) = self.compute.buffers_mut() {
            buffers.drop_step();
        }
    }

    fn count(&self, samples: LabelledSamples<'_>) -> ModelResult<usize> {
        let LabelledSamples { numeric, embeddings, labels, weights } = samples;
        let batch = labels.len() / self.losses.target_count().max(1);
        expect("labels", batch * self.losses.target_count(), labels.len())?;
        expect("sample weights", if weights.is_empty() { 0 } else { batch }, weights.len())?;
        self.check_lengths(numeric, embeddings, batch)?;
        Ok(batch)
    }

    fn check_lengths(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> ModelResult {
        expect("numeric values", batch * self.columns.numeric_inputs(), numeric.len())?;
        expect("embedding values", batch * self.columns.width, embeddings.len())
    }

    /// A dense gradient can overflow while loss and embedding gradients do not.
    ///
    /// # Errors
    /// [`ModelError::NotFinite`] names the first that is not.
    pub fn check_finite(&self, output: &StepOutput) -> ModelResult {
        let checks: [(&[f32], _); 3] = [
            (&[output.loss], "the loss"),
            (&output.gradients, "a gradient of an embedding"),
            (self.compute.gradients(), "a gradient of the dense network"),
        ];
        match checks.into_iter().find(|(values, _)| !all_finite(values)) {
            Some((_, what)) => Err(ModelError::NotFinite { what }),
            None if self.compute.buffers().map_or(Ok(false), NetworkBuffers::has_diverged)? => {
                Err(ModelError::NotFinite { what: "a buffer of the dense network" })
            }
            None => Ok(()),
        }
    }
}

/// Has no early exit, so that it vectorises.
fn all_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}

pub fn expect(what: &'static str, expected: usize, found: usize) -> ModelResult {
    if expected == found { Ok(()) } else { Err(ModelError::Length { what, expected, found }) }
}
