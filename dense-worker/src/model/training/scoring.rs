//! Scoring: the logit of a sample has the same bits in batches of any size.
//!
//! A network that makes its step without autograd scores by the same code, with products that sum each element in one order
//! ([`zagros_network::DotsKernel`]): a sample's logit is a function of the sample and the weights alone.
//!
//! The libraries below libtorch choose the order of a matrix product's sums by the shape of the matrices, and, for a few small
//! shapes, also by a row's place. Where libtorch scores, every product therefore has the same shape: samples are scored in blocks of a fixed
//! size, and the last block is filled up with zeros. A sample has the same place in a block wherever batches end, because a
//! batch that is scored is a whole number of blocks ([`batch_of_blocks`]). Another number of threads (`train.threads`) divides the
//! products differently.
//!
//! ```text
//! last batch of 600   │ 256 samples │ 256 samples │ 88 samples, 168 × zero │
//! ```

use tch::Tensor;
use zagros_job::Precision;
use zagros_network::OutputLoss;
use zagros_zip::ZipEq;

use crate::model::layers::LayerCalls;
use crate::model::{DenseModel, ModelError, StepCompute, int, to_vec, use_threads};

/// Samples of a block. With fewer, the weights are read more often; with more, a short batch is filled up with more zeros.
pub(crate) const BLOCK: usize = 256;

/// The size of the batches that are scored: `batch`, made up to whole blocks.
pub(crate) fn batch_of_blocks(batch: usize) -> usize {
    batch.max(1).next_multiple_of(BLOCK)
}

impl DenseModel {
    /// Outputs of a batch, `[batch, outputs]`, without dropout. Inputs as for [`Self::step`]. The logit of a sample depends neither on
    /// the other samples nor on their number, only on the sample and its place in its block.
    pub fn predict(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<Vec<f32>, ModelError> {
        self.check_lengths(numeric, embeddings, batch)?;
        match &self.compute {
            StepCompute::Streamed(threads) => {
                let (columns, width) = (self.shape.numeric, self.shape.width());
                return threads.borrow_mut().score((numeric, columns), (embeddings, width), batch, &self.losses);
            }
            StepCompute::StreamedAutograd(_) => return self.streamed_scores(numeric, embeddings, batch),
            StepCompute::Threads(threads) if self.precision == Precision::F32 => {
                let average = self.average.as_ref().map(|average| &average.values[..]);
                let weights = average.unwrap_or_else(|| self.weights.values());
                return threads.borrow_mut().score((numeric, embeddings), batch, &self.losses, weights);
            }
            StepCompute::Threads(_) | StepCompute::Autograd => {}
        }
        use_threads(self.threads);
        let average = self.average.as_ref().map(|average| &average.values[..]);
        self.weights.with_values(average, || self.predict_blocks(numeric, embeddings, batch))
    }

    fn predict_blocks(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<Vec<f32>, ModelError> {
        let (columns, width) = (self.shape.numeric, self.shape.width());
        let outputs = self.losses.output_count();
        let mut logits = Vec::with_capacity(batch * outputs);
        for start in (0..batch).step_by(BLOCK) {
            let end = batch.min(start + BLOCK);
            let numeric = self.filled_rows(&numeric[start * columns..end * columns], BLOCK, columns)?;
            let embeddings = self.filled_rows(&embeddings[start * width..end * width], BLOCK, width)?;
            self.lend_buffers(false)?;
            let forward = || self.network.forward(&numeric, &embeddings, &mut LayerCalls::for_scoring());
            let block: Vec<f32> = to_vec(&tch::no_grad(forward)?)?;
            logits.extend_from_slice(&block[..(end - start) * outputs]);
        }
        self.losses.finish_outputs(&mut logits);
        Ok(logits)
    }

    /// `[count, columns]`: the given rows, and zeros.
    pub(super) fn filled_rows(&self, values: &[f32], count: usize, columns: usize) -> Result<Tensor, ModelError> {
        let shape = [int(count), int(columns)];
        let rows = Tensor::f_from_slice::<f32>(values)?;
        let missing = count * columns - values.len();
        let rows = if missing > 0 { rows.f_constant_pad_nd([0, int(missing)])? } else { rows };
        Ok(rows.f_reshape(shape)?.f_to_device(self.variables.device())?)
    }
}

/// The exponential moving average of a network's weights over its steps (Polyak and Juditsky 1992). It scores better than the last
/// weights, which swing around an optimum.
#[derive(Clone, Debug)]
pub(crate) struct WeightAverage {
    /// Share that a step keeps, 0 .. 1.
    keep: f32,
    pub(crate) values: Vec<f32>,
}

impl WeightAverage {
    pub(crate) fn new(keep: f64, weights: &[f32]) -> Self {
        Self { keep: keep as f32, values: weights.to_vec() }
    }

    pub(crate) fn restart(&mut self, weights: &[f32]) {
        self.values.copy_from_slice(weights);
    }

    /// average ← keep·average + (1 − keep)·weights, the weights after a step.
    pub(crate) fn add(&mut self, weights: &[f32]) {
        let step = 1.0 - self.keep;
        self.values.iter_mut().zip_eq(weights).for_each(|(average, weight)| *average += step * (weight - *average));
    }
}
