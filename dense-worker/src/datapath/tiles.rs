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

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tracing::info;
use zagros_coordinator_client::{Waiting, Waits};
use zagros_embedding_client::{BatchRows, ClientError, EmbeddingClient, PushedBatch, RoutedIds, TableIds, UniqueIds};
use zagros_job::{Job, StreamedLayer};
use zagros_protocol::TableId;
use zagros_protocol::control::WaitKind;
use zagros_protocol::datapath::Access;
use zagros_zip::{ZipEq, number_from};

use crate::model::{LayerStore, LayerValues, ModelError, PendingLayer};

/// Tiles of one request, at most 4 MiB of weights: a layer comes in several answers at once.
const TILES_PER_REQUEST: usize = 16;
/// Requests of a layer that are under way at once: enough for several servers, and few enough that their payloads are small
/// beside a layer.
const REQUESTS_AT_ONCE: usize = 4;
/// Layers whose gradients are under way at once: one is sent while the next one is computed.
const PUSHES_AT_ONCE: usize = 1;

/// The layers of a job whose weights are streamed.
#[derive(Debug)]
pub(crate) struct TileStore {
    layers: Vec<TiledLayer>,
    servers: OnceLock<TileServers>,
    /// By layer: the push that is under way.
    pushes: Vec<Mutex<Option<Receipt>>>,
    waits: Waits,
}

/// What a push answers once all servers have acknowledged it.
type Receipt = oneshot::Receiver<Result<(), ClientError>>;

struct TileServers {
    client: Arc<EmbeddingClient>,
    runtime: Handle,
    access: Access,
    /// Number of the next push.
    next: AtomicU64,
    /// Pushes that may be under way: a gradient keeps its memory until it has arrived.
    places: Arc<Semaphore>,
}

#[derive(Debug)]
struct TiledLayer {
    name: String,
    weights: usize,
    requests: Arc<Vec<TileRequest>>,
}

/// Some tiles of a layer.
#[derive(Debug)]
struct TileRequest {
    ids: RoutedIds,
    /// For each table of the ids: the weights of the layer that its tiles hold, without what fills the last one up.
    weights: Vec<Range<usize>>,
}

impl std::fmt::Debug for TileServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} servers", self.client.servers().len())
    }
}

impl TileStore {
    /// The layers of a job; `None` if its weights are not streamed. [`Self::connect`] must follow before the first step.
    pub(crate) fn of(job: &Job, waits: Waits) -> Option<Arc<Self>> {
        let layers: Vec<TiledLayer> = job.streamed_layers().iter().map(TiledLayer::of).collect();
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
        Some(Arc::new(Self { layers, servers: OnceLock::new(), pushes, waits }))
    }

    /// Takes the client of the servers. It must be a writer of its own. Call it once, on the runtime that the client runs on.
    pub(crate) fn connect(&self, client: Arc<EmbeddingClient>, access: Access) {
        let (next, places) = (AtomicU64::new(0), Arc::new(Semaphore::new(PUSHES_AT_ONCE)));
        let _ = self.servers.set(TileServers { client, runtime: Handle::current(), access, next, places });
    }

    fn servers(&self, layer: usize, what: &'static str) -> Result<&TileServers, ModelError> {
        self.servers.get().ok_or_else(|| self.failed(layer, what, "there are no embedding servers yet".to_owned()))
    }

    fn failed(&self, layer: usize, what: &'static str, reason: String) -> ModelError {
        ModelError::Layer { layer: self.layers[layer].name.clone(), what, reason }
    }

    fn under_way(&self, layer: usize) -> Option<Receipt> {
        self.pushes[layer].lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits for something that the servers answer within the client's timeout.
    fn wait<T>(
        &self,
        layer: usize,
        what: &'static str,
        answer: oneshot::Receiver<Result<T, ClientError>>,
    ) -> Result<T, ModelError> {
        let waiting = Waiting::new("dense thread", WaitKind::Servers, "layer").numbered(layer as u64);
        let _waiting = self.waits.begin(waiting);
        match answer.blocking_recv() {
            Ok(answered) => answered.map_err(|error| self.failed(layer, what, error.to_string())),
            Err(_) => Err(self.failed(layer, what, "the run ends".to_owned())),
        }
    }
}

impl TiledLayer {
    fn of(layer: &StreamedLayer) -> Self {
        let (mut requests, mut first) = (Vec::new(), 0);
        let (mut tables, mut weights, mut tiles): (Vec<TableIds>, Vec<Range<usize>>, usize) = Default::default();
        for tensor in &layer.tensors {
            let (dim, end) = (tensor.tiles.dim, first + tensor.segment.range.len());
            let mut tile = 0;
            while tile < tensor.tiles.count {
                let count = (TILES_PER_REQUEST - tiles).min(tensor.tiles.count - tile);
                let ids = (tile as u64..(tile + count) as u64).collect();
                tables.push(TableIds::rows(TableId(tensor.table), dim as u32, ids));
                weights.push(first + tile * dim..end.min(first + (tile + count) * dim));
                (tile, tiles) = (tile + count, tiles + count);
                if tiles == TILES_PER_REQUEST {
                    requests.push(TileRequest::of(&mut tables, &mut weights));
                    tiles = 0;
                }
            }
            first = end;
        }
        if tiles > 0 {
            requests.push(TileRequest::of(&mut tables, &mut weights));
        }
        Self { name: layer.name.clone(), weights: first, requests: Arc::new(requests) }
    }
}

impl TileRequest {
    fn of(tables: &mut Vec<TableIds>, weights: &mut Vec<Range<usize>>) -> Self {
        let (tables, weights) = (std::mem::take(tables), std::mem::take(weights));
        Self { ids: UniqueIds { tables }.into(), weights }
    }

