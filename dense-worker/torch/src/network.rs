//! A job's network at libtorch, with its weights, gradients and buffers: the step with autograd, and scoring, on weights that are here or
//! come layer by layer ([`crate::layers::LayerCalls`]).
//!
//! Autograd starts from the slopes of the loss ([`TargetLosses`](zagros_model::TargetLosses)), so every network has the same losses.
//!
//! The libraries below libtorch choose the order of a matrix product's sums by the shape of the matrices, and, for a few small
//! shapes, also by a row's place. Every product of scores therefore has the same shape: samples are scored in blocks of a fixed size, and
//! the last block is filled up with zeros. A sample has the same place in a block wherever batches end, because a batch that is scored is a
//! whole number of blocks. Another number of threads (`train.threads`) divides the products differently.
//!
//! ```text
//! last batch of 600   │ 256 samples │ 256 samples │ 88 samples, 168 × zero │
//! ```

use std::sync::Arc;

use tch::nn::VarStore;
use tch::{Kind, Tensor};
use zagros_job::Job;
use zagros_model::{
    AutogradLibrary, AutogradNetwork, BLOCK, InputColumns, LabelledSamples, LayerWindow, ModelError, NetworkBuffers,
    StepOutput, TargetLosses, TensorForm, batch_of_blocks, mean_over,
};
use zagros_network::{OutputLoss, ProductKernel, UnitDropout};

use crate::device::DevicePlacement;
use crate::encoding::{encode, take_tensors, tensor_forms};
use crate::error::TorchResult;
use crate::flat::FlatParameters;
use crate::kernel::TorchKernel;
use crate::layers::{LayerCalls, LentBuffers, ModuleBuffers, ValuesPlace};
use crate::networks::{BuiltNetwork, DenseNetwork};
use crate::variables::StreamedVariables;
use crate::{int, to_vec, use_threads};

/// libtorch, as a library with autograd.
#[derive(Clone, Copy, Debug)]
pub struct TorchLibrary;

impl AutogradLibrary for TorchLibrary {
    fn make_network(
        &self,
        job: &Job,
        losses: &TargetLosses,
        window: Option<&Arc<LayerWindow>>,
    ) -> Result<Box<dyn AutogradNetwork>, ModelError> {
        let place = DevicePlacement::new(job)?;
        Ok(Box::new(TorchNetwork::new(job, losses, window, place)?))
    }
}

#[derive(Debug)]
pub(crate) struct TorchNetwork {
    pub(crate) inputs: InputColumns,
    pub(crate) losses: TargetLosses,
    pub(crate) variables: VarStore,
    pub(crate) network: DenseNetwork,
    pub(crate) weights: FlatParameters,
    pub(crate) gradients: FlatParameters,
    pub(crate) buffers: ModuleBuffers,
    /// Where batch norms find the buffers.
    pub(crate) lent: LentBuffers,
    pub(crate) dropout: UnitDropout,
    /// Weights that are elsewhere.
    pub(crate) streamed: Option<StreamedVariables>,
    pub(crate) threads: usize,
    /// The most samples of a training step (`train.batch_size`).
    pub(crate) batch: usize,
}

impl TorchNetwork {
    pub(crate) fn new(
        job: &Job,
        losses: &TargetLosses,
        window: Option<&Arc<LayerWindow>>,
        place: DevicePlacement,
    ) -> TorchResult<Self> {
        use_threads(job.train.threads);
        let variables = VarStore::new(place.device);
        let held = if window.is_some() { ValuesPlace::AtServers } else { ValuesPlace::Here };
        let BuiltNetwork { network, buffers, lent, streamed } = DenseNetwork::build(job, &variables, held)?;
        // Must run before other code looks at the variables' memory.
        let weights = FlatParameters::from_weights(&variables, place.mirrored)?;
        let gradients = FlatParameters::from_gradients(&variables, place.mirrored)?;
        let streamed = window.map(|window| StreamedVariables::new(Arc::clone(window), streamed)).transpose()?;
        Ok(Self {
            inputs: InputColumns::new(job),
            losses: losses.clone(),
            variables,
            network,
            weights,
            gradients,
            buffers,
            lent,
            dropout: UnitDropout::new(job.model.dropout_share(), job.train.seed, 0),
            streamed,
            threads: job.train.threads,
            batch: job.train.batch_size,
        })
    }

