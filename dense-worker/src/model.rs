//! The dense network over numeric values and pooled embeddings. The only module that uses libtorch.
//!
//! Everything here runs on one thread (`datapath::dense`): libtorch keeps its thread count per calling thread.

mod device;
mod error;
mod layers;
mod networks;
mod step;
mod streamed;
mod training;
mod weights;

use std::cell::RefCell;
use std::sync::Arc;

use tch::kind::Element;
use tch::nn::VarStore;
use tch::{Device, Tensor};
use zagros_job::{Job, NonFinitePolicy, Precision};
use zagros_network::{BatchShare, OutputLoss, UnitDropout};

use device::DevicePlacement;
pub(crate) use device::without_units;
pub use error::ModelError;
use layers::{LentBuffers, ModuleBuffers, ValuesPlace};
use networks::{BuiltNetwork, DenseNetwork};
pub use networks::{InputShape, SequenceShape};
use step::{ComputeThreads, StreamedThreads};
pub use streamed::{GradientLimit, LayerStore, LayerValues, PendingLayer, TraversalPurpose};
use streamed::{LayerWindow, StreamedExchange, StreamedVariables};
pub use training::{FinalGradients, LabelledSamples};
use training::{LossScale, StepRegularisation, TargetLosses, WeightAverage, WeightUpdater};
pub(crate) use training::{RateRange, batch_of_blocks};
use weights::FlatParameters;
pub use weights::SameInputs;

#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Mean loss of the batch before the update, weighted; nats for a click.
    pub loss: f32,
    /// `[batch, outputs]`, before the update.
    pub logits: Vec<f32>,
    /// d loss / d embeddings, row-major `[batch, ΣD]`.
    pub gradients: Vec<f32>,
}

#[derive(Debug)]
enum StepCompute {
    /// By libtorch's autograd.
    Autograd,
    /// Without autograd, on weights that are here. Scoring uses the memory of a step.
    Threads(Box<RefCell<ComputeThreads>>),
    /// As before, on weights that are elsewhere.
    Streamed(Box<RefCell<StreamedThreads>>),
    /// By libtorch's autograd, a layer at a time, on weights that are elsewhere.
    StreamedAutograd(StreamedVariables),
}

/// A network, its weights and its optimiser. Streamed weights are elsewhere, and so is their optimiser's state: all vectors of
/// weights are empty here.
#[derive(Debug)]
pub struct DenseModel {
    shape: InputShape,
    variables: VarStore,
    network: DenseNetwork,
    losses: TargetLosses,
    weights: FlatParameters,
    gradients: FlatParameters,
    buffers: ModuleBuffers,
    /// Where batch norms find the buffers.
    lent: LentBuffers,
    compute: StepCompute,
    /// If the weights are elsewhere.
    exchange: Option<StreamedExchange>,
    updater: WeightUpdater,
    /// Updates so far, including skipped ones.
    steps: u64,
    /// Dropout of the step with autograd.
    dropout: UnitDropout,
    /// What changes the samples of a step.
    regularisation: Option<StepRegularisation>,
    /// The average of the weights, with which samples are scored.
    average: Option<WeightAverage>,
    /// What happens to a batch with a value that is not finite.
    non_finite: NonFinitePolicy,
    precision: Precision,
    /// The scale for products in f16.
    loss_scale: Option<LossScale>,
    threads: usize,
    /// The most samples of a training step (`train.batch_size`).
    batch: usize,
}

impl DenseModel {
    /// A network whose first weights are a function of the job's seed. They have PyTorch's default distribution for linear
    /// layers: uniform in ±1/√inputs. Sets `job.train.threads` as this thread's share of libtorch.
    ///
    /// # Errors
    /// When the shape leaves the network without input, or libtorch fails.
    pub fn new(job: &Job) -> Result<Self, ModelError> {
        Self::new_at(job, DevicePlacement::new(job)?, None)
    }

    /// A network whose weights are in `store`, as `train.weights = "streamed"` asks for: no weight, no gradient and no state of the
    /// optimiser stay here.
    pub fn with_streamed_weights(job: &Job, store: Arc<dyn LayerStore>) -> Result<Self, ModelError> {
        Self::new_at(job, DevicePlacement::new(job)?, Some(store))
    }

