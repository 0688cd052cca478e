//! A network whose weights are on the servers learns like one that holds its weights itself.

use prometheus::Registry;
use zagros_embedding_client::BatchRows;
use zagros_job::{DenseOptimizer, Job, Mode, Model, Parametrization};
use zagros_protocol::TableId;
use zagros_protocol::datapath::Access;
use zagros_zip::ZipEq;

use super::dense::DenseStage;
use super::prepared::{BatchPreparer, PreparedBatch};
use super::server_weights::ServerWeights;
use crate::metrics::WorkerMetrics;
use crate::testing::{batch, job};

fn dense(mode: Mode, weight_decay: f64) -> (Job, DenseStage) {
    let mut job = job(1, &[2], Model::Ffnn { hidden: vec![3, 3], dropout: 0.0 });
    // Three quarters of its width: rates of 4/3 and 3/4.
    job.parametrization = Parametrization::Mup { base_width: 4 };
    job.train.mode = mode;
    job.dense_optimizer = DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay };
    let dense = DenseStage::new(&job, WorkerMetrics::new(&Registry::new())).unwrap();
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