    /// Before forward: gives it copies of the buffers.
    fn lend_buffers(&self, is_training: bool) -> TorchResult {
        if let DenseNetwork::TorchScript(module) = &self.network {
            return module.lend_buffers(&self.buffers);
        }
        self.lent.lend_buffers(self.buffers.all_copies()?, is_training);
        Ok(())
    }

    fn train(&mut self, samples: LabelledSamples<'_>, batch: usize, scale: f32) -> TorchResult<StepOutput> {
        self.buffers.drop_step();
        self.lend_buffers(true)?;
        let output = self.backward_by_autograd(samples, batch, scale)?;
        let left = match &self.network {
            DenseNetwork::TorchScript(module) => module.left_buffers()?,
            DenseNetwork::Blocks(_) => self.lent.take_buffers(),
        };
        self.buffers.keep_left(left)?;
        Ok(output)
    }

    /// `[count, columns]`: the given rows, and zeros.
    fn filled_rows(&self, values: &[f32], count: usize, columns: usize) -> TorchResult<Tensor> {
        let shape = [int(count), int(columns)];
        let rows = Tensor::f_from_slice::<f32>(values)?;
        let missing = count * columns - values.len();
        let rows = if missing > 0 { rows.f_constant_pad_nd([0, int(missing)])? } else { rows };
        Ok(rows.f_reshape(shape)?.f_to_device(self.variables.device())?)
    }

    fn backward_by_autograd(
        &mut self,
        samples: LabelledSamples<'_>,
        batch: usize,
        scale: f32,
    ) -> TorchResult<StepOutput> {
        use_threads(self.threads);
        let numeric = self.filled_rows(samples.numeric, batch, self.inputs.numeric_inputs())?;
        let embeddings = self.filled_rows(samples.embeddings, batch, self.inputs.width)?;
        self.weights.upload()?;
        let embeddings = embeddings.f_set_requires_grad(true)?;
        let mut calls = LayerCalls::for_training(&mut self.dropout, self.streamed.as_ref());
        let outputs = self.network.forward(&numeric, &embeddings, &mut calls)?;
        let calls = calls.into_calls();
        let mut logits: Vec<f32> = to_vec(&outputs.f_detach()?)?;
        let mut slopes = vec![0.0; logits.len()];
        let labels = (samples.labels, samples.weights);
        let (weight, factor) = mean_over(samples.weights, batch);
        let loss = self.losses.sum_losses(&mut logits, labels, factor, &mut slopes) / weight.max(f64::MIN_POSITIVE);
        self.gradients.set_to_zero()?;
        // The slope of Σ output · slope is the slope.
        let slopes = Tensor::f_from_slice(&slopes)?.f_reshape(outputs.size())?.f_to_device(self.variables.device())?;
        outputs.f_mul(&slopes)?.f_sum(Kind::Float)?.f_mul_scalar(f64::from(scale))?.f_backward()?;
        if self.streamed.is_some() {
            // The layers are computed again, and what they make of the buffers then is of no use.
            let left = self.lent.take_buffers();
            self.lent.lend_buffers(self.buffers.all_copies()?, true);
            calls.backward()?;
            self.lent.lend_buffers(left, true);
        }
        self.gradients.download()?;
        let mut gradients = to_vec(&embeddings.f_grad()?)?;
        if scale != 1.0 {
            let unscale = |values: &mut [f32]| values.iter_mut().for_each(|value| *value /= scale);
            unscale(self.gradients.values_mut());
            unscale(&mut gradients);
        }
        Ok(StepOutput { loss: loss as f32, logits, gradients })
    }

