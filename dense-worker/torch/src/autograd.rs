//! The step with autograd, and scoring, on weights that are here or come layer by layer ([`crate::layers::LayerCalls`]).
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

use tch::{Kind, Tensor};
use zagros_model::{BLOCK, LabelledSamples, StepOutput, batch_of_blocks, mean_over};
use zagros_network::OutputLoss;

use crate::error::TorchError;
use crate::layers::LayerCalls;
use crate::network::TorchNetwork;
use crate::{to_vec, use_threads};

impl TorchNetwork {
    pub(crate) fn backward_by_autograd(
        &mut self,
        samples: LabelledSamples<'_>,
        batch: usize,
        scale: f32,
    ) -> Result<StepOutput, TorchError> {
        use_threads(self.threads);
        let numeric = self.filled_rows(samples.numeric, batch, self.shape.numeric)?;
        let embeddings = self.filled_rows(samples.embeddings, batch, self.shape.width())?;
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
    pub(crate) fn score_blocks(
        &self,
        numeric: &[f32],
        embeddings: &[f32],
        batch: usize,
    ) -> Result<Vec<f32>, TorchError> {
        let (columns, width, outputs) = (self.shape.numeric, self.shape.width(), self.losses.output_count());
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
