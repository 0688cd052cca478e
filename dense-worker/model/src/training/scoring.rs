//! Scoring: the logit of a sample is a function of the sample and the weights alone, whatever the batch.
//!
//! A network that makes its step without autograd scores by the same code, with products that sum each element in one order
//! ([`zagros_network::DotsKernel`]). One with autograd is scored by its library.

use zagros_zip::ZipEq;

use crate::{DenseModel, ModelResult, StepCompute};

impl DenseModel {
    /// Outputs of a batch, `[batch, outputs]`, without dropout. Inputs as for [`Self::step`]. The outputs of a sample depend on no other
    /// sample, nor on their number.
    pub fn predict(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> ModelResult<Vec<f32>> {
        self.check_lengths(numeric, embeddings, batch)?;
        let average = self.average.as_ref().map(|average| &average.values[..]);
        match &self.compute {
            StepCompute::Threads(threads, held) => {
                let weights = average.unwrap_or(&held.values);
                threads.borrow_mut().score((numeric, embeddings), batch, &self.losses, weights)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_fakes::jobs::{job, networks_without_autograd};
    use zagros_job::Precision;

    use crate::{Backend, DenseModel};

    const ROWS: usize = 150;

    /// Bits of the scores of rows, in batches of these sizes.
    fn scores(model: &DenseModel, rows: &[usize], sizes: &[usize]) -> Vec<u32> {
        let value = |row: usize, column: usize| ((row * 31 + column * 7) % 101) as f32 / 50.0 - 1.0;
        let (numeric, width) = (model.input_columns().numeric_inputs(), model.input_columns().width);
        let matrix = |rows: &[usize], from: usize, columns: usize| -> Vec<f32> {
            rows.iter().flat_map(|row| (from..from + columns).map(|column| value(*row, column))).collect()
        };
        let (mut left, mut bits) = (rows, Vec::new());
        for size in sizes.iter().copied().cycle() {
            let (batch, others) = left.split_at(size.min(left.len()));
            let (numbers, vectors) = (matrix(batch, 0, numeric), matrix(batch, numeric, width));
            bits.extend(model.predict(&numbers, &vectors, batch.len()).unwrap().into_iter().map(f32::to_bits));
            left = others;
            if left.is_empty() {
                break;
            }
        }
        bits
    }

    proptest! {
        /// Whatever the batches, the order and the threads are.
        #[test]
        fn a_score_is_a_function_of_the_row_and_the_model(
            network in 0_usize..10, threads in 1_usize..4, sizes in prop::collection::vec(1_usize..140, 1..6), step in 1_usize..7,
            rounds: bool,
        ) {
            let mut job = job(3, &[4, 4, 4], networks_without_autograd(0.0)[network].clone());
            job.train.precision = if rounds { Precision::Bf16 } else { Precision::F32 };
            let alone = DenseModel::new(&job, Backend::default()).unwrap();
            job.train.threads = threads;
            let shared = DenseModel::new(&job, Backend::default()).unwrap();
            // 150 has no factor with 7 or 11 in common: each row once.
            let order: Vec<usize> = (0..ROWS).map(|place| place * [1, 7, 11, 13, 17, 19][step % 6] % ROWS).collect();
            let expected = scores(&alone, &order, &[1]);
            prop_assert_eq!(scores(&shared, &order, &sizes), expected);
        }
    }
}
