//! Steps and scores by autograd, of a network whose weights come layer by layer.

use super::scoring::{BLOCK, batch_of_blocks};
use crate::model::layers::LayerCalls;
use crate::model::{DenseModel, LabelledSamples, ModelError, StepCompute, StepOutput, to_vec, use_threads};

/// Threads of a step among those of the window: libtorch has threads of its own.
const THREADS: usize = 1;

impl DenseModel {
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
        let forward = || self.network.forward_after(self.numbers.as_ref(), &numeric, &embeddings, &mut calls);
        to_vec(&tch::no_grad(forward)?)
    }

    /// Goes through the layers with a sample of zeros, forward and backward, and forward: the window notes the order.
    pub(crate) fn learn_order(&mut self) -> Result<(), ModelError> {
        let (StepCompute::StreamedAutograd(_), Some(exchange)) = (&self.compute, &self.exchange) else { return Ok(()) };
        let window = exchange.window().clone();
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