    fn new_at(job: &Job, place: DevicePlacement, store: Option<Arc<dyn LayerStore>>) -> Result<Self, ModelError> {
        use_threads(job.train.threads);
        let shape = InputShape::new(job);
        let variables = VarStore::new(place.device);
        let held = if store.is_some() { ValuesPlace::AtServers } else { ValuesPlace::Here };
        let BuiltNetwork { network, buffers, lent, streamed } = DenseNetwork::build(job, &variables, held)?;
        // Must run before other code looks at the variables' memory.
        let weights = FlatParameters::from_weights(&variables, place.mirrored)?;
        let gradients = FlatParameters::from_gradients(&variables, place.mirrored)?;
        let count = weights.values().len();
        let updater = WeightUpdater::new(&job.dense_optimizer, job.train.updates, count)
            .with_rates(RateRange::from_job(job, count));
        let dropout = |stream| UnitDropout::new(job.model.dropout_share(), job.train.seed, stream);
        let by_autograd = place.mirrored || job.is_by_autograd();
        let (regularisation, losses) =
            (StepRegularisation::from_job(job, &shape), TargetLosses::new(&job.features.targets));
        let average = job.train.ema.map(|keep| WeightAverage::new(keep, weights.values()));
        let exchange = store.map(|store| StreamedExchange::new(Arc::new(LayerWindow::new(job, store))));
        let compute = match (&exchange, by_autograd) {
            (Some(exchange), _) => {
                let window = &exchange.window;
                let threads = match by_autograd {
                    true => None,
                    false => StreamedThreads::from_job(job, window, &losses, dropout)?,
                };
                match threads {
                    Some(threads) => StepCompute::Streamed(Box::new(RefCell::new(threads))),
                    None => StepCompute::StreamedAutograd(StreamedVariables::new(Arc::clone(window), streamed)?),
                }
            }
            (None, true) => StepCompute::Autograd,
            (None, false) => ComputeThreads::from_job(job, job.train.threads, dropout)?
                .map_or(StepCompute::Autograd, |threads| StepCompute::Threads(Box::new(RefCell::new(threads)))),
        };
        let mut made = Self {
            shape,
            variables,
            network,
            losses,
            weights,
            gradients,
            buffers,
            lent,
            compute,
            exchange,
            updater,
            steps: 0,
            dropout: dropout(0),
            regularisation,
            average,
            non_finite: job.train.updates.non_finite,
            precision: job.train.precision,
            loss_scale: (job.train.precision == Precision::F16).then(LossScale::default),
            threads: job.train.threads,
            batch: job.train.batch_size,
        };
        made.learn_order()?;
        Ok(made)
    }

    #[must_use]
    pub fn input_shape(&self) -> &InputShape {
        &self.shape
    }

