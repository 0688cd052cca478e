//! Buckets move between two server processes, over gRPC, by the coordinator's core.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use zagros_coordinator_core::{Core, CoreConfig, MemberSlot};
use zagros_embedding_client::{GrpcShard, Shard};
use zagros_embedding_server::{ServerEnd, ServerError, run};
use zagros_fakes::FakeControlPlane;
use zagros_plumbing::{Deadline, Shutdown};
use zagros_protocol::control::{DataFile, JoinRequest, JoinResponse, PlacementResponse, ScaleRequest, Writer};
use zagros_protocol::datapath::{Access, PushRequest};
use zagros_protocol::{BucketMap, Generation, PROTOCOL_VERSION, RefusalKind, RowKey, ServerIndex, TableId};
use zagros_transport::Credentials;

use super::fake::{BUCKETS, DIM, RUN, job, lookup_of, push_of, row_values, server_config, wait};

const TIMEOUT: Duration = Duration::from_secs(20);
const IDS: u64 = 400;

type Part = (Arc<dyn Shard>, Vec<u64>);

/// A coordinator's core behind a fake of its calls.
struct CoreRun {
    core: Arc<Mutex<Core>>,
    control: Arc<FakeControlPlane>,
    started: Instant,
    worker: JoinResponse,
    runs: tempfile::TempDir,
}

impl CoreRun {
    fn new() -> Self {
        let (job, started) = (job(), Instant::now());
        let timeout = Duration::from_secs(1000);
        let mut core = Core::new(CoreConfig {
            run: RUN,
            job: "test".to_owned(),
            servers: 1,
            workers: 1,
            min_workers: 1,
            buckets: BUCKETS,
            epochs: 1,
            staleness: 1,
            lease: timeout,
            timeout,
            fingerprint: job.fingerprint(),
            ..CoreConfig::default()
        });
        let (role, address) = (MemberSlot::worker(0).role.to_wire(), "worker:0".to_owned());
        let (protocol_version, job_fingerprint) = (PROTOCOL_VERSION, job.fingerprint());
        let files = vec![DataFile { path: "a".to_owned(), bytes: 9, splittable: true, fingerprint: 0 }];
        let worker = JoinRequest { role, address, instance: 1, protocol_version, ..JoinRequest::default() };
        let worker = core.join(Duration::ZERO, &JoinRequest { job_fingerprint, files, ..worker }).unwrap();
        let (core, control) = (Arc::new(Mutex::new(core)), Arc::<FakeControlPlane>::default());
        let shared = || Arc::clone(&core);
        let (joins, beats, leaves, places, reports) = (shared(), shared(), shared(), shared(), shared());
        control.join.set(move |request| joins.lock().unwrap().join(started.elapsed(), &request));
        control.heartbeat.set(move |request| beats.lock().unwrap().heartbeat(started.elapsed(), &request));
        control.leave.set(move |request| leaves.lock().unwrap().leave(started.elapsed(), &request));
        control.placement.set(move |_| Ok(places.lock().unwrap().placement(started.elapsed())));
        control.report_move.set(move |request| reports.lock().unwrap().report_move(started.elapsed(), &request));
        Self { core, control, started, worker, runs: tempfile::tempdir().unwrap() }
    }

    async fn start(&self, index: u32) -> JoinHandle<Result<ServerEnd, ServerError>> {
        let mut job = job();
        job.output.folder = self.runs.path().to_owned();
        job.cluster.durability = zagros_job::DurabilityLevel::Process;
        let config = server_config(job, index, self.control.clone()).await;
        tokio::spawn(run(config, Shutdown::new()))
    }

    fn placement(&self) -> PlacementResponse {
        self.core.lock().unwrap().placement(self.started.elapsed())
    }

    async fn scale(&self, servers: u32) {
        let request = ScaleRequest { servers, workers: 0 };
        self.core.lock().unwrap().scale(self.started.elapsed(), &request).unwrap();
    }

