//! Streamed weights: a worker's layers as tiles on the embedding servers.
//!
//! A layer's tiles are rows of the tables of its tensors. A pull looks them up, and a push sends their gradients; the servers run
//! the optimiser. Both go through the client of rows, so a push is applied at most once (invariant DP-3), also when a server is
//! replaced. A pull of a layer waits for the layer's push before it, and for no other: the pushes of one step and the pulls of
//! the next overlap.
//!
//! ```text
//! layer c   push of step t ────► acknowledged ── pull for step t + 1
//! layer b          push of step t ────► …
//! ```
//!
//! Where a gradient may not be applied before all are known (`train.clip_norm`, `train.non_finite = "skip"`), pushes leave it in its
//! tile, and the end of the step commits all of them. A pull then waits for its layer's commit.
//!
//! Of several workers each pulls its part of a layer and pushes the sum of all workers' gradients for this part. The workers
//! exchange the parts, so the servers send and take each weight once, however many workers there are:
//!
//! ```text
//! servers ── part 0 ──► worker 0 ◄──┐ gather the parts
//!         ── part 1 ──► worker 1 ◄──┘ before a use
//! servers ◄── part 0 ── worker 0 ◄──┐ sum each part
//!         ◄── part 1 ── worker 1 ◄──┘ after a use
//! ```

mod layer;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tracing::info;
use zagros_collective::CollectiveGroup;
use zagros_coordinator_client::Waiting;
use zagros_embedding_client::{EmbeddingClient, PushedBatch};
use zagros_job::Job;
use zagros_protocol::control::WaitKind;
use zagros_protocol::datapath::TileUpdate;
use zagros_table::optimizer::dense::Staging;

use crate::error::WorkerError;
use crate::metrics::{PipelineStage, WorkerMetrics};
use layer::{LayerLane, LayerPart, PushReceipt, TileRequest, TiledLayer, TransferError};
use zagros_model::{GradientLimit, LayerStore, LayerValues, ModelError, PendingLayer, TraversalPurpose};

/// Layers whose gradients are under way at once: one is sent while the next one is computed.
const PUSHES_AT_ONCE: usize = 1;

#[derive(Debug)]
pub(crate) struct TileStore {
    layers: Vec<TiledLayer>,
    limit: GradientLimit,
    on_push: TileUpdate,
    servers: OnceLock<TileServers>,
    workers: Mutex<Option<Arc<LayerWorkers>>>,
    /// By layer: the push that is under way.
    pushes: Vec<Mutex<Option<PushReceipt>>>,
    sums: Mutex<StepSums>,
    metrics: WorkerMetrics,
}

struct TileServers {
    client: Arc<EmbeddingClient>,
    runtime: Handle,
    next: AtomicU64,
    /// Pushes that may be under way: a gradient keeps its memory until it has arrived.
    places: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct StepSums {
    /// By layer: the sum of the squares of this worker's part, where they are staged.
    squares: BTreeMap<usize, f64>,
    /// Why the sum of a layer's gradients was not pushed.
    unpushed: Option<ModelError>,
}

#[derive(Debug)]
struct LayerWorkers {
    lane: LayerLane,
    /// By layer: where each rank's part begins, and where the last one ends.
    bounds: Vec<Vec<usize>>,
    /// By layer: the part of this rank.
    own: Vec<Arc<LayerPart>>,
}

impl TileServers {
    fn number(&self, part: &[TileRequest]) -> PushedBatch {
        self.next.fetch_add(part.len() as u64, Ordering::Relaxed).into()
    }
}

impl std::fmt::Debug for TileServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} servers", self.client.known_servers().len())
    }
}

