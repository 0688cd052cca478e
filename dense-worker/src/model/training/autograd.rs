//! The step with autograd, for networks that have no other, on weights that are here or come layer by layer ([`crate::model::layers::layer_calls`]).
//!
//! Autograd starts from the slopes of the loss ([`super::loss`]), so every network has the same losses.

use tch::{Kind, Tensor};

use super::loss::mean_over;
use crate::model::layers::LayerCalls;
use crate::model::{
    DenseModel, LabelledSamples, LossScale, ModelError, StepCompute, StepOutput, int, to_vec, use_threads,
};

impl DenseModel {
    pub(crate) fn backward_by_autograd(
        &mut self,
        samples: LabelledSamples<'_>,
        batch: usize,
    ) -> Result<StepOutput, ModelError> {
        use_threads(self.threads);
        let (numeric, embeddings) = self.inputs(samples.numeric, samples.embeddings, batch)?;
        self.weights.upload()?;
        let embeddings = embeddings.f_set_requires_grad(true)?;
        let streamed = match &self.compute {
            StepCompute::StreamedAutograd(streamed) => Some(streamed),
            _ => None,
        };
        let mut calls = LayerCalls::for_training(&mut self.dropout, streamed);
        let outputs = self.network.forward_after(self.numbers.as_ref(), &numeric, &embeddings, &mut calls)?;
        let calls = calls.into_calls();
        let mut logits: Vec<f32> = to_vec(&outputs.f_detach()?)?;
        let mut slopes = vec![0.0; logits.len()];
        let labels = (samples.labels, samples.weights);
        let (weight, factor) = mean_over(samples.weights, batch);
        let loss = self.losses.sum_losses(&mut logits, labels, factor, &mut slopes) / weight.max(f64::MIN_POSITIVE);
        self.gradients.set_to_zero()?;
        let scale = self.loss_scale.as_ref().map_or(1.0, LossScale::value);
        // The slope of Σ output · slope is the slope.
        let slopes = Tensor::f_from_slice(&slopes)?.f_reshape(outputs.size())?.f_to_device(self.variables.device())?;
        outputs.f_mul(&slopes)?.f_sum(Kind::Float)?.f_mul_scalar(f64::from(scale))?.f_backward()?;
        if streamed.is_some() {
            // The layers are computed again, and what they make of the buffers then is of no use.
            let left = self.lent.take_buffers();
            self.lent.lend_buffers(self.buffers.all_copies()?, true);
            calls.backward()?;
            self.lent.lend_buffers(left, true);
        }
        self.gradients.download()?;
        let mut gradients = to_vec(&embeddings.f_grad()?)?;
        if self.loss_scale.is_some() {
            let unscale = |values: &mut [f32]| values.iter_mut().for_each(|value| *value /= scale);
            unscale(self.gradients.values_mut());
            unscale(&mut gradients);
        }
        Ok(StepOutput { loss: loss as f32, logits, gradients })
    }

    fn inputs(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<(Tensor, Tensor), ModelError> {
        let (columns, width) = (self.shape.numeric, self.shape.width());
        let device = self.variables.device();
        let matrix = |values, columns| {
            Tensor::f_from_slice::<f32>(values)?.f_reshape([int(batch), int(columns)])?.f_to_device(device)
        };
        Ok((matrix(numeric, columns)?, matrix(embeddings, width)?))
    }
}
