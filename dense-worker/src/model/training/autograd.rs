//! The step with autograd, for networks that have no other, on weights that are here or come layer by layer
//! ([`crate::model::layers::LayerCalls`]).
//!
//! Autograd starts from the slopes of the loss ([`super::loss`]), so every network has the same losses. Gradients that f16 would
//! round to zero are computed with a factor ([`LossScale`]).

use tch::{Kind, Tensor};
use zagros_network::OutputLoss;

use super::loss::mean_over;
use super::scoring::{BLOCK, batch_of_blocks};
use crate::model::layers::LayerCalls;
use crate::model::{DenseModel, LabelledSamples, ModelError, StepCompute, StepOutput, int, to_vec, use_threads};

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
        let outputs = self.network.forward(&numeric, &embeddings, &mut calls)?;
        let calls = calls.into_calls();
        let mut logits: Vec<f32> = to_vec(&outputs.f_detach()?)?;
        let mut slopes = vec![0.0; logits.len()];
        let labels = (samples.labels, samples.weights);
        let (weight, factor) = mean_over(samples.weights, batch);
        let loss = self.losses.sum_losses(&mut logits, labels, factor, &mut slopes) / weight.max(f64::MIN_POSITIVE);
        self.gradients.set_to_zero()?;
        let scale = self.loss_scale.as_ref().map_or(1.0, |scale| scale.value);
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

    /// Forward and backward of a batch. The gradients of weights go to where the weights are.
    pub(crate) fn streamed_autograd(
        &mut self,
        samples: LabelledSamples<'_>,
        batch: usize,
    ) -> Result<StepOutput, ModelError> {
        self.buffers.drop_step();
        self.lend_buffers(true)?;
        if let Some(exchange) = &self.exchange {
            exchange.start_step(self.steps, THREADS);
        }
        let output = self.backward_by_autograd(samples, batch)?;
        self.buffers.keep_left(self.lent.take_buffers())?;
        if let Some(exchange) = &mut self.exchange {
            exchange.end_step()?;
        }
        Ok(output)
    }

    /// Outputs of a batch, `[batch, outputs]`, as [`Self::predict`] has them. Many blocks go through a layer before the next one.
    pub(super) fn streamed_scores(
        &self,
        numeric: &[f32],
        embeddings: &[f32],
        batch: usize,
    ) -> Result<Vec<f32>, ModelError> {
        use_threads(self.threads);
        let (columns, width, outputs) = (self.shape.numeric, self.shape.width(), self.losses.output_count());
        let most = batch_of_blocks(self.batch);
        let mut logits = Vec::with_capacity(batch * outputs);
        for start in (0..batch).step_by(most) {
            let end = batch.min(start + most);
            let made = self.scores_of_blocks(
                &numeric[start * columns..end * columns],
                &embeddings[start * width..end * width],
                end - start,
            )?;
            logits.extend_from_slice(&made[..(end - start) * outputs]);
        }
        self.losses.finish_outputs(&mut logits);
        Ok(logits)
    }

    /// Outputs of samples, made up to whole blocks.
    fn scores_of_blocks(&self, numeric: &[f32], embeddings: &[f32], samples: usize) -> Result<Vec<f32>, ModelError> {
        let (StepCompute::StreamedAutograd(streamed), Some(exchange)) = (&self.compute, &self.exchange) else {
            return Err(ModelError::Shape { what: "the weights of the network are not streamed" });
        };
        let padded = batch_of_blocks(samples);
        let numeric = self.filled_rows(numeric, padded, self.shape.numeric)?;
        let embeddings = self.filled_rows(embeddings, padded, self.shape.width())?;
        self.lend_buffers(false)?;
        exchange.start_scoring(THREADS);
        let mut calls = LayerCalls::scoring_blocks(streamed, padded / BLOCK);
        let forward = || self.network.forward(&numeric, &embeddings, &mut calls);
        to_vec(&tch::no_grad(forward)?)
    }

    /// Goes through the layers with a sample of zeros, forward and backward, and forward: the window notes the order.
    pub(crate) fn learn_order(&mut self) -> Result<(), ModelError> {
        let (StepCompute::StreamedAutograd(_), Some(exchange)) = (&self.compute, &self.exchange) else { return Ok(()) };
        let window = exchange.window.clone();
        let sample =
            [self.shape.numeric, self.shape.width(), self.losses.target_count()].map(|values| vec![0.0; values]);
        let [numeric, embeddings, labels] = &sample;
        window.learn_order(|| {
            self.lend_buffers(true)?;
            if let Some(exchange) = &self.exchange {
                exchange.start_step(0, THREADS);
            }
            self.backward_by_autograd(LabelledSamples::unweighted(numeric, embeddings, labels), 1)?;
            self.scores_of_blocks(numeric, embeddings, 1)?;
            Ok(())
        })
    }
}

/// Threads of a step among those of the window: libtorch has threads of its own.
const THREADS: usize = 1;

/// The factor at the start, and its bounds.
const FIRST: f32 = 65_536.0;
const LEAST: f32 = 1.0;
const MOST: f32 = 16_777_216.0;
/// After so many steps in a row without overflow, the factor doubles.
const HELD: u32 = 2000;

/// The factor of the loss before backward (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). It adapts to the largest
/// one without overflow. It is a power of two, so dividing gradients by it rounds nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossScale {
    pub(crate) value: f32,
    /// Steps since it last changed.
    held: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { value: FIRST, held: 0 }
    }
}

impl LossScale {
    pub(crate) fn note_finite(&mut self) {
        self.held += 1;
        if self.held == HELD {
            *self = Self { value: (self.value * 2.0).min(MOST), held: 0 };
        }
    }

    /// Notes that they were not. Returns whether the scale may be the cause. The scale is smaller from now on.
    pub(crate) fn note_overflow(&mut self) -> bool {
        let falls = self.value > LEAST;
        *self = Self { value: (self.value / 2.0).max(LEAST), held: 0 };
        falls
    }

    /// Both numbers, for [`Self::read`].
    pub(crate) fn write(self) -> String {
        format!("{} {}", self.value, self.held)
    }

    /// `None` for other text.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (value, held) = text.split_once(' ')?;
        let (value, held) = (value.parse::<f32>().ok()?, held.parse().ok()?);
        (LEAST..=MOST).contains(&value).then_some(Self { value, held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_falls_with_each_overflow_and_rises_after_many_steps_without() {
        let mut scale = LossScale::default();
        assert!(scale.note_overflow() && scale.note_overflow());
        assert_eq!(scale.value, FIRST / 4.0);
        (0..HELD - 1).for_each(|_| scale.note_finite());
        assert_eq!(LossScale::read(&scale.write()), Some(scale));
        assert_eq!(scale.value, FIRST / 4.0);
        scale.note_finite();
        assert_eq!(scale.value, FIRST / 2.0);
    }

    #[test]
    fn the_scale_keeps_its_bounds_and_says_when_it_cannot_be_the_cause() {
        let mut scale = LossScale::default();
        assert_eq!((0..40).filter(|_| scale.note_overflow()).count(), 16);
        assert_eq!(scale.value, LEAST);
        (0..40 * HELD).for_each(|_| scale.note_finite());
        assert_eq!(scale.value, MOST);
        assert_eq!(["0 1", "2", "NaN 1"].map(LossScale::read), [None; 3]);
    }
}
