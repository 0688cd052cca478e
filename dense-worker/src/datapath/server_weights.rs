//! Mode `async`: the embedding servers hold the dense network's weights as rows of a separate table ([`Job::dense_table`]).
//! Each worker makes its own steps.
//!
//! A row holds the difference between its weights and the first weights, which every worker makes from the seed (invariant
//! AS-1). A worker looks these rows up together with those of a batch, so both miss at most τ batches of this worker. The
//! gradients of the weights are those of the worker's own batch. They are part of the batch's push, so they are applied at
//! most once and within the same window.
//!
//! The servers have one learning rate for all rows. Where µP has another, the change of a weight is that of its row times the factor: the
//! update of Adam and Adagrad does not depend on the size of the gradient, and that of SGD is in proportion to it.

use zagros_embedding_client::{BatchRows, TableIds};
use zagros_job::{DenseOptimizer, Job};
use zagros_protocol::TableId;
use zagros_zip::ZipEq;

use zagros_model::{DenseModel, ModelError, RateRange};

#[derive(Debug)]
pub(crate) struct ServerWeights {
    table: TableId,
    dim: u32,
    /// All first weights, then zeros up to whole rows.
    first: Vec<f32>,
    /// The weights of the last step, without the zeros.
    weights: Vec<f32>,
    /// L2 penalty, added to the gradient.
    decay: f32,
    rates: Vec<RateRange>,
}

impl ServerWeights {
    /// `None` in other modes than `async`.
    pub(super) fn from_job(job: &Job, model: &DenseModel) -> Result<Option<Self>, ModelError> {
        let Some(table) = job.dense_table() else { return Ok(None) };
        let mut first = vec![0.0; model.weight_count()];
        model.copy_weights(&mut first)?;
        let weights = first.clone();
        let (table, dim) = (TableId(u32::try_from(job.tables.len()).unwrap_or(u32::MAX)), table.dim as u32);
        let (decay, rates) = (decay(job.dense_optimizer), RateRange::from_job(job, first.len()));
        Ok(Some(Self { table, dim, first, weights, decay, rates }))
    }

    pub(crate) fn weight_rows(&self) -> TableIds {
        let rows = self.first.len().div_ceil(self.dim as usize) as u64;
        TableIds::new(self.table, self.dim, (0..rows).collect())
    }

    /// Takes the weights from the last of `rows`.
    ///
    /// # Errors
    /// When they are not as many as the network's weights, or not finite.
    pub(super) fn take(&mut self, model: &mut DenseModel, rows: &BatchRows) -> Result<(), ModelError> {
        let Some(changes) = rows.tables.last() else { return Ok(()) };
        let values = self.first.len().next_multiple_of(self.dim as usize);
        zagros_model::expect("changes of dense weights", values, changes.len())?;
        let changes = &changes[..self.first.len()];
        for RateRange { weights: range, factor } in &self.rates {
            let weights = self.weights[range.clone()].iter_mut().zip_eq(&self.first[range.clone()]);
            for ((weight, first), change) in weights.zip_eq(&changes[range.clone()]) {
                *weight = first + factor * change;
            }
        }
        model.set_weights(&self.weights)
    }

    /// Copies the gradients of the last backward into the rows of the weights, which must be zeros.
    pub(super) fn give_gradients(&self, model: &DenseModel, rows: &mut BatchRows) -> Result<(), ModelError> {
        let Some(gradients) = rows.tables.last_mut() else { return Ok(()) };
        let gradients = &mut gradients[..self.first.len()];
        zagros_model::expect("dense gradients", gradients.len(), model.gradients().len())?;
        gradients.copy_from_slice(model.gradients());
        if self.decay > 0.0 {
            let decayed = gradients.iter_mut().zip_eq(&self.weights);
            decayed.for_each(|(gradient, weight)| *gradient += self.decay * weight);
        }
        Ok(())
    }
}

/// The decay that is part of the gradient. Mode `async` allows no other.
fn decay(optimizer: DenseOptimizer) -> f32 {
    match optimizer {
        DenseOptimizer::AdamW { .. } => 0.0,
        DenseOptimizer::Adam { weight_decay, .. }
        | DenseOptimizer::Adagrad { weight_decay, .. }
        | DenseOptimizer::Sgd { weight_decay, .. } => weight_decay as f32,
    }
}

/// A network whose weights are on the servers learns like one that holds its weights itself.
#[cfg(test)]
mod tests {
    use zagros_job::{Mode, Parametrization};
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::datapath::dense::DenseStage;
    use crate::datapath::prepared::{BatchPreparer, PreparedBatch};
    use crate::testing::{batch, ffnn, job, metrics};

    fn dense(mode: Mode, weight_decay: f64) -> (Job, DenseStage) {
        let mut job = job(1, &[2], ffnn(&[3, 3]));
        // Three quarters of its width: rates of 4/3 and 3/4.
        job.parametrization = Parametrization::Mup { base_width: 4 };
        job.train.mode = mode;
        job.dense_optimizer = DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay };
        let dense = DenseStage::new(&job, zagros_torch::backend(), metrics()).unwrap();
        (job, dense)
    }

    fn prepared(job: &Job, dense: &DenseStage) -> PreparedBatch {
        let rows = dense.server_weights.as_ref().map(ServerWeights::weight_rows);
        BatchPreparer::new(job, Access::Train).with_extra_rows(rows).prepare(batch(2, &[&[7, 8]])).unwrap()
    }

    /// With a server that only subtracts, the losses equal those of a worker that holds its weights itself.
    #[test]
    fn weights_on_a_server_learn_like_local_weights() {
        for weight_decay in [0.0, 0.1] {
            let (here, mut alone) = dense(Mode::Hybrid, weight_decay);
            let (there, mut remote) = dense(Mode::Async, weight_decay);
            let vectors = vec![0.5, -0.25, 0.125, 1.0];
            let mut changes = vec![0.0_f32; 256];
            for step in 0..4 {
                let rows = BatchRows { tables: vec![vectors.clone()] };
                let expected = alone.step(&prepared(&here, &alone), rows).unwrap();
                let rows = BatchRows { tables: vec![vectors.clone(), changes.clone()] };
                let found = remote.step(&prepared(&there, &remote), rows).unwrap();
                assert!((found.loss - expected.loss).abs() < 1e-6, "step {step}: {} not {}", found.loss, expected.loss);
                assert_eq!(found.gradients.tables.len(), 2);
                let gradients = &found.gradients.tables[1];
                assert!(gradients[remote.model.weight_count()..].iter().all(|gradient| *gradient == 0.0));
                changes.iter_mut().zip_eq(gradients).for_each(|(change, gradient)| *change -= 0.1 * gradient);
            }
            assert!(changes.iter().any(|change| change.abs() > 1e-3));
        }
    }

    #[test]
    fn the_rows_of_the_weights_are_the_last_of_a_batch_and_all_must_arrive() {
        let (job, mut dense) = dense(Mode::Async, 0.0);
        let prepared = prepared(&job, &dense);
        let rows = prepared.unique.tables.last().unwrap();
        assert_eq!((rows.table, rows.dim, rows.ids.as_slice()), (TableId(1), 256, [0].as_slice()));
        assert!(dense.take_weights(&BatchRows { tables: vec![vec![0.0; 255]] }).is_err());
        dense.take_weights(&BatchRows { tables: vec![vec![0.0; 256]] }).unwrap();
    }
}
