//! Third stage: the thread of the dense network. It gathers, steps and scatters. In mode `async` it has its weights from the servers
//! ([`ServerWeights`]).

use std::sync::{Arc, mpsc};
use std::time::Instant;

use tokio::sync::oneshot;
use tracing::warn;
use zagros_embedding_client::{BatchRows, EmbeddingClient, TableIds};
use zagros_job::{DenseOptimizer, Job};
use zagros_model::{
    Backend, DenseModel, InputColumns, LayerStore, ModelError, RateRange, gather, scatter_add, without_units,
};
use zagros_protocol::TableId;
use zagros_zip::ZipEq;

use super::prepared::PreparedBatch;
use super::process_group::ProcessGroup;
use super::tiles::{SharedTiles, TileStore};
use crate::error::WorkerError;
use crate::metrics::{PipelineStage, WorkerMetrics};

type DenseTask = Box<dyn FnOnce(&mut DenseStage) + Send>;

/// The thread ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct DenseThread {
    work: mpsc::Sender<DenseTask>,
}

#[derive(Debug)]
pub(crate) struct DenseStage {
    pub(crate) model: DenseModel,
    columns: InputColumns,
    /// `[batch, ΣD]`, used again for each batch.
    pub(super) input: Vec<f32>,
    pub(super) metrics: WorkerMetrics,
    pub(super) process_group: Option<ProcessGroup>,
    /// A step of this worker that other workers may have made, because not all sums arrived here.
    pub(crate) in_flight: Option<StepResult>,
    /// Mode `async`: the weights live on the servers.
    pub(crate) server_weights: Option<ServerWeights>,
    pub(crate) tiles: Option<Arc<TileStore>>,
}

#[derive(Clone, Debug)]
pub(crate) struct StepResult {
    pub(crate) loss: f32,
    pub(crate) logits: Vec<f32>,
    /// For each row and sum that was looked up: the sum of its gradients over the batch.
    pub(crate) gradients: BatchRows,
    /// The share of this worker's samples in the step. It is 1 if the worker steps alone.
    pub(crate) share: f32,
}

impl DenseThread {
    pub(crate) async fn start(job: &Job, backend: Backend, metrics: WorkerMetrics) -> Result<Self, WorkerError> {
        let (send, work) = mpsc::channel::<DenseTask>();
        let (tell_built, built) = oneshot::channel();
        let job = job.clone();
        let run = move || match DenseStage::new(&job, backend, metrics) {
            Ok(mut dense) => {
                let _ = tell_built.send(Ok(()));
                work.into_iter().for_each(|work| work(&mut dense));
            }
            Err(error) => {
                let _ = tell_built.send(Err(error));
            }
        };
        let spawned = std::thread::Builder::new().name("dense".to_owned()).spawn(run);
        spawned.map_err(|error| thread_error(format!("cannot start: {error}")))?;
        built.await.map_err(|_| ended())??;
        Ok(Self { work: send })
    }

    /// Gives streamed weights the client of their servers, if the job has any.
    pub(crate) async fn stream_by(&self, client: impl FnOnce() -> EmbeddingClient) -> Result<(), WorkerError> {
        if let Some(tiles) = self.call(|dense| dense.tiles.clone()).await? {
            tiles.connect_servers(Arc::new(client()));
        }
        Ok(())
    }

    /// Runs `work` on the thread, after earlier work. It always ends: a step waits for nothing but the other workers, and
    /// that wait has a deadline.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut DenseStage) -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let (tell, answer) = oneshot::channel();
        let work: DenseTask = Box::new(move |dense| {
            // The caller may have given up.
            let _ = tell.send(work(dense));
        });
        self.work.send(work).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())
    }
}

impl DenseStage {
    pub(super) fn new(job: &Job, backend: Backend, metrics: WorkerMetrics) -> Result<Self, ModelError> {
        if let Some(precision) = without_units(job) {
            warn!(
                "this processor has no {precision} units, so train.precision = \"{precision}\" is slower than \"f32\""
            );
        }
        let tiles = TileStore::from_job(job, metrics.clone());
        let store = tiles.as_ref().map(|tiles| Arc::new(SharedTiles(Arc::clone(tiles))) as Arc<dyn LayerStore>);
        let model = DenseModel::with_store(job, backend, store)?;
        let server_weights = ServerWeights::from_job(job, &model)?;
        let (columns, input, process_group, in_flight) = (InputColumns::new(job), Vec::new(), None, None);
        Ok(Self { model, columns, input, metrics, process_group, in_flight, server_weights, tiles })
    }