    /// Forward, backward and one optimiser step on the mean loss of a batch: `numeric` is `[batch, numeric]`,
    /// `embeddings` `[batch, ΣD]`, `labels` `[batch, targets]`, all row-major. Each sample counts once.
    ///
    /// # Errors
    /// When lengths disagree, libtorch fails, or the loss or any gradient is not finite ([`ModelError::Skipped`] if
    /// training goes on without the batch). The weights have not changed then.
    pub fn step(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> Result<StepOutput, ModelError> {
        self.step_on(LabelledSamples::unweighted(numeric, embeddings, labels))
    }

    /// As [`Self::step`], for samples that may have weights.
    pub fn step_on(&mut self, samples: LabelledSamples<'_>) -> Result<StepOutput, ModelError> {
        let output = self.backward_whole(samples).map_err(|error| self.skipped(error))?;
        let made = self.check_finite(&output).and_then(|()| self.update());
        made.map_err(|error| self.skipped(error))?;
        Ok(output)
    }

    /// The gradients are finite.
    fn update(&mut self) -> Result<(), ModelError> {
        if let Some(exchange) = &self.exchange {
            exchange.commit(self.steps, self.updater.norm_factor(exchange.squares)?)?;
        }
        self.updater.apply(self.steps, self.weights.values_mut(), self.gradients.values_mut())?;
        if let Some(average) = &mut self.average {
            average.add(self.weights.values());
        }
        self.made()
    }

    fn made(&mut self) -> Result<(), ModelError> {
        self.steps += 1;
        if let Some(scale) = &mut self.loss_scale {
            scale.note_finite();
        }
        self.buffers.commit_step()
    }

    /// Notes that a step was not made because a value is not finite. The step still counts for the schedule. Returns
    /// whether only its batch is skipped: because the job says so, or because the loss scale was too large.
    pub fn leave_out(&mut self) -> bool {
        self.steps += 1;
        self.buffers.drop_step();
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
    pub fn backward(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> Result<StepOutput, ModelError> {
        self.backward_whole(LabelledSamples::unweighted(numeric, embeddings, labels))
    }

    /// As [`Self::backward`], for samples that may have weights and are all those of the step.
    fn backward_whole(&mut self, samples: LabelledSamples<'_>) -> Result<StepOutput, ModelError> {
        let mut output = self.backward_in_parts(samples, &mut |_, _| ())?;
        self.add_penalty(samples, 1.0, &mut output.gradients);
        Ok(output)
    }

    /// Adds the penalty on feature vectors (`train.embedding_l2`) to the gradients of samples that are `share` of those of the step.
    pub fn add_penalty(&self, samples: LabelledSamples<'_>, share: f32, gradients: &mut [f32]) {
        if let Some(regularisation) = &self.regularisation {
            let batch = samples.embeddings.len() / self.shape.width().max(1);
            regularisation.add_penalty(samples.embeddings, share / batch.max(1) as f32, gradients);
        }
    }

    /// As [`Self::backward`], without the penalty ([`Self::add_penalty`]), but calls `ready` as soon as gradients are final: with the
    /// first weight of the range, and its gradients. A network with autograd makes no such call.
    pub fn backward_in_parts(
        &mut self,
        samples: LabelledSamples<'_>,
        ready: FinalGradients<'_>,
    ) -> Result<StepOutput, ModelError> {
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
    ) -> Result<StepOutput, ModelError> {
        self.draw_for(self.steps);
        match &mut self.compute {
            StepCompute::Threads(_) | StepCompute::Streamed(_) => {
                let LabelledSamples { numeric, embeddings, labels, weights } = samples;
                let (mut logits, mut gradients) =
                    (vec![0.0; batch * self.losses.output_count()], vec![0.0; embeddings.len()]);
                let (logits_out, gradients_out) = (&mut logits[..], &mut gradients[..]);
                let share = BatchShare {
                    samples: batch,
                    numeric,
                    embeddings,
                    labels,
                    weights,
                    logits: logits_out,
                    gradients: gradients_out,
                };
                let loss = match (&mut self.compute, &mut self.exchange) {
                    (StepCompute::Threads(threads), _) => {
                        let values = (self.weights.values(), self.gradients.values_mut());
                        threads.get_mut().run(share, &self.losses, values, ready)?
                    }
                    (StepCompute::Streamed(threads), Some(exchange)) => {
                        threads.get_mut().train(share, &self.losses, (exchange, self.steps))?
                    }
                    _ => 0.0,
                };
                Ok(StepOutput { loss, logits, gradients })
            }
            StepCompute::StreamedAutograd(_) => self.streamed_autograd(samples, batch),
            StepCompute::Autograd => {
                self.buffers.drop_step();
                self.lend_buffers(true)?;
                let output = self.backward_by_autograd(samples, batch)?;
                let left = match &self.network {
                    DenseNetwork::TorchScript(module) => module.left_buffers()?,
                    _ => self.lent.take_buffers(),
                };
                self.buffers.keep_left(left)?;
                Ok(output)
            }
        }
    }

    fn draw_for(&mut self, step: u64) {
        self.dropout.draw_for(step);
        match &mut self.compute {
            StepCompute::Threads(threads) => threads.get_mut().draw_for(step),
            StepCompute::Streamed(threads) => threads.get_mut().draw_for(step),
            StepCompute::Autograd | StepCompute::StreamedAutograd(_) => {}
        }
        if let DenseNetwork::TorchScript(module) = &mut self.network {
            module.draw_for(step);
        }
    }

    /// Before forward: gives it copies of the buffers.
    fn lend_buffers(&self, is_training: bool) -> Result<(), ModelError> {
        if let DenseNetwork::TorchScript(module) = &self.network {
            return module.lend_buffers(&self.buffers);
        }
        self.lent.lend_buffers(self.buffers.all_copies()?, is_training);
        Ok(())
    }

    fn count(&self, samples: LabelledSamples<'_>) -> Result<usize, ModelError> {
        let LabelledSamples { numeric, embeddings, labels, weights } = samples;
        let batch = labels.len() / self.losses.target_count().max(1);
        expect("labels", batch * self.losses.target_count(), labels.len())?;
        expect("sample weights", if weights.is_empty() { 0 } else { batch }, weights.len())?;
        self.check_lengths(numeric, embeddings, batch)?;
        Ok(batch)
    }

    fn check_lengths(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<(), ModelError> {
        expect("numeric values", batch * self.shape.numeric, numeric.len())?;
        expect("embedding values", batch * self.shape.width(), embeddings.len())
    }

    /// A dense gradient can overflow while loss and embedding gradients do not.
    ///
    /// # Errors
    /// [`ModelError::NotFinite`] names the first that is not.
    pub fn check_finite(&self, output: &StepOutput) -> Result<(), ModelError> {
        let checks: [(&[f32], _); 3] = [
            (&[output.loss], "the loss"),
            (&output.gradients, "a gradient of an embedding"),
            (self.gradients.values(), "a gradient of the dense network"),
        ];
        match checks.into_iter().find(|(values, _)| !all_finite(values)) {
            Some((_, what)) => Err(ModelError::NotFinite { what }),
            None if self.buffers.has_diverged()? => {
                Err(ModelError::NotFinite { what: "a buffer of the dense network" })
            }
            None => Ok(()),
        }
    }
}

/// This thread's share of libtorch. The other pool of libtorch (inter-op) serves TorchScript only and is never started.
fn use_threads(threads: usize) {
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
}

/// Has no early exit, so that it vectorises.
fn all_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}

pub(crate) fn expect(what: &'static str, expected: usize, found: usize) -> Result<(), ModelError> {
    if expected == found { Ok(()) } else { Err(ModelError::Length { what, expected, found }) }
}

/// Empty for an undefined gradient, which is what an input of no columns has.
fn to_vec<T: Element + Clone + Default>(tensor: &Tensor) -> Result<Vec<T>, ModelError> {
    let count = if tensor.defined() { tensor.numel() } else { 0 };
    let mut values = vec![T::default(); count];
    if count > 0 {
        tensor.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(&mut values, count)?;
    }
    Ok(values)
}

fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
