//! A coordinator's core and embedding servers with logs, in one process. Servers die between requests, and come back from their logs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use zagros_coordinator_core::{Core, CoreConfig, MemberSlot};
use zagros_embedding_client::Shard;
use zagros_job::Job;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    DataFile, FreezeMoveResponse, HeartbeatRequest, JoinRequest, JoinResponse, LeaveRequest, MoveRowsResponse,
    MoveStage, Outcome, ReportMoveRequest, ReportMoveResponse, ScaleRequest,
};
use zagros_protocol::datapath::{Access, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::{
    BucketMap, Generation, PROTOCOL_VERSION, Refusal, RefusalKind, RowKey, RunId, ServerIndex, TableId,
};
use zagros_table::{AdmissionPolicy, FrequencyCounter};

use super::super::incoming::{CopyProgress, MoveReports, MoveSource};
use super::super::{CopyEnd, adopt_placement, begin_copy, copy_buckets, freeze_source, next_rows, purge_strays};
use crate::testing::{BUCKETS, DIM, job_with, lookup_of, lookup_values, placed, read};
use crate::{EmbeddingService, LocalShard, ServerError};

/// The longest wait of a test for what it expects.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a sender waits for the answer to a push.
const TIMEOUT: Duration = Duration::from_millis(400);
/// The coordinator's clock is this much faster, so that its pauses are short.
const FASTER: u32 = 50;

pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// What the tables of a history do with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableKind {
    InMemory,
    /// Most rows are in the cold tier.
    BeyondMemory,
    /// Ids are counted one by one before they get a row.
    Counted,
    /// Ids are counted by a sketch.
    Sketched,
}

impl TableKind {
    /// Uses of an id before it has a row.
    pub(super) fn threshold(self) -> Option<u32> {
        matches!(self, Self::Counted | Self::Sketched).then_some(THRESHOLD)
    }

    pub(super) fn ids(self) -> u64 {
        if self == Self::BeyondMemory { 4000 } else { 150 }
    }

    fn job(self, servers: u32) -> Job {
        let memory = if self == Self::BeyondMemory { "memory = \"64KiB\"" } else { "" };
        let mut job = job_with(servers, &format!("durability = \"process\"\n{memory}"));
        job.tables[0].optimizer = job.tables[1].optimizer;
        let counter = match self {
            Self::InMemory | Self::BeyondMemory => return job,
            Self::Counted => FrequencyCounter::Exact,
            // So few cells that ids share them.
            Self::Sketched => FrequencyCounter::CountMin { error: 0.01, failure: 0.1 },
        };
        job.tables.iter_mut().for_each(|table| {
            table.admission = AdmissionPolicy::Count { threshold: THRESHOLD, counter };
        });
        job
    }
}

const THRESHOLD: u32 = 4;

struct Server {
    service: Arc<EmbeddingService>,
    member: JoinResponse,
    is_alive: AtomicBool,
    agent: Mutex<Option<JoinHandle<()>>>,
}

pub(super) struct Cluster {
    core: Mutex<Core>,
    started: Instant,
    /// Notified when the coordinator's state may have changed.
    changed: Notify,
    servers: Mutex<BTreeMap<u32, Arc<Server>>>,
    job: Job,
    pub(super) kind: TableKind,
    kills: bool,
    _folder: tempfile::TempDir,
    instances: AtomicU64,
    writers: Vec<JoinResponse>,
    lost: Mutex<Dice>,
}

fn config(servers: u32, workers: u32) -> CoreConfig {
    CoreConfig {
        run: RunId(5),
        job: "test".to_owned(),
        servers,
        workers,
        min_workers: workers,
        buckets: BUCKETS,
        epochs: 1,
        staleness: 8,
        lease: Duration::from_secs(100_000),
        timeout: Duration::from_secs(100_000),
        ..CoreConfig::default()
    }
}

