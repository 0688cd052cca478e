//! Scoring: the logit of a sample is a function of the sample and the weights alone, whatever the batch.
//!
//! A network that makes its step without autograd scores by the same code, with products that sum each element in one order
//! ([`zagros_network::DotsKernel`]). One with autograd is scored by its library.

use zagros_zip::ZipEq;

use crate::{DenseModel, ModelError, StepCompute};

impl DenseModel {
    /// Outputs of a batch, `[batch, outputs]`, without dropout. Inputs as for [`Self::step`]. The outputs of a sample depend on no other
    /// sample, nor on their number.
    ///
    /// # Errors
    /// When lengths disagree, the library of autograd fails, or layers do not come.
    pub fn predict(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<Vec<f32>, ModelError> {
        self.check_lengths(numeric, embeddings, batch)?;
        let average = self.average.as_ref().map(|average| &average.values[..]);
        match &self.compute {
            StepCompute::Threads(threads, held) => {
                let weights = average.unwrap_or(&held.values);
                threads.borrow_mut().score((numeric, embeddings), batch, &self.losses, weights)
            }
            StepCompute::Streamed(threads, _) => {
                let (columns, width) = (self.shape.numeric, self.shape.width());
                threads.borrow_mut().score((numeric, columns), (embeddings, width), batch, &self.losses)
            }
            StepCompute::Autograd(network) => network.score(numeric, embeddings, batch, average),
        }
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
