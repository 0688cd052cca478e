//! Bags summed by the worker beside bags summed by the embedding servers: bytes and CPU over loopback, in one run.
//!
//! `cargo bench -p zagros-dense-worker --bench pooling -- [--servers N] [--bags N] [--rounds N] [--quick]`
//!
//! A round looks up one batch of bags of a table, pools it, and pushes its gradients back; ids follow Zipf's law over a
//! million rows. CPU is that of client and servers together, which share the process; bytes are those of all payloads.
//! Both ways must give the same vectors up to rounding.

#[path = "../tests/one_process/watched.rs"]
mod watched;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::Registry;
use rustix::time::{ClockId, clock_gettime};
use tokio::net::TcpListener;
use watched::{PayloadCounter, WatchedShard};
use zagros_coordinator::LocalCoordinator;
use zagros_coordinator_client::{Membership, wait_for_placement};
use zagros_embedding_client::{
    BatchRows, ClientConfig, Connect, Deduplicator, EmbeddingClient, FeatureIds, GrpcShard, Shard, TableBags, bag_bytes,
};
use zagros_embedding_server::ServerConfig;
use zagros_job::{Job, Overrides, Pooling};
use zagros_model::{InputColumn, RowPositions, VectorForm, gather, scatter_add};
use zagros_plumbing::Shutdown;
use zagros_plumbing::admin::PageAccess;
use zagros_protocol::control::{DataFile, JoinRequest, Role};
use zagros_protocol::datapath::{Access, Encoding};
use zagros_protocol::{PROTOCOL_VERSION, ServerIndex, TableId};
use zagros_transport::Credentials;
use zagros_zip::ZipEq;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const DIM: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Natural logarithm of the rows that ids are drawn from.
const LOG_ROWS: f64 = 13.8;

struct BenchOptions {
    servers: u32,
    bags: usize,
    rounds: usize,
}

struct BagBatch {
    ids: Vec<u64>,
    offsets: Vec<u32>,
}

struct ClientSide {
    client: EmbeddingClient,
    _member: Membership,
    deduplicator: Deduplicator,
    bytes: Arc<AtomicU64>,
    pushes: u64,
}

/// What one way costs a batch.
struct BatchCost {
    bytes: u64,
    cpu: Duration,
}

fn main() -> Outcome<()> {
    let plan = plan(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(&plan))
}

async fn measure(plan: &BenchOptions) -> Outcome<()> {
    let mut side = start(plan.servers).await?;
    println!(
        "{} bags a batch, dim {DIM}, f32, {} server(s), least CPU of {} rounds\n",
        plan.bags, plan.servers, plan.rounds
    );
    println!("             bytes a batch                      CPU ms a batch");
    println!("length rows      at worker   at server   ratio   at worker   at server   ratio   auto");
    for length in [1, 4, 16, 64] {
        let batch = batch(plan.bags, length);
        let (rows, _) = side.dedup(&batch);
        let (worker, server) = compare(&mut side, &batch, plan.rounds).await?;
        let chosen = bag_bytes(&batch.offsets, DIM * 4, plan.servers) < (rows * DIM * 4) as u64;
        let ratio = server.bytes as f64 / worker.bytes as f64;
        let ms = |cost: &BatchCost| 1e3 * cost.cpu.as_secs_f64();
        println!(
            "{length:>6} {rows:<8} {:>10} {:>11} {ratio:>7.2} {:>11.2} {:>11.2} {:>7.2}   {}",
            worker.bytes,
            server.bytes,
            ms(&worker),
            ms(&server),
            ms(&server) / ms(&worker),
            if chosen { "server" } else { "worker" },
        );
        assert_eq!(chosen, server.bytes < worker.bytes, "the choice is not the one of fewer bytes");
    }
    Ok(())
}