impl TileStore {
    /// The layers of a job; `None` if its weights are not streamed. [`Self::connect_servers`] must follow before the first step.
    pub(crate) fn from_job(job: &Job, metrics: WorkerMetrics) -> Option<Arc<Self>> {
        let layers: Vec<TiledLayer> = job.worker_layers().iter().map(TiledLayer::new).collect();
        let pushes = layers.iter().map(|_| Mutex::default()).collect();
        if layers.is_empty() {
            return None;
        }
        let weights: usize = layers.iter().map(|layer| layer.weights).sum();
        let largest = layers.iter().map(|layer| layer.weights).max().unwrap_or(0);
        info!(
            weights,
            largest, "the embedding servers hold the weights of the dense network; this worker streams them"
        );
        Some(Arc::new(Self {
            layers,
            limit: GradientLimit::new(job),
            on_push: if job.gradient_staging() == Staging::None { TileUpdate::AtOnce } else { TileUpdate::Stage },
            servers: OnceLock::new(),
            workers: Mutex::default(),
            pushes,
            sums: Mutex::default(),
            metrics,
        }))
    }

    /// Takes the client of the servers. It must be a writer of its own. Call it once, on the runtime that the client runs on.
    pub(crate) fn connect_servers(&self, client: Arc<EmbeddingClient>) {
        let (next, places) = (AtomicU64::new(0), Arc::new(Semaphore::new(PUSHES_AT_ONCE)));
        let _ = self.servers.set(TileServers { client, runtime: Handle::current(), next, places });
    }

    /// Shares the layers with the other ranks of a process group, from the next step on. It makes no other calls.
    pub(crate) fn join_group(&self, group: Box<dyn CollectiveGroup>) -> Result<(), WorkerError> {
        let lane = LayerLane::start(group)?;
        let bounds: Vec<Vec<usize>> = self.layers.iter().map(|layer| layer.part_bounds(lane.world)).collect();
        let own = |(index, layer): (usize, &TiledLayer)| {
            let bounds: &[usize] = &bounds[index];
            Arc::new(layer.cut_part(&(bounds[lane.rank]..bounds[lane.rank + 1])))
        };
        let own = self.layers.iter().enumerate().map(own).collect();
        *lock(&self.workers) = Some(Arc::new(LayerWorkers { lane, bounds, own }));
        *lock(&self.sums) = StepSums::default();
        Ok(())
    }

    pub(crate) fn leave_group(&self) {
        *lock(&self.workers) = None;
    }

    fn servers(&self, layer: usize, what: &'static str) -> Result<&TileServers, ModelError> {
        let reason = || "there are no embedding servers yet".to_owned();
        self.servers.get().ok_or_else(|| ModelError::Layer { layer: self.name(layer), what, reason: reason() })
    }

    fn name(&self, layer: usize) -> String {
        self.layers[layer].name.clone()
    }

    fn failed(&self, layer: usize, what: &'static str, error: TransferError) -> ModelError {
        match error {
            TransferError::Workers(error) => ModelError::Workers(error),
            error => ModelError::Layer { layer: self.name(layer), what, reason: error.to_string() },
        }
    }

    fn under_way(&self, layer: usize) -> Option<PushReceipt> {
        lock(&self.pushes[layer]).take()
    }

    /// Waits for something that the servers, or the other workers, answer within their timeouts.
    fn wait<T>(
        &self,
        layer: usize,
        what: &'static str,
        answer: oneshot::Receiver<Result<T, TransferError>>,
    ) -> Result<T, ModelError> {
        let waiting = Waiting::new("dense thread", WaitKind::Servers, "layer").with_number(layer as u64);
        let _waiting = self.metrics.waits.begin_wait(waiting);
        let started = Instant::now();
        let answered = answer.blocking_recv().unwrap_or(Err(TransferError::RunEnds));
        self.metrics.add_stage_time(PipelineStage::Layers, started.elapsed());
        answered.map_err(|error| self.failed(layer, what, error))
    }