    async fn until_spread_over(&self, servers: u32) {
        wait("the buckets have moved", async || {
            let placement = self.placement();
            let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).unwrap();
            let owns =
                |server| (0..BUCKETS).filter(|bucket| map.bucket_owner(*bucket) == Some(ServerIndex(server))).count();
            (0..servers).all(|server| owns(server) as u32 == BUCKETS / servers)
        })
        .await;
    }

    /// All ids, by their owners, with a client of each.
    fn divided(&self) -> (u64, Vec<Part>) {
        let placement = self.placement();
        let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).unwrap();
        let mut ids = BTreeMap::<u32, Vec<u64>>::new();
        (0..IDS).for_each(|id| ids.entry(map.row_owner(RowKey { table: TableId(0), id }).0).or_default().push(id));
        let entry = |server: u32| placement.servers.iter().find(|entry| entry.index == server).unwrap();
        let connect = |server| GrpcShard::connect(entry(server), TIMEOUT, &Credentials::Open).unwrap();
        (placement.generation, ids.into_iter().map(|(server, ids)| (connect(server), ids)).collect())
    }

    /// Pushes 1 to every id. Answers whether all of it was a duplicate.
    async fn push(&self, seq: u64) -> bool {
        let mut duplicates = true;
        let mut pending: Vec<u64> = (0..IDS).collect();
        while !pending.is_empty() {
            let (generation, parts) = self.divided();
            for (shard, ids) in parts {
                let ids: Vec<u64> = ids.into_iter().filter(|id| pending.contains(id)).collect();
                let JoinResponse { member, incarnation, .. } = self.worker;
                let request = push_of(Writer { member, incarnation }, seq, &ids, &vec![1.0; DIM * ids.len()]);
                let request = PushRequest { generation, ..request };
                match shard.push(request, Deadline::from_now(TIMEOUT)).await {
                    Ok(answer) => {
                        duplicates &= answer.duplicate;
                        pending.retain(|id| !ids.contains(id));
                    }
                    Err(refusal) => {
                        let kinds = [RefusalKind::Moved, RefusalKind::Unavailable];
                        assert!(kinds.contains(&refusal.kind), "{refusal}");
                    }
                }
            }
        }
        duplicates
    }

    async fn first_weights(&self) -> BTreeMap<u64, f32> {
        let (generation, parts) = self.divided();
        let mut weights = BTreeMap::new();
        for (shard, ids) in parts {
            let request = lookup_of(generation, &ids, Access::Read);
            let values = row_values(&shard.lookup(request, Deadline::from_now(TIMEOUT)).await.unwrap());
            weights.extend(ids.iter().enumerate().map(|(place, id)| (*id, values[DIM * place])));
        }
        weights
    }
}

/// Invariants DP-3 and PL-3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_joins_a_run_gets_buckets_hands_them_back_and_ends() {
    let cluster = CoreRun::new();
    let _first = cluster.start(0).await;
    wait("the first server has joined", async || cluster.placement().generation > 0).await;
    let first_weights = cluster.first_weights().await;
    for seq in 1..=5 {
        assert!(!cluster.push(seq).await);
    }
    cluster.scale(2).await;
    let second = cluster.start(1).await;
    for seq in 6..=10 {
        assert!(!cluster.push(seq).await);
    }
    cluster.until_spread_over(2).await;
    for seq in 1..=10 {
        assert!(cluster.push(seq).await, "push {seq} again");
    }
    assert!(!cluster.push(11).await);
    let (log, kept) = (cluster.runs.path().join("log-server-1"), cluster.runs.path().join("kept"));
    wait("the log is at rest while it is copied", async || {
        let old_changes = changes(&log);
        // What an earlier attempt has copied.
        let _ = std::fs::remove_dir_all(&kept);
        copy_files(&log, &kept) && changes(&log) == old_changes
    })
    .await;
    cluster.scale(1).await;
    cluster.until_spread_over(1).await;
    assert!(cluster.push(11).await && !cluster.push(12).await);
    let last_weights = cluster.first_weights().await;
    let is_moved = |(id, first): (&u64, &f32)| (first - last_weights[id] - 12.0).abs() < 0.01;
    assert!(first_weights.iter().all(is_moved), "{first_weights:?} {last_weights:?}");
    let ended = tokio::time::timeout(TIMEOUT, second).await.expect("it owns nothing any more");
    assert_eq!(ended.unwrap().unwrap(), ServerEnd::Released);
    assert!(!log.exists(), "its log is deleted");

    // As after a kill between its release and the deletion of its log.
    std::fs::rename(&kept, &log).unwrap();
    let again = tokio::time::timeout(TIMEOUT, cluster.start(1).await).await.expect("nothing is left to do");
    assert_eq!(again.unwrap().unwrap(), ServerEnd::Released);
    assert!(!log.exists(), "its log is deleted by the next process");
}

/// Copies the files and folders of a log. Answers whether all were there until the end: the server renames spare segments.
fn copy_files(from: &Path, to: &Path) -> bool {
    std::fs::create_dir_all(to).unwrap();
    let mut entries = std::fs::read_dir(from).unwrap().map(Result::unwrap);
    entries.all(|entry| {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_files(&entry.path(), &target)
        } else {
            std::fs::copy(entry.path(), target).is_ok()
        }
    })
}

/// The files of a folder and of those in it, each with the time of its last change.
fn changes(folder: &Path) -> BTreeMap<PathBuf, Option<SystemTime>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entry_changes = |path: PathBuf| {
        let changed = path.metadata().and_then(|file| file.modified()).ok();
        let inner = if path.is_dir() { changes(&path) } else { BTreeMap::new() };
        inner.into_iter().chain([(path, changed)])
    };
    entries.flat_map(entry_changes).collect()
}