    /// One training step; in mode `async` without the update of the weights. `rows` must fit `prepared`
    /// ([`super::prepared::fits`]). Their memory is used again for the gradients.
    pub(crate) fn step(&mut self, prepared: &PreparedBatch, mut rows: BatchRows) -> Result<StepResult, ModelError> {
        let timer = self.metrics.step_seconds.start_timer();
        let started = Instant::now();
        self.take_weights(&rows)?;
        self.gather(prepared, &rows);
        self.metrics.add_stage_time(PipelineStage::Gather, started.elapsed());
        let started = Instant::now();
        let samples = prepared.labelled_samples(&self.input);
        let output = match self.server_weights {
            None => self.model.step_on(samples)?,
            Some(_) => self.model.gradients_of(samples)?,
        };
        self.metrics.add_stage_time(PipelineStage::Dense, started.elapsed());
        self.scatter(prepared, &output.gradients, &mut rows);
        if let Some(server_weights) = &self.server_weights {
            server_weights.give_gradients(&self.model, &mut rows)?;
        }
        timer.observe_duration();
        Ok(StepResult { loss: output.loss, logits: output.logits, gradients: rows, share: 1.0 })
    }

    /// In mode `async`, takes the weights from the last of `rows`.
    pub(crate) fn take_weights(&mut self, rows: &BatchRows) -> Result<(), ModelError> {
        self.server_weights.as_mut().map_or(Ok(()), |weights| weights.take(&mut self.model, rows))
    }

    /// Outputs of a batch, `[batch, outputs]`. Changes nothing.
    pub(crate) fn predict(&mut self, prepared: &PreparedBatch, rows: &BatchRows) -> Result<Vec<f32>, ModelError> {
        self.gather(prepared, rows);
        self.model.predict(&prepared.batch.numeric, &self.input, prepared.batch.size)
    }

    pub(super) fn gather(&mut self, prepared: &PreparedBatch, rows: &BatchRows) {
        self.input.resize(prepared.batch.size * self.columns.width, 0.0);
        for (index, column) in self.columns.features.iter().enumerate() {
            let (slot, positions) = prepared.feature_positions(index);
            gather(column, self.columns.width, positions, &rows.tables[slot], &mut self.input);
        }
    }

    pub(super) fn scatter(&self, prepared: &PreparedBatch, gradients: &[f32], into: &mut BatchRows) {
        let started = Instant::now();
        into.tables.iter_mut().for_each(|table| table.fill(0.0));
        for (index, column) in self.columns.features.iter().enumerate() {
            let (slot, positions) = prepared.feature_positions(index);
            scatter_add(column, self.columns.width, positions, gradients, &mut into.tables[slot]);
        }
        self.metrics.add_stage_time(PipelineStage::Scatter, started.elapsed());
    }
}

fn ended() -> WorkerError {
    thread_error("ended without a message; its panic is on standard error".to_owned())
}

fn thread_error(reason: String) -> WorkerError {
    WorkerError::Thread { thread: "dense", reason }
}

/// Mode `async`: the embedding servers hold the dense network's weights as rows of a separate table ([`Job::dense_table`]).
/// Each worker makes its own steps.
///
/// A row holds the difference between its weights and the first weights, which every worker makes from the seed (invariant
/// AS-1). A worker looks these rows up together with those of a batch, so both miss at most τ batches of this worker. The
/// gradients of the weights are those of the worker's own batch. They are part of the batch's push, so they are applied at
/// most once and within the same window.
///
/// The servers have one learning rate for all rows. Where µP has another, the change of a weight is that of its row times the factor: the
/// update of Adam and Adagrad does not depend on the size of the gradient, and that of SGD is in proportion to it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, metrics, small_job};
    use zagros_job::Model;

    async fn thread(job: &Job) -> DenseThread {
        DenseThread::start(job, zagros_torch::backend(), metrics()).await.unwrap()
    }

    #[tokio::test]
    async fn a_network_that_cannot_be_built_is_reported_at_the_start() {
        let job = job(0, &[2], Model::Dlrm { bottom: vec![], top: vec![], dropout: 0.0 });
        let refused = DenseThread::start(&job, zagros_torch::backend(), metrics()).await.unwrap_err();
        assert!(matches!(refused, WorkerError::Model(ModelError::Shape { .. })), "{refused}");
    }

    #[tokio::test]
    async fn a_panic_on_the_thread_is_an_error_here() {
        let thread = thread(&small_job()).await;
        assert!(thread.call(|_| panic!("as the test wants")).await.is_err());
        let later = thread.call(|dense| dense.model.input_columns().width).await;
        assert!(later.unwrap_err().to_string().contains("dense thread ended"));
    }
}

/// A network whose weights are on the servers learns like one that holds its weights itself.
#[cfg(test)]
mod server_weights_tests {
    use zagros_job::{Mode, Parametrization};
    use zagros_protocol::datapath::Access;

    use super::*;

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