/// Both ways in turn, so that what else runs on the machine meets both.
async fn compare(side: &mut ClientSide, batch: &BagBatch, rounds: usize) -> Outcome<(BatchCost, BatchCost)> {
    let (at_worker, at_server) = (side.look(batch, false).await?, side.look(batch, true).await?);
    assert_eq!(at_worker.len(), at_server.len());
    for (expected, found) in at_worker.iter().zip_eq(&at_server) {
        assert!((expected - found).abs() < 1e-5, "{expected} at the worker, {found} at the servers");
    }
    let mut costs = [false, true].map(|_| BatchCost { bytes: 0, cpu: Duration::MAX });
    for _ in 0..rounds {
        for (at_server, cost) in [false, true].into_iter().zip_eq(&mut costs) {
            let (bytes, cpu) = (side.bytes.load(Ordering::Acquire), cpu());
            side.step(batch, at_server).await?;
            cost.bytes = side.bytes.load(Ordering::Acquire) - bytes;
            cost.cpu = cost.cpu.min(self::cpu().saturating_sub(cpu));
        }
    }
    let [worker, server] = costs;
    Ok((worker, server))
}

impl ClientSide {
    fn dedup(&mut self, batch: &BagBatch) -> (usize, Vec<u32>) {
        let (unique, mut inverse) = self.unique(batch);
        (unique.id_count(), inverse.remove(0))
    }

    fn unique(&mut self, batch: &BagBatch) -> (zagros_embedding_client::UniqueIds, Vec<Vec<u32>>) {
        self.deduplicator.dedup_batch(&[FeatureIds { table: TableId(0), dim: DIM as u32, ids: &batch.ids }])
    }

    /// The pooled vectors, from rows that are not created.
    async fn look(&mut self, batch: &BagBatch, at_server: bool) -> Outcome<Vec<f32>> {
        Ok(self.pooled(batch, at_server, Access::Read).await?.0)
    }

    /// Looked up, pooled, pushed.
    async fn step(&mut self, batch: &BagBatch, at_server: bool) -> Outcome<()> {
        let (vectors, unique, inverse) = self.pooled(batch, at_server, Access::Train).await?;
        let mut gradients = BatchRows::zeros_like(&unique);
        let positions = positions(batch, &inverse, at_server);
        scatter_add(&column(), DIM, positions, &vectors, &mut gradients.tables[0]);
        self.pushes += 1;
        self.client.push(self.pushes, &unique, &gradients).await?;
        Ok(())
    }

    async fn pooled(
        &mut self,
        batch: &BagBatch,
        at_server: bool,
        access: Access,
    ) -> Outcome<(Vec<f32>, zagros_embedding_client::RoutedIds, Vec<u32>)> {
        let (mut unique, mut inverse) = self.unique(batch);
        let inverse = inverse.remove(0);
        if at_server {
            let mut bags = TableBags::new(0);
            bags.add_bags(&inverse, &batch.offsets);
            unique.tables[0].bags = Some(bags);
        }
        let unique = zagros_embedding_client::RoutedIds::from(unique);
        let rows = self.client.lookup(&unique, access).await?;
        let mut vectors = vec![0.0; (batch.offsets.len() - 1) * DIM];
        gather(&column(), DIM, positions(batch, &inverse, at_server), &rows.tables[0], &mut vectors);
        Ok((vectors, unique, inverse))
    }
}

fn column() -> InputColumn {
    InputColumn { table: 0, dim: DIM, offset: 0, form: VectorForm::Pooled(Pooling::Mean) }
}

fn positions<'a>(batch: &'a BagBatch, inverse: &'a [u32], at_server: bool) -> RowPositions<'a> {
    let offsets = &batch.offsets;
    if at_server { RowPositions::Sums { first: 0, offsets } } else { RowPositions::Bags { inverse, offsets } }
}