    /// Sums a layer's gradients over all workers. Returns the sum of this rank's part, or nothing if it is not to be pushed.
    fn sum(
        &self,
        layer: usize,
        group: &mut dyn CollectiveGroup,
        workers: &LayerWorkers,
        gradient: LayerValues,
    ) -> Result<Option<LayerValues>, TransferError> {
        let _waiting = self.metrics.waits.begin_wait(of_all("the sum of layer", layer));
        let bounds = &workers.bounds[layer];
        let summed = gradient.lend_to(bounds, |values, bounds| group.reduce_scatter_sum(values, bounds));
        let mut sum = summed.inspect_err(|error| self.note(ModelError::Workers(error.clone())))?;
        if self.prepare(layer, &mut sum[bounds[workers.lane.rank]..bounds[workers.lane.rank + 1]]) {
            return Ok(Some(sum));
        }
        self.note(ModelError::LayerNotFinite { layer: self.name(layer) });
        Ok(None)
    }

    /// Clips a sum that is to be pushed, and counts it if it is to be staged. Returns whether it is finite.
    fn prepare(&self, layer: usize, sum: &mut [f32]) -> bool {
        let is_finite = self.limit.clip_gradients(sum);
        if is_finite && self.on_push == TileUpdate::Stage {
            let squares = sum.iter().map(|gradient| f64::from(*gradient).powi(2)).sum();
            lock(&self.sums).squares.insert(layer, squares);
        }
        is_finite
    }

    /// The first problem of a step is the one to report.
    fn note(&self, problem: ModelError) {
        lock(&self.sums).unpushed.get_or_insert(problem);
    }

    /// The tiles that this worker pulls and pushes in training.
    fn own(&self, layer: usize, workers: Option<&LayerWorkers>) -> Arc<LayerPart> {
        Arc::clone(workers.map_or(&self.layers[layer].whole, |workers| &workers.own[layer]))
    }

    /// Gathers a layer whose part of this rank is on its way.
    fn gather(
        self: &Arc<Self>,
        layer: usize,
        workers: &Arc<LayerWorkers>,
        own: oneshot::Receiver<Result<LayerValues, TransferError>>,
    ) -> oneshot::Receiver<Result<LayerValues, TransferError>> {
        let (store, all) = (Arc::clone(self), Arc::clone(workers));
        let (tell, answer) = oneshot::channel();
        workers.lane.call(move |group| {
            let gathered = own.blocking_recv().unwrap_or(Err(TransferError::RunEnds)).and_then(|own| {
                let _waiting = store.metrics.waits.begin_wait(of_all("the gather of layer", layer));
                Ok(own.lend_to(&all.bounds[layer], |values, bounds| group.all_gather_parts(values, bounds))?)
            });
            let _ = tell.send(gathered);
        });
        answer
    }
}