impl Cluster {
    pub(super) async fn start((seed, kind, kills): (u64, TableKind, bool), servers: u32, workers: u32) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut job = kind.job(servers);
        job.output.folder = folder.path().join("runs");
        let mut core = Core::new(config(servers, workers));
        let files = vec![DataFile { path: "a".to_owned(), bytes: 9, splittable: true, fingerprint: 0 }];
        let join = |index| {
            let (role, files) = (MemberSlot::worker(index).role.to_wire(), files.clone());
            let (address, protocol_version) = (format!("worker:{index}"), PROTOCOL_VERSION);
            JoinRequest { role, index, address, instance: 1, protocol_version, files, ..JoinRequest::default() }
        };
        let writers = (0..workers).map(|index| core.join(Duration::ZERO, &join(index)).unwrap()).collect();
        let cluster = Arc::new(Self {
            core: Mutex::new(core),
            started: Instant::now(),
            changed: Notify::new(),
            servers: Mutex::default(),
            job,
            kind,
            kills,
            _folder: folder,
            instances: AtomicU64::new(100),
            writers,
            lost: Mutex::new(Dice::new(!seed)),
        });
        for index in 0..servers {
            cluster.start_server(index).await;
        }
        cluster
    }

    fn call<T>(&self, call: impl FnOnce(&mut Core, Duration) -> T) -> T {
        let answer = call(&mut self.core.lock(), self.started.elapsed() * FASTER);
        self.changed.notify_waiters();
        answer
    }

    pub(super) fn writer(&self, index: usize) -> (u64, u32) {
        (self.writers[index].member, self.writers[index].incarnation)
    }

    pub(super) fn kills(&self) -> bool {
        self.kills
    }

    pub(super) fn map(&self) -> BucketMap {
        let placement = self.call(|core, now| core.placement(now));
        BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).unwrap()
    }

    async fn start_server(self: &Arc<Self>, index: u32) {
        let job = self.job.clone();
        let service = tokio::task::spawn_blocking(move || {
            let deadline = Deadline::from_now(LONGEST);
            loop {
                match EmbeddingService::open(&job, ServerIndex(index), &Registry::new()) {
                    // Requests to the process before, which is this process, have not ended.
                    Err(ServerError::Cold { .. }) if !deadline.is_past() => std::thread::sleep(TIMEOUT / 100),
                    opened => return opened.unwrap(),
                }
            }
        });
        let service = service.await.unwrap();
        let (role, address) = (MemberSlot::server(index).role.to_wire(), format!("server:{index}"));
        let (lineage, recovered) = (service.lineage().unwrap().0, service.has_recovered());
        let (instance, protocol_version) = (self.instances.fetch_add(1, Ordering::Relaxed), PROTOCOL_VERSION);
        let request = JoinRequest { role, index, address, instance, protocol_version, ..JoinRequest::default() };
        let request = JoinRequest { lineage, recovered, ..request };
        let joined = self.call(|core, now| core.join(now, &request));
        let member = joined.unwrap_or_else(|refusal| panic!("server {index} cannot join: {refusal}"));
        if member.over {
            // It had handed its buckets over.
            assert!(service.has_recovered());
            return service.delete_log();
        }
        assert!(!member.discard, "{member:?}");
        let (is_alive, agent) = (AtomicBool::new(true), Mutex::default());
        let server = Arc::new(Server { service, member, is_alive, agent });
        *server.agent.lock() = Some(tokio::spawn(take_part(Arc::clone(self), Arc::clone(&server))));
        self.servers.lock().insert(index, server);
        self.changed.notify_waiters();
    }

    /// Ends a server's process, without a word to the coordinator.
    async fn stop_server(&self, index: u32) -> JoinResponse {
        let server = self.servers.lock().remove(&index).unwrap();
        server.is_alive.store(false, Ordering::Release);
        self.changed.notify_waiters();
        let agent = server.agent.lock().take().unwrap();
        agent.await.unwrap();
        server.member
    }

    pub(super) async fn kill_and_recover(self: &Arc<Self>, dice: &mut Dice) {
        let alive: Vec<u32> = self.servers.lock().keys().copied().collect();
        let index = alive[dice.below(alive.len() as u64) as usize];
        let stopped = self.stop_server(index).await;
        tokio::time::sleep(Duration::from_millis(dice.below(10))).await;
        self.start_server(index).await;
        if !self.servers.lock().contains_key(&index) {
            self.leave(stopped);
        }
    }

    fn leave(&self, JoinResponse { member, incarnation, .. }: JoinResponse) {
        let outcome = Outcome::Finished.into();
        let leave = LeaveRequest { member, incarnation, outcome, reason: String::new() };
        self.call(|core, now| core.leave(now, &leave)).unwrap();
    }

    pub(super) async fn scale(self: &Arc<Self>, servers: u32) {
        self.call(|core, now| core.scale(now, &ScaleRequest { servers, workers: 0 })).unwrap();
        for index in 0..servers {
            if !self.servers.lock().contains_key(&index) {
                self.start_server(index).await;
            }
        }
    }

    /// Waits until no bucket is left to move. Servers that are not wanted any more end.
    pub(super) async fn settle(self: &Arc<Self>, servers: u32) {
        let deadline = Deadline::from_now(LONGEST);
        loop {
            let status = self.call(|core, now| core.status(now));
            let scale = status.scale.unwrap();
            if scale.buckets_left == 0 && scale.servers == servers {
                break;
            }
            assert!(!deadline.is_past(), "buckets do not move: {scale:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let released: Vec<u32> = self.servers.lock().keys().copied().filter(|index| *index >= servers).collect();
        for index in released {
            let server = Arc::clone(&self.servers.lock()[&index]);
            let JoinResponse { member, incarnation, .. } = server.member;
            let beat = HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() };
            let answer = self.call(|core, now| core.heartbeat(now, &beat)).unwrap();
            assert!(answer.stop, "it owns nothing and is not wanted");
            let ended = self.stop_server(index).await;
            self.leave(ended);
            server.service.delete_log();
        }
    }

    fn service(&self, server: u32) -> Result<Arc<EmbeddingService>, Refusal> {
        let service = self.servers.lock().get(&server).map(|server| Arc::clone(&server.service));
        service.ok_or_else(|| Refusal::new(RefusalKind::Unavailable, "no connection"))
    }

    fn shard(&self, server: u32) -> Result<LocalShard, Refusal> {
        self.service(server).map(LocalShard::new)
    }

    /// Sends a push to a server, if it lives.
    pub(super) async fn send(&self, server: u32, request: PushRequest) -> Result<PushResponse, Refusal> {
        self.shard(server)?.push(request, Deadline::from_now(TIMEOUT)).await
    }

    pub(super) async fn look_up(&self, server: u32, request: LookupRequest) -> Result<LookupResponse, Refusal> {
        self.shard(server)?.lookup(request, Deadline::from_now(TIMEOUT)).await
    }

    fn loses_an_answer(&self) -> bool {
        self.lost.lock().one_in(12)
    }

    /// Every row is its first value minus what was pushed, at its owner, and no other server has it.
    pub(super) async fn check(self: &Arc<Self>, expected: &BTreeMap<(u32, u64), f32>) {
        let map = self.map();
        let indices: Vec<u32> = self.servers.lock().keys().copied().collect();
        let (mut ended, mut has_cold_rows) = (BTreeMap::new(), false);
        for index in indices {
            let server = Arc::clone(&self.servers.lock()[&index]);
            let deadline = Deadline::from_now(LONGEST);
            while server.service.placement().map_or(true, |now| now.generation() != map.generation()) {
                assert!(!deadline.is_past(), "server {index} does not learn of the map");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.stop_server(index).await;
            assert_eq!(purge_strays(&server.service), 0, "server {index} has rows of other servers' buckets");
            let placement = server.service.placement().unwrap();
            for (number, table) in server.service.tables.iter().enumerate() {
                let cold =
                    (0..table.stripes()).flat_map(|stripe| table.cold_ids(stripe, None, usize::MAX).unwrap().ids);
                let cold: Vec<u64> = cold.collect();
                has_cold_rows |= !cold.is_empty();
                let strays: Vec<u64> = cold.into_iter().filter(|id| !placement.owns_row(number as u32, *id)).collect();
                assert_eq!(strays, [0; 0], "server {index} has rows of other servers' buckets in its cold tier");
            }
            ended.insert(index, server);
        }
        assert_eq!(has_cold_rows, self.kind == TableKind::BeyondMemory, "whether rows are in a cold tier");
        let fresh = placed(1, 0);
        for ((table, id), sum) in expected {
            let owner = &ended[&map.row_owner(RowKey { table: TableId(*table), id: *id }).0];
            let first = read(&fresh, &[(*table, &[*id])]);
            let request = lookup_of(&[(*table, &[*id])], Access::Read);
            let request = LookupRequest { generation: map.generation().0, ..request };
            let now = lookup_values(&owner.service, &request);
            for column in 0..DIM as usize {
                let found = first[column] - now[column];
                assert!((found - sum).abs() < 0.1, "row {id} of table {table} has {found} and should have {sum}");
            }
        }
    }
}

/// What a server's process does beside its requests.
async fn take_part(cluster: Arc<Cluster>, server: Arc<Server>) {
    let mut copying: Option<(u64, JoinHandle<CopyEnd>)> = None;
    while server.is_alive.load(Ordering::Acquire) {
        let changed = cluster.changed.notified();
        // The others are not woken.
        let placement = cluster.core.lock().placement(cluster.started.elapsed() * FASTER);
        if let Some(adopted) = adopt_placement(&server.service, &placement).unwrap() {
            if adopted.has_strays {
                let service = Arc::clone(&server.service);
                tokio::task::spawn_blocking(move || purge_strays(&service)).await.unwrap();
            }
            if let Some((plan, _)) = adopted.incoming
                && copying.as_ref().is_none_or(|(id, _)| *id != plan.id)
            {
                let previous = copying.take();
                let (service, id) = (Arc::clone(&server.service), plan.id);
                let (cluster, server) = (Arc::clone(&cluster), Arc::clone(&server));
                let calls = Arc::new(Calls { cluster, server, plan: (plan.id, plan.source) });
                let copying_now = async move {
                    if let Some((_, previous)) = previous {
                        let _ = previous.await;
                    }
                    copy_buckets(service, plan, Arc::clone(&calls) as _, calls).await
                };
                copying = Some((id, tokio::spawn(copying_now)));
            }
        }
        tokio::select! {
            () = changed => {}
            () = server.service.moves.wait_for_request() => {}
            () = tokio::time::sleep(Duration::from_millis(3)) => {}
        }
    }
    if let Some((_, copying)) = copying {
        copying.abort();
        let _ = copying.await;
    }
}

/// The calls of a target, some of whose answers are lost.
struct Calls {
    cluster: Arc<Cluster>,
    server: Arc<Server>,
    /// Its id and its source.
    plan: (u64, u32),
}

impl Calls {
    async fn source<T: Send + 'static>(
        &self,
        work: impl FnOnce(&EmbeddingService) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let source = self.cluster.service(self.plan.1)?;
        let answer = tokio::task::spawn_blocking(move || work(&source)).await.unwrap();
        self.heard(answer)
    }

    fn heard<T>(&self, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        match self.cluster.loses_an_answer() {
            true => Err(Refusal::new(RefusalKind::Unavailable, "the answer was lost")),
            false => answer,
        }
    }
}