    /// Outputs of a batch, `[batch, outputs]`, block by block. If the weights are elsewhere, many blocks go through a layer before the
    /// next one.
    fn score_blocks(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> TorchResult<Vec<f32>> {
        let (columns, width, outputs) = (self.inputs.numeric_inputs(), self.inputs.width, self.losses.output_count());
        let most = self.streamed.as_ref().map_or(BLOCK, |_| batch_of_blocks(self.batch));
        let mut logits = Vec::with_capacity(batch * outputs);
        for start in (0..batch).step_by(most) {
            let (end, padded) = (batch.min(start + most), batch_of_blocks(batch.min(start + most) - start));
            let numeric = self.filled_rows(&numeric[start * columns..end * columns], padded, columns)?;
            let embeddings = self.filled_rows(&embeddings[start * width..end * width], padded, width)?;
            self.lend_buffers(false)?;
            let mut calls = LayerCalls::for_scoring(self.streamed.as_ref(), padded / BLOCK);
            let forward = || self.network.forward(&numeric, &embeddings, &mut calls);
            let made: Vec<f32> = to_vec(&tch::no_grad(forward)?)?;
            logits.extend_from_slice(&made[..(end - start) * outputs]);
        }
        self.losses.finish_outputs(&mut logits);
        Ok(logits)
    }
}

impl AutogradNetwork for TorchNetwork {
    fn library(&self) -> &'static str {
        TorchKernel.name()
    }

    fn weights(&self) -> &[f32] {
        self.weights.values()
    }

    fn gradients(&self) -> &[f32] {
        self.gradients.values()
    }

    fn weights_and_gradients(&mut self) -> (&mut [f32], &mut [f32]) {
        (self.weights.values_mut(), self.gradients.values_mut())
    }

    fn clear_gradients(&mut self) -> Result<(), ModelError> {
        Ok(self.gradients.set_to_zero()?)
    }

    fn draw_for(&mut self, step: u64) {
        self.dropout.draw_for(step);
        if let DenseNetwork::TorchScript(module) = &mut self.network {
            module.draw_for(step);
        }
    }

    fn drop_by(&mut self, seed: u64) {
        self.dropout = UnitDropout::new(self.dropout.share, seed, 0);
        if let DenseNetwork::TorchScript(module) = &mut self.network {
            module.drop_by(seed);
        }
    }

    fn backward(&mut self, samples: LabelledSamples<'_>, batch: usize, scale: f32) -> Result<StepOutput, ModelError> {
        Ok(self.train(samples, batch, scale)?)
    }

    fn score(
        &self,
        numeric: &[f32],
        embeddings: &[f32],
        batch: usize,
        weights: Option<&[f32]>,
    ) -> Result<Vec<f32>, ModelError> {
        use_threads(self.threads);
        let score = || self.score_blocks(numeric, embeddings, batch);
        Ok(if self.streamed.is_some() { score()? } else { self.weights.with_values(weights, score)? })
    }

    fn encode(&self, weights: Option<&[f32]>) -> Result<Vec<u8>, ModelError> {
        Ok(self.weights.with_values(weights, || encode(&self.variables))?)
    }

    fn tensor_forms(&self) -> Result<Vec<TensorForm>, ModelError> {
        Ok(tensor_forms(&self.variables)?)
    }

    fn take_tensors(&mut self, saved: &[Option<&[u8]>]) -> Result<(), ModelError> {
        take_tensors(&self.variables, saved)?;
        Ok(self.weights.download()?)
    }

    fn buffers(&self) -> &dyn NetworkBuffers {
        &self.buffers
    }

    fn buffers_mut(&mut self) -> &mut dyn NetworkBuffers {
        &mut self.buffers
    }
}
