//! Third stage: the thread of the dense network. It gathers, steps and scatters.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use tokio::sync::oneshot;
use tracing::warn;
use zagros_embedding_client::{BatchRows, EmbeddingClient};
use zagros_job::Job;

use super::prepared::PreparedBatch;
use super::process_group::ProcessGroup;
use super::server_weights::ServerWeights;
use super::tiles::{SharedTiles, TileStore};
use crate::error::WorkerError;
use crate::metrics::{PipelineStage, WorkerMetrics};
use zagros_model::{Backend, DenseModel, InputColumns, ModelError, gather, scatter_add, without_units};

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
        let model = match &tiles {
            Some(tiles) => DenseModel::with_streamed_weights(job, backend, Arc::new(SharedTiles(Arc::clone(tiles))))?,
            None => DenseModel::new(job, backend)?,
        };
        let server_weights = ServerWeights::from_job(job, &model)?;
        let (columns, input, process_group, in_flight) = (InputColumns::new(job), Vec::new(), None, None);
        Ok(Self { model, columns, input, metrics, process_group, in_flight, server_weights, tiles })
    }

    /// One training step; in mode `async` without the update of the weights. `rows` must fit `prepared`
    /// ([`super::prepared::fits`]). Their memory is used again for the gradients.
    ///
    /// # Errors
    /// As [`DenseModel::step`].
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
    ///
    /// # Errors
    /// When they are not as many as the network's weights, or not finite.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::prepared::BatchPreparer;
    use crate::testing::{batch, ffnn, job, metrics, pool_feature, small_job};
    use zagros_job::{Model, Pooling};
    use zagros_protocol::datapath::Access;

    async fn thread(job: &Job) -> DenseThread {
        DenseThread::start(job, zagros_torch::backend(), metrics()).await.unwrap()
    }

    #[tokio::test]
    async fn the_gradient_of_a_shared_row_is_the_sum_over_its_samples() {
        // Two samples with the same id, and the same two samples with ids of their own and equal rows.
        let mut job = job(1, &[2], ffnn(&[3]));
        pool_feature(&mut job, 0, Pooling::Mean);
        let step = async |ids: &'static [u64], rows: Vec<f32>| {
            let mut batch = batch(2, &[ids]);
            batch.categorical[0].offsets = Some(vec![0, 1, 2]);
            let prepared = BatchPreparer::new(&job, Access::Train).prepare(batch).unwrap();
            let rows = BatchRows { tables: vec![rows] };
            thread(&job).await.call(move |dense| dense.step(&prepared, rows)).await.unwrap().unwrap()
        };
        let shared = step(&[7, 7], vec![0.5, -0.25]).await;
        let separate = step(&[7, 8], vec![0.5, -0.25, 0.5, -0.25]).await;
        assert_eq!(shared.logits, separate.logits);
        let (shared, separate) = (&shared.gradients.tables[0], &separate.gradients.tables[0]);
        assert_eq!(shared[..], [separate[0] + separate[2], separate[1] + separate[3]]);
        assert!(shared.iter().any(|gradient| *gradient != 0.0));
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
        let later = thread.call(|dense| dense.model.input_shape().width()).await;
        assert!(later.unwrap_err().to_string().contains("dense thread ended"));
    }
}