/// Starts the servers and a client that reaches them through sockets.
async fn start(servers: u32) -> Outcome<ClientSide> {
    let job = Arc::new(job(servers)?);
    let control = LocalCoordinator::new(&job, &Registry::new());
    for index in 0..servers {
        let data_listener = TcpListener::bind("127.0.0.1:0").await?;
        let config = ServerConfig {
            job: Arc::clone(&job),
            index: ServerIndex(index),
            control: Arc::<LocalCoordinator>::clone(&control),
            advertised: data_listener.local_addr()?.to_string(),
            data_listener,
            admin_listener: None,
            credentials: Credentials::Open,
            page: PageAccess::ThisMachine,
            storage_folders: Vec::new(),
            on_stop: zagros_plumbing::StopMeaning::Drain,
            registry: Registry::new(),
        };
        tokio::spawn(zagros_embedding_server::run(config, Shutdown::new()));
    }
    wait_for_placement(control.as_ref(), TIMEOUT, &Shutdown::new()).await?;
    let bytes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&bytes);
    let connect: Connect = Arc::new(move |entry| {
        let shard = GrpcShard::connect(entry, TIMEOUT, &Credentials::Open)?;
        Ok(Arc::new(WatchedShard::new(shard, PayloadCounter(Arc::clone(&counted)))) as Arc<dyn Shard>)
    });
    let member = Membership::join(control.clone(), request(&job), TIMEOUT, &Shutdown::new()).await?;
    let (writer, incarnation) = (member.member_id(), member.incarnation());
    let config = ClientConfig { writer, incarnation, wire: Encoding::F32, timeout: TIMEOUT };
    let client = EmbeddingClient::new(config, control, connect);
    Ok(ClientSide { client, _member: member, deduplicator: Deduplicator::new(), bytes, pushes: 0 })
}

/// Servers take gradients from members alone.
fn request(job: &Job) -> JoinRequest {
    let memory = DataFile { path: "(memory)".to_owned(), bytes: 1, splittable: false, fingerprint: 0 };
    JoinRequest {
        role: Role::DenseWorker.into(),
        job_fingerprint: job.fingerprint(),
        protocol_version: PROTOCOL_VERSION,
        files: vec![memory],
        ..JoinRequest::default()
    }
}

fn job(servers: u32) -> Outcome<Job> {
    let text = format!(
        r#"
        [data]
        format = "delimited"
        train = "train.csv"
        columns = ["label", "tags"]
        header = false
        [features]
        label = "label"
        categorical = [{{ column = "tags", separator = "|", pooling = "mean" }}]
        [embedding]
        dim = {DIM}
        [model]
        kind = "ffnn"
        [cluster]
        servers = {servers}
        # A log would cost both sides the same.
        durability = "checkpoint"
        "#
    );
    Job::parse(&text, Path::new("pooling.toml"), &Overrides::none()).map_err(|errors| errors.to_string().into())
}

/// The logarithm of Zipf's ids is uniform.
fn batch(bags: usize, length: usize) -> BagBatch {
    let draw = |draw: usize| {
        let uniform = (mixed(draw as u64) >> 11) as f64 / (1_u64 << 53) as f64;
        mixed((uniform * LOG_ROWS).exp() as u64)
    };
    let offsets = (0..=bags).map(|bag| (bag * length) as u32).collect();
    BagBatch { ids: (0..bags * length).map(draw).collect(), offsets }
}

/// SplitMix64's finaliser.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Of all threads of this process.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn plan(arguments: impl Iterator<Item = String>) -> Outcome<BenchOptions> {
    let mut plan = BenchOptions { servers: 1, bags: 4096, rounds: 30 };
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut number = || -> Outcome<usize> { Ok(arguments.next().ok_or("a number is missing")?.parse()?) };
        match argument.as_str() {
            "--quick" => (plan.bags, plan.rounds) = (256, 2),
            "--servers" => plan.servers = number()?.try_into()?,
            "--bags" => plan.bags = number()?,
            "--rounds" => plan.rounds = number()?,
            unknown => return Err(format!("unknown argument {unknown}").into()),
        }
    }
    Ok(plan)
}
