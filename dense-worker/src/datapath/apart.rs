//! Mode `async`: the dense network's weights live on the embedding servers, as rows of a table of their own
//! ([`Job::dense_table`]), and each worker steps apart from the others.
//!
//! A row holds by how much its weights differ from the first ones, which every worker makes from the seed (invariant AS-1). The rows are
//! looked up with those of a batch, so that they are as old as these, at most τ batches of this worker, and their
//! gradients, which are those of the worker's own batch alone, go with the batch's push: at most once, within one window.

use zagros_embedding_client::{Rows, TableIds};
use zagros_job::{DenseOptimizer, Job};
use zagros_protocol::TableId;

use super::dense::Dense;
use crate::model::{DenseModel, ModelError};

/// What a worker needs to make weights of rows, and rows of gradients.
#[derive(Debug)]
pub(crate) struct Apart {
    table: TableId,
    dim: u32,
    /// All weights one after another, and after them nothing up to whole rows.
    first: Vec<f32>,
    /// Those of the last step, without what fills the last row.
    weights: Vec<f32>,
    /// L2 penalty, added to the gradient.
    decay: f32,
}

impl Apart {
    /// For a network that has its first weights; `None` in other modes.
    ///
    /// # Errors
    /// When libtorch fails.
    pub(super) fn of(job: &Job, model: &DenseModel) -> Result<Option<Self>, ModelError> {
        let Some(table) = job.dense_table() else { return Ok(None) };
        let mut first = vec![0.0; model.weights()];
        model.copy_weights(&mut first)?;
        let weights = first.clone();
        let (table, dim) = (TableId(u32::try_from(job.tables.len()).unwrap_or(u32::MAX)), table.dim as u32);
        Ok(Some(Self { table, dim, first, weights, decay: decay(job.dense_optimizer) }))
    }

    /// The rows that hold the weights.
    pub(crate) fn rows(&self) -> TableIds {
        let rows = self.first.len().div_ceil(self.dim as usize) as u64;
        TableIds::rows(self.table, self.dim, (0..rows).collect())
    }
}

impl Dense {
    /// In mode `async`, takes the weights whose rows are the last of `rows`.
    ///
    /// # Errors
    /// When they are not as many as the network's, or not numbers.
    pub(crate) fn take_weights(&mut self, rows: &Rows) -> Result<(), ModelError> {
        let (Some(apart), Some(changes)) = (&mut self.apart, rows.tables.last()) else { return Ok(()) };
        let values = apart.first.len().next_multiple_of(apart.dim as usize);
        crate::model::expect("changes of dense weights", values, changes.len())?;
        for ((weight, first), change) in apart.weights.iter_mut().zip(&apart.first).zip(changes) {
            *weight = first + change;
        }
        self.model.set_weights(&apart.weights)
    }

    /// In mode `async`, puts the gradients of the last backward pass where the rows of the weights are, zeros before.
    ///
    /// # Errors
    /// When libtorch fails.
    pub(super) fn give_gradients(&self, rows: &mut Rows) -> Result<(), ModelError> {
        let (Some(apart), Some(gradients)) = (&self.apart, rows.tables.last_mut()) else { return Ok(()) };
        let gradients = &mut gradients[..apart.first.len()];
        crate::model::expect("dense gradients", gradients.len(), self.model.gradients().len())?;
        gradients.copy_from_slice(self.model.gradients());
        if apart.decay > 0.0 {
            let decayed = gradients.iter_mut().zip(&apart.weights);
            decayed.for_each(|(gradient, weight)| *gradient += apart.decay * weight);
        }
        Ok(())
    }
}

/// The decay that is part of the gradient; the job has no other in mode `async`.
fn decay(optimizer: DenseOptimizer) -> f32 {
    match optimizer {
        DenseOptimizer::AdamW { .. } => 0.0,
        DenseOptimizer::Adam { weight_decay, .. }
        | DenseOptimizer::Adagrad { weight_decay, .. }
        | DenseOptimizer::Sgd { weight_decay, .. } => weight_decay as f32,
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use zagros_job::{Mode, Model};
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::datapath::prepared::{Prepared, Preparer};
    use crate::metrics::Metrics;
    use crate::testing::{batch, job};

    fn dense(mode: Mode, weight_decay: f64) -> (Job, Dense) {
        let mut job = job(1, &[2], Model::Ffnn { hidden: vec![3], dropout: 0.0 });
        job.train.mode = mode;
        job.dense_optimizer = DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay };
        let dense = Dense::new(&job, Metrics::new(&Registry::new())).unwrap();
        (job, dense)
    }

    fn prepared(job: &Job, dense: &Dense) -> Prepared {
        let beside = dense.apart.as_ref().map(Apart::rows);
        Preparer::new(job, Access::Train).beside(beside).prepare(batch(2, &[&[7, 8]])).unwrap()
    }

    /// With a server that is only subtraction: the same losses as a worker that holds its weights itself.
    #[test]
    fn weights_on_a_server_learn_as_weights_here() {
        for weight_decay in [0.0, 0.1] {
            let (here, mut alone) = dense(Mode::Hybrid, weight_decay);
            let (there, mut apart) = dense(Mode::Async, weight_decay);
            let vectors = vec![0.5, -0.25, 0.125, 1.0];
            let mut changes = vec![0.0_f32; 256];
            for step in 0..4 {
                let rows = Rows { tables: vec![vectors.clone()] };
                let expected = alone.step(&prepared(&here, &alone), rows).unwrap();
                let rows = Rows { tables: vec![vectors.clone(), changes.clone()] };
                let found = apart.step(&prepared(&there, &apart), rows).unwrap();
                assert!((found.loss - expected.loss).abs() < 1e-6, "step {step}: {} not {}", found.loss, expected.loss);
                assert_eq!(found.gradients.tables.len(), 2);
                let gradients = &found.gradients.tables[1];
                assert!(gradients[apart.model.weights()..].iter().all(|gradient| *gradient == 0.0));
                changes.iter_mut().zip(gradients).for_each(|(change, gradient)| *change -= 0.1 * gradient);
            }
            assert!(changes.iter().any(|change| change.abs() > 1e-3));
        }
    }

    #[test]
    fn the_rows_of_the_weights_are_the_last_of_a_batch_and_all_must_come() {
        let (job, mut dense) = dense(Mode::Async, 0.0);
        let prepared = prepared(&job, &dense);
        let rows = prepared.unique.tables.last().unwrap();
        assert_eq!((rows.table, rows.dim, rows.ids.as_slice()), (TableId(1), 256, [0].as_slice()));
        assert!(dense.take_weights(&Rows { tables: vec![vec![0.0; 255]] }).is_err());
        dense.take_weights(&Rows { tables: vec![vec![0.0; 256]] }).unwrap();
    }
}