    /// Copies the weights of an answer to their places in the layer.
    fn take(&self, rows: &BatchRows, layer: &mut [f32]) {
        for (values, range) in rows.tables.iter().zip_eq(&self.weights) {
            let weights = &mut layer[range.clone()];
            weights.copy_from_slice(&values[..weights.len()]);
        }
    }

    /// The gradients of this request's tiles, with zeros for what fills the last one up.
    fn give(&self, gradient: &[f32]) -> BatchRows {
        let mut rows = BatchRows { tables: Vec::with_capacity(self.weights.len()) };
        for (table, range) in self.ids.tables.iter().zip_eq(&self.weights) {
            let mut values = Vec::with_capacity(table.ids.len() * table.dim as usize);
            values.extend_from_slice(&gradient[range.clone()]);
            values.resize(table.ids.len() * table.dim as usize, 0.0);
            rows.tables.push(values);
        }
        rows
    }
}

/// A pull that is under way.
#[derive(Debug)]
struct Pull {
    store: Arc<TileStore>,
    layer: usize,
    answer: Result<oneshot::Receiver<Result<LayerValues, ClientError>>, ModelError>,
}

impl PendingLayer for Pull {
    fn wait(self: Box<Self>) -> Result<LayerValues, ModelError> {
        let Self { store, layer, answer } = *self;
        store.wait(layer, "fetch the weights", answer?)
    }
}

const PUSH: &str = "push the gradient";

impl LayerStore for Arc<TileStore> {
    fn pull(&self, layer: usize, into: LayerValues) -> Box<dyn PendingLayer> {
        let start = || {
            let servers = self.servers(layer, "fetch the weights")?;
            let (client, access) = (Arc::clone(&servers.client), servers.access);
            let (requests, before) = (Arc::clone(&self.layers[layer].requests), self.under_way(layer));
            let (tell, answer) = oneshot::channel();
            servers.runtime.spawn(async move {
                let _ = tell.send(pull(&client, access, &requests, into, before).await);
            });
            Ok(answer)
        };
        Box::new(Pull { store: Arc::clone(self), layer, answer: start() })
    }

    fn push(&self, layer: usize, step: u64, gradient: LayerValues) -> Result<(), ModelError> {
        let servers = self.servers(layer, PUSH)?;
        let requests = Arc::clone(&self.layers[layer].requests);
        let seq = servers.next.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let (client, before) = (Arc::clone(&servers.client), self.under_way(layer));
        let (tell, receipt) = oneshot::channel();
        // Each push ends within the client's timeout, and gives its place free.
        let place = servers.runtime.block_on(Arc::clone(&servers.places).acquire_owned());
        servers.runtime.spawn(async move {
            let _ = tell.send(push(&client, (seq, step), &requests, gradient, before).await);
            drop(place);
        });
        *self.pushes[layer].lock().unwrap_or_else(PoisonError::into_inner) = Some(receipt);
        Ok(())
    }

    fn settle(&self) -> Result<(), ModelError> {
        for layer in 0..self.layers.len() {
            if let Some(receipt) = self.under_way(layer) {
                self.wait(layer, PUSH, receipt)?;
            }
        }
        Ok(())
    }
}

/// Writes the weights of a layer, after its push before, to `layer`.
async fn pull(
    client: &EmbeddingClient,
    access: Access,
    requests: &[TileRequest],
    mut layer: LayerValues,
    before: Option<Receipt>,
) -> Result<LayerValues, ClientError> {
    acknowledged(before).await?;
    for group in requests.chunks(REQUESTS_AT_ONCE) {
        let answers = try_join_all(group.iter().map(|request| client.lookup(&request.ids, access))).await?;
        for (request, rows) in group.iter().zip_eq(&answers) {
            request.take(rows, &mut layer);
        }
    }
    Ok(layer)
}

/// Pushes a layer's gradient at a step. The requests have numbers from `seq` on.
async fn push(
    client: &EmbeddingClient,
    (seq, step): (u64, u64),
    requests: &[TileRequest],
    gradient: LayerValues,
    before: Option<Receipt>,
) -> Result<(), ClientError> {
    acknowledged(before).await?;
    for (first, group) in number_from(0, requests.chunks(REQUESTS_AT_ONCE)) {
        let parts: Vec<BatchRows> = group.iter().map(|request| request.give(&gradient)).collect();
        let numbered = number_from(seq + first * REQUESTS_AT_ONCE as u64, group.iter().zip_eq(&parts));
        let each = numbered.map(|(seq, (request, rows))| {
            client.push(PushedBatch { seq, step, staleness: 0, share: 1.0 }, &request.ids, rows)
        });
        try_join_all(each).await?;
    }
    Ok(())
}

/// Waits for an earlier push.
async fn acknowledged(before: Option<Receipt>) -> Result<(), ClientError> {
    match before {
        // A push whose task is gone belongs to a run that ends.
        Some(receipt) => receipt.await.unwrap_or(Ok(())),
        None => Ok(()),
    }
}