impl MoveSource for Calls {
    fn begin_copy(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        let id = self.plan.0;
        Box::pin(self.source(move |source| begin_copy(source, id).map(|_| ())))
    }

    fn next_rows(&self, number: u64) -> BoxFuture<'_, Result<MoveRowsResponse, Refusal>> {
        let id = self.plan.0;
        Box::pin(self.source(move |source| next_rows(source, id, number)))
    }

    fn freeze(&self) -> BoxFuture<'_, Result<FreezeMoveResponse, Refusal>> {
        let id = self.plan.0;
        Box::pin(self.source(move |source| freeze_source(source, id)))
    }
}

impl MoveReports for Calls {
    fn report(
        &self,
        stage: MoveStage,
        progress: CopyProgress,
        reason: String,
    ) -> BoxFuture<'_, Result<ReportMoveResponse, Refusal>> {
        let JoinResponse { member, incarnation, .. } = self.server.member;
        let CopyProgress { rows, bytes, .. } = progress;
        let bucket_move = self.plan.0;
        let stage = stage.into();
        let request = ReportMoveRequest { member, incarnation, bucket_move, stage, reason, rows, bytes, frozen_us: 0 };
        Box::pin(async move { self.heard(self.cluster.call(|core, now| core.report_move(now, &request))) })
    }
}