/// A call that all workers make for a layer.
fn of_all(what: &'static str, layer: usize) -> Waiting {
    Waiting::new("layers", WaitKind::Workers, what).with_number(layer as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct PendingPull {
    store: Arc<TileStore>,
    layer: usize,
    answer: Result<oneshot::Receiver<Result<LayerValues, TransferError>>, ModelError>,
}

impl PendingLayer for PendingPull {
    fn wait(self: Box<Self>) -> Result<LayerValues, ModelError> {
        let Self { store, layer, answer } = *self;
        store.wait(layer, "fetch the weights", answer?)
    }
}

const PUSH: &str = "push the gradient";
const COMMIT: &str = "commit the gradient";

/// The store, as the network has it.
#[derive(Debug)]
pub(crate) struct SharedTiles(pub(crate) Arc<TileStore>);

impl Deref for SharedTiles {
    type Target = Arc<TileStore>;

    fn deref(&self) -> &Arc<TileStore> {
        &self.0
    }
}

impl LayerStore for SharedTiles {
    fn pull(&self, layer: usize, purpose: TraversalPurpose, into: LayerValues) -> Box<dyn PendingLayer> {
        // Each worker scores samples of its own, when it likes.
        let workers = lock(&self.workers).clone().filter(|_| purpose == TraversalPurpose::Training);
        let start = || {
            let servers = self.servers(layer, "fetch the weights")?;
            let client = Arc::clone(&servers.client);
            let (part, before) = (self.own(layer, workers.as_deref()), self.under_way(layer));
            let (tell, mut answer) = oneshot::channel();
            servers.runtime.spawn(async move {
                let _ = tell.send(layer::pull(&client, &part, into, before).await);
            });
            if let Some(workers) = &workers {
                answer = self.gather(layer, workers, answer);
            }
            Ok(answer)
        };
        Box::new(PendingPull { store: Arc::clone(&self.0), layer, answer: start() })
    }

    fn push(&self, layer: usize, step: u64, mut gradient: LayerValues) -> Result<(), ModelError> {
        let servers = self.servers(layer, PUSH)?;
        let workers = lock(&self.workers).clone();
        if workers.is_none() && !self.prepare(layer, &mut gradient) {
            return Err(ModelError::LayerNotFinite { layer: self.name(layer) });
        }
        let part = self.own(layer, workers.as_deref());
        let batch = PushedBatch { step, tiles: self.on_push, ..servers.number(&part) };
        let (client, before) = (Arc::clone(&servers.client), self.under_way(layer));
        let (tell, receipt) = oneshot::channel();
        // Each push ends within the timeouts of servers and workers, and gives its place free.
        let place = servers.runtime.block_on(Arc::clone(&servers.places).acquire_owned());
        let send = async move |gradient: Result<Option<LayerValues>, TransferError>| {
            let pushed = match gradient {
                Ok(Some(gradient)) => layer::push(&client, batch, &part, gradient, before).await,
                unpushed => unpushed.map(drop),
            };
            let _ = tell.send(pushed);
            drop(place);
        };
        match workers {
            None => drop(servers.runtime.spawn(send(Ok(Some(gradient))))),
            Some(workers) => {
                let (store, runtime, all) = (Arc::clone(&self.0), servers.runtime.clone(), Arc::clone(&workers));
                workers.lane.call(move |group| drop(runtime.spawn(send(store.sum(layer, group, &all, gradient)))));
            }
        }
        *lock(&self.pushes[layer]) = Some(receipt);
        Ok(())
    }

    fn summed(&self) -> Result<f64, ModelError> {
        if let Some(workers) = lock(&self.workers).clone() {
            let (tell, done) = oneshot::channel();
            workers.lane.call(move |_| {
                let _ = tell.send(());
            });
            let _ = done.blocking_recv();
        }
        let StepSums { squares, unpushed } = std::mem::take(&mut *lock(&self.sums));
        unpushed.map_or_else(|| Ok(squares.values().sum()), Err)
    }

    fn commit(&self, step: u64, factor: f32) -> Result<(), ModelError> {
        if self.on_push == TileUpdate::AtOnce {
            return Ok(());
        }
        let workers = lock(&self.workers).clone();
        for (layer, place) in self.pushes.iter().enumerate() {
            let (servers, part) = (self.servers(layer, COMMIT)?, self.own(layer, workers.as_deref()));
            let batch = PushedBatch { step, tiles: TileUpdate::Commit, factor, ..servers.number(&part) };
            let (client, before) = (Arc::clone(&servers.client), self.under_way(layer));
            let (tell, receipt) = oneshot::channel();
            servers.runtime.spawn(async move {
                let _ = tell.send(layer::commit(&client, batch, &part, before).await);
            });
            *lock(place) = Some(receipt);
        }
        Ok(())
    }

    fn wait_for_pushes(&self) -> Result<(), ModelError> {
        for layer in 0..self.layers.len() {
            let Some(receipt) = self.under_way(layer) else { continue };
            match self.wait(layer, PUSH, receipt) {
                // The step of that sum is given up, and the code that made the step knows.
                Ok(()) | Err(ModelError::Workers(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
