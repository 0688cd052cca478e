//! A job's network at libtorch, with its weights, gradients and buffers.

use std::sync::Arc;

use tch::Tensor;
use tch::nn::VarStore;
use zagros_job::Job;
use zagros_model::{
    AutogradLibrary, AutogradNetwork, InputShape, LabelledSamples, LayerWindow, ModelError, NetworkBuffers, StepOutput,
    TargetLosses,
};
use zagros_network::{ProductKernel, UnitDropout};

use crate::device::DevicePlacement;
use crate::encoding::{decode, decode_fitting, encode};
use crate::error::TorchError;
use crate::flat::FlatParameters;
use crate::kernel::TorchKernel;
use crate::layers::{LentBuffers, ModuleBuffers, ValuesPlace};
use crate::networks::{BuiltNetwork, DenseNetwork};
use crate::variables::StreamedVariables;
use crate::{int, use_threads};

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
    pub(crate) shape: InputShape,
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
    ) -> Result<Self, TorchError> {
        use_threads(job.train.threads);
        let variables = VarStore::new(place.device);
        let held = if window.is_some() { ValuesPlace::AtServers } else { ValuesPlace::Here };
        let BuiltNetwork { network, buffers, lent, streamed } = DenseNetwork::build(job, &variables, held)?;
        // Must run before other code looks at the variables' memory.
        let weights = FlatParameters::from_weights(&variables, place.mirrored)?;
        let gradients = FlatParameters::from_gradients(&variables, place.mirrored)?;
        let streamed = window.map(|window| StreamedVariables::new(Arc::clone(window), streamed)).transpose()?;
        Ok(Self {
            shape: InputShape::new(job),
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
    pub(crate) fn lend_buffers(&self, is_training: bool) -> Result<(), TorchError> {
        if let DenseNetwork::TorchScript(module) = &self.network {
            return module.lend_buffers(&self.buffers);
        }
        self.lent.lend_buffers(self.buffers.all_copies()?, is_training);
        Ok(())
    }

    fn train(&mut self, samples: LabelledSamples<'_>, batch: usize, scale: f32) -> Result<StepOutput, TorchError> {
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
    pub(crate) fn filled_rows(&self, values: &[f32], count: usize, columns: usize) -> Result<Tensor, TorchError> {
        let shape = [int(count), int(columns)];
        let rows = Tensor::f_from_slice::<f32>(values)?;
        let missing = count * columns - values.len();
        let rows = if missing > 0 { rows.f_constant_pad_nd([0, int(missing)])? } else { rows };
        Ok(rows.f_reshape(shape)?.f_to_device(self.variables.device())?)
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

    fn decode(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        decode(bytes, &self.variables)?;
        Ok(self.weights.download()?)
    }

    fn decode_fitting(&mut self, bytes: &[u8], wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>, ModelError> {
        let others = decode_fitting(bytes, &self.variables, wanted)?;
        self.weights.download()?;
        Ok(others)
    }

    fn buffers(&self) -> &dyn NetworkBuffers {
        &self.buffers
    }

    fn buffers_mut(&mut self) -> &mut dyn NetworkBuffers {
        &mut self.buffers
    }
}
