//! Jobs, batches, and fakes of the processes that a worker talks to.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::{ClientConfig, EmbeddingClient, Shard};
pub(crate) use zagros_fakes::jobs::{
    assert_refused, class_target, ffnn, job, normed_net, number_target, pool_at, pool_feature, sequence, small_job,
};
use zagros_fakes::{FakeControlPlane, FakeShard};
use zagros_ingest::{Batch, CategoryIds, IngestError, StreamStats};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, PlacementResponse,
    SaveRequest, SaveResponse, ServerEntry,
};
use zagros_protocol::datapath::{
    Encoding, HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse,
};
use zagros_protocol::{BucketMap, Generation, Refusal};
use zagros_zip::number_from;

use crate::datapath::read::BatchSource;
use crate::metrics::WorkerMetrics;

pub(crate) fn metrics() -> WorkerMetrics {
    WorkerMetrics::new(&prometheus::Registry::new())
}

/// A client that knows its only server, and the server.
pub(crate) async fn client(shard: FakeShard) -> (Arc<EmbeddingClient>, Arc<WorkerShard>) {
    let shard = Arc::new(WorkerShard(shard));
    let server: Arc<dyn Shard> = Arc::clone(&shard) as _;
    let config = ClientConfig { writer: 1, incarnation: 1, wire: Encoding::F32, timeout: Duration::from_secs(60) };
    let connect = Arc::new(move |_: &_| Ok(Arc::clone(&server)));
    let client = Arc::new(EmbeddingClient::new(config, Arc::new(FakeControlPlane::default()), connect));
    client.refresh_placement().await.unwrap();
    (client, shard)
}

pub(crate) const SERVERS_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of these servers. One placement after the other has the first of them, as many as `counts` says; the last one stays.
pub(crate) fn servers_client(counts: &[u32], servers: Vec<Arc<dyn Shard>>) -> EmbeddingClient {
    let placement = |(generation, count): (u64, &u32)| {
        let entry =
            |index| ServerEntry { index, address: "fake:0".to_owned(), instance: 1, alive: true, run: 1, lineage: 0 };
        let (owners, servers) = (BucketMap::split_evenly(Generation(generation), 16, *count), (0..*count).map(entry));
        let (owners, servers) = (owners.pack_owners().into(), servers.collect());
        Ok(PlacementResponse { generation, owners, servers, ..PlacementResponse::default() })
    };
    let control = FakeControlPlane::default();
    control.placement.respond_in_order(number_from(1, counts).map(placement));
    let config = ClientConfig { writer: 1, incarnation: 1, wire: Encoding::F32, timeout: SERVERS_TIMEOUT };
    let connect = Arc::new(move |entry: &ServerEntry| Ok(Arc::clone(&servers[entry.index as usize])));
    EmbeddingClient::new(config, Arc::new(control), connect)
}

/// `size` samples with one numeric value each; one single-valued feature per entry of `ids`.
pub(crate) fn batch(size: usize, ids: &[&[u64]]) -> Batch {
    Batch {
        size,
        labels: (0..size).map(|sample| (sample % 2) as f32).collect(),
        numeric: vec![0.5; size],
        categorical: ids.iter().map(|ids| CategoryIds { ids: ids.to_vec(), ..CategoryIds::default() }).collect(),
        ..Batch::default()
    }
}

pub(crate) struct ScriptedBatches {
    items: Box<dyn Iterator<Item = Result<Batch, IngestError>> + Send>,
    rows: u64,
}

impl ScriptedBatches {
    pub(crate) fn new(items: impl IntoIterator<Item = Result<Batch, IngestError>, IntoIter: Send + 'static>) -> Self {
        Self { items: Box::new(items.into_iter()), rows: 0 }
    }
}

impl Iterator for ScriptedBatches {
    type Item = Result<Batch, IngestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.items.next()?;
        self.rows += item.as_ref().map_or(0, |batch| batch.size as u64);
        Some(item)
    }
}

impl BatchSource for ScriptedBatches {
    fn stats(&self) -> StreamStats {
        StreamStats { rows: self.rows, ..StreamStats::default() }
    }
}

/// The fake embedding server of all tests, as a shard of a worker.
#[derive(Default)]
pub(crate) struct WorkerShard(pub(crate) FakeShard);

impl Deref for WorkerShard {
    type Target = FakeShard;

    fn deref(&self) -> &FakeShard {
        &self.0
    }
}

impl Shard for WorkerShard {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn lookup(&self, request: LookupRequest, _: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.0.lookup(request).boxed()
    }

    fn push(&self, request: PushRequest, _: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        self.0.push(request).boxed()
    }

    fn hint(&self, request: HintRequest, _: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        self.0.hint(request).boxed()
    }

    fn describe(&self, _: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.0.describe().boxed()
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.0.save(request).boxed()
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.0.load(request).boxed()
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        self.0.forget(request).boxed()
    }
}
