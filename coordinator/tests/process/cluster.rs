//! A whole run over real ports: members join through the client crate, work, and learn of the end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use zagros_coordinator::{
    CoordinatorConfig, CoordinatorEnd, CoordinatorError, JournalRuns, JournalUse, RunOutcome, run,
};
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane, Membership, wait_for_placement};
use zagros_job::{Job, Overrides};
use zagros_plumbing::{Shutdown, StopMeaning};
use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{
    AssignRequest, CompleteRequest, DataFile, Evaluation, HeartbeatRequest, JoinRequest, LeaveRequest, Outcome,
    PlacementRequest, PlacementResponse, Position, PositionRequest, ReportEvaluationRequest, Role, ServerLoad, Split,
    StatusRequest,
};
use zagros_protocol::{BucketMap, Generation, PROTOCOL_VERSION, RefusalKind};
use zagros_transport::Credentials;

/// Long enough for a slow machine; only a test that fails waits for it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct TestCluster {
    job: Arc<Job>,
    address: String,
    control: Arc<dyn ControlPlane>,
    pub(crate) admin: SocketAddr,
    shutdown: Shutdown,
    process: JoinHandle<Result<CoordinatorEnd, CoordinatorError>>,
}

impl TestCluster {
    /// A coordinator for two servers and one worker on ports of its own.
    async fn start(lease_seconds: f64) -> Self {
        Self::listen("127.0.0.1:0", lease_seconds).await
    }

    /// The same at a given address.
    async fn listen(address: &str, lease_seconds: f64) -> Self {
        Self::listen_as(address, lease_seconds, |_| {}).await
    }

    /// The same with other settings.
    pub(crate) async fn listen_as(address: &str, lease: f64, change: impl FnOnce(&mut CoordinatorConfig)) -> Self {
        let text = format!(
            "name = 'test'\n[data]\nformat = 'criteo'\ntrain = 'a.txt'\nshuffle_rows = 0\n[train]\nepochs = 2\n\
             [cluster]\nservers = 2\nlease_seconds = {lease}\n"
        );
        let job = Arc::new(Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap());
        let grpc_listener = TcpListener::bind(address).await.unwrap();
        let admin_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = grpc_listener.local_addr().unwrap().to_string();
        let mut config = CoordinatorConfig {
            state_file: None,
            end_report: None,
            job: Arc::clone(&job),
            grpc_listener,
            admin_listener: Some(admin_listener),
            registry: Registry::new(),
            credentials: Credentials::Open,
            journal: None,
            on_stop: StopMeaning::Drain,
        };
        change(&mut config);
        let admin = config.admin_listener.as_ref().unwrap().local_addr().unwrap();
        let shutdown = Shutdown::new();
        let process = tokio::spawn(run(config, shutdown.clone()));
        let control = Arc::new(GrpcControlPlane::connect(&address, TIMEOUT, &Credentials::Open).unwrap());
        Self { job, address, control, admin, shutdown, process }
    }

    async fn join(&self, role: Role, index: u32) -> Membership {
        let request = self.request(role, index);
        Membership::join(Arc::clone(&self.control), request, TIMEOUT, &Shutdown::new()).await.unwrap()
    }

    fn request(&self, role: Role, index: u32) -> JoinRequest {
        let file = DataFile { path: "a.txt".to_owned(), bytes: 2 << 20, splittable: true, fingerprint: 0 };
        let is_worker = role == Role::DenseWorker;
        JoinRequest {
            role: role.into(),
            index,
            address: if is_worker { String::new() } else { format!("127.0.0.1:{}", 7701 + index) },
            instance: 40 + u64::from(index),
            job_fingerprint: self.job.fingerprint(),
            protocol_version: PROTOCOL_VERSION,
            release: "0.1.0".to_owned(),
            files: if is_worker { vec![file] } else { Vec::new() },
            ..JoinRequest::default()
        }
    }

    async fn outcome(self) -> RunOutcome {
        match self.end().await {
            CoordinatorEnd::Over(outcome) => outcome,
            CoordinatorEnd::Restarts => panic!("the run is not over"),
        }
    }

    /// Asks the coordinator to end, and waits until it does.
    pub(crate) async fn stop(self) -> CoordinatorEnd {
        self.shutdown.request();
        self.end().await
    }

    async fn end(self) -> CoordinatorEnd {
        tokio::time::timeout(TIMEOUT, self.process).await.expect("the coordinator did not end").unwrap().unwrap()
    }

    /// Sends a request to the HTTP port.
    pub(crate) async fn ask(&self, path: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    pub(crate) async fn get(&self, path: &str, headers: &str) -> String {
        let mut answer = String::new();
        let mut stream = self.ask(path, headers).await;
        tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.expect("no end").unwrap();
        answer
    }
}

async fn stop_reason(member: &Membership) -> String {
    let mut view = member.subscribe();
    let stopped = tokio::time::timeout(TIMEOUT, view.wait_for(|view| view.stop.is_some())).await;
    stopped.expect("the member does not hear that it must stop").unwrap().stop.clone().unwrap()
}

fn ask(member: &Membership, epoch: u32) -> AssignRequest {
    let (member, incarnation) = (member.member_id(), member.incarnation());
    AssignRequest { member, incarnation, epoch, ..AssignRequest::default() }
}

/// Reads and completes every split of an epoch; answers their bytes.
async fn work(control: &dyn ControlPlane, worker: &Membership, epoch: u32) -> Vec<(u64, u64)> {
    let (member, incarnation) = (worker.member_id(), worker.incarnation());
    let mut read = Vec::new();
    loop {
        match control.assign(ask(worker, epoch)).await.unwrap().work.unwrap() {
            Work::Split(split) => {
                read.push((split.start, split.end));
                let complete = CompleteRequest { member, incarnation, epoch, splits: vec![split.id], bad_rows: vec![] };
                control.complete(complete).await.unwrap();
            }
            Work::EpochDone(_) => return read,
            Work::ResumeCursor(cursor) => panic!("a run from the start has a resume cursor: {cursor:?}"),
            Work::Wait(wait) => panic!("the only worker must wait: {}", wait.reason),
        }
    }
}

#[tokio::test]
async fn a_run_over_real_ports_from_join_to_stop() {
    let cluster = TestCluster::start(20.0).await;
    let control = Arc::clone(&cluster.control);
    // A person's command is of no run. It may read the bucket map with the run's secret, and this run has none.
    let placement = control.placement(PlacementRequest {}).await.unwrap();
    assert!(placement.waiting_for.contains("embedding server 0 has not joined"), "{}", placement.waiting_for);
    let first = cluster.join(Role::EmbeddingServer, 0).await;
    let unready = cluster.get("/readyz", "").await;
    assert!(unready.contains("503") && unready.contains("embedding server 1 has not joined"), "{unready}");
    let second = cluster.join(Role::EmbeddingServer, 1).await;
    let worker = cluster.join(Role::DenseWorker, 0).await;
    let placement = wait_for_placement(control.as_ref(), TIMEOUT, &Shutdown::new()).await.unwrap();
    let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).unwrap();
    assert_eq!(map, BucketMap::split_evenly(Generation(1), cluster.job.cluster.buckets, 2));
    assert_eq!(placement.servers[1].address, "127.0.0.1:7702");
    assert!(cluster.get("/readyz", "").await.contains("ready\n"));

    for epoch in 0..2 {
        let read = work(control.as_ref(), &worker, epoch).await;
        // Each is an eighth of what the worker reads.
        let eighth = |part: u64| (part << 18, (part + 1) << 18);
        assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7].map(eighth));
    }
    let evaluation = Some(Evaluation { step: 8, epoch: 1, samples: 100, auc: 0.75, logloss: 0.5, part: 0 });
    let report = ReportEvaluationRequest { member: worker.member_id(), incarnation: worker.incarnation(), evaluation };
    control.report_evaluation(report).await.unwrap();
    second.set_load(ServerLoad { rows: 3, bytes: 300, ..ServerLoad::default() });
    worker.update_progress(|progress| progress.step = 8);
    worker.leave(Outcome::Finished, "").await.unwrap();

    assert_eq!(stop_reason(&first).await, "run finished");
    let status = cluster.get("/status", "").await;
    let body: serde_json::Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&body["state"], &body["splits_done"]), (&"finished".into(), &8.into()), "{body}");
    assert_eq!(body["members"][2]["progress"]["step"], 8, "{body}");
    assert_eq!(body["evaluations"][0]["auc"], 0.75, "{body}");
    let metrics = cluster.get("/metrics", "").await;
    for line in [
        "zagros_coordinator_auc 0.75",
        "zagros_coordinator_splits_done 8",
        "zagros_coordinator_generation 1",
        "zagros_coordinator_members{member_role=\"dense worker\",state=\"left\"} 1",
        "zagros_coordinator_members{member_role=\"embedding server\",state=\"alive\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert!(cluster.get("/healthz", "").await.contains("ok"));

    stop_reason(&second).await;
    first.leave(Outcome::Finished, "").await.unwrap();
    second.leave(Outcome::Finished, "").await.unwrap();
    assert_eq!(cluster.outcome().await, RunOutcome::Finished);
    let gone = control.status(StatusRequest {}).await.unwrap_err();
    assert!(gone.kind.is_retryable() && gone.message.starts_with("coordinator (127.0.0.1:"), "{gone:?}");
}

#[tokio::test]
async fn a_coordinator_that_is_asked_to_end_stops_its_members_and_waits_one_lease_at_most() {
    let cluster = TestCluster::start(1.0).await;
    let server = cluster.join(Role::EmbeddingServer, 0).await;
    cluster.shutdown.request();
    assert_eq!(stop_reason(&server).await, "run interrupted: the coordinator was asked to end");
    // The server does not leave.
    let reason = "the coordinator was asked to end".to_owned();
    assert_eq!(cluster.outcome().await, RunOutcome::Interrupted(reason));
    let mut view = server.subscribe();
    let lost = tokio::time::timeout(TIMEOUT, view.wait_for(|view| view.lost.is_some())).await;
    assert!(lost.expect("a coordinator that is gone was not noticed").is_ok());
}

#[tokio::test]
async fn a_coordinator_that_is_asked_to_end_serves_until_the_workers_have_left() {
    let cluster = TestCluster::start(20.0).await;
    let server = cluster.join(Role::EmbeddingServer, 0).await;
    let worker = cluster.join(Role::DenseWorker, 0).await;
    cluster.shutdown.request();
    let mut view = worker.subscribe();
    let outcome = tokio::time::timeout(TIMEOUT, view.wait_for(|view| view.draining.is_some())).await;
    let outcome = outcome.expect("the worker does not hear that it must save").unwrap().clone();
    assert_eq!((outcome.draining.as_deref(), outcome.stop), (Some("the coordinator was asked to end"), None));
    // Its last checkpoint needs the coordinator.
    let position = PositionRequest { member: worker.member_id(), incarnation: worker.incarnation(), epoch: 0 };
    cluster.control.position(position).await.unwrap();
    assert_eq!(server.subscribe().borrow().stop, None);
    worker.leave(Outcome::Interrupted, "interrupted").await.unwrap();
    stop_reason(&server).await;
    server.leave(Outcome::Interrupted, "asked to end").await.unwrap();
    assert_eq!(cluster.outcome().await.as_str(), "interrupted");
}

/// Invariant MB-2: members, epochs and generations are the same numbers in each run of a job.
#[tokio::test]
async fn a_process_of_an_earlier_run_is_refused_by_the_next_one_at_the_same_address() {
    let earlier = TestCluster::start(1.0).await;
    // A server, because a coordinator that is asked to end would wait for a worker.
    let stale = earlier.join(Role::EmbeddingServer, 0).await;
    let (control, address) = (Arc::clone(&earlier.control), earlier.address.clone());
    earlier.shutdown.request();
    let _ = earlier.outcome().await;

    let cluster = TestCluster::listen(&address, 20.0).await;
    let [first, _second] = [cluster.join(Role::EmbeddingServer, 0).await, cluster.join(Role::EmbeddingServer, 1).await];
    let worker = cluster.join(Role::DenseWorker, 0).await;
    assert_eq!((first.member_id(), first.incarnation()), (stale.member_id(), stale.incarnation()));
    assert_ne!(worker.run_id(), stale.run_id());
    let (member, incarnation) = (stale.member_id(), stale.incarnation());
    let leave = LeaveRequest { member, incarnation, outcome: Outcome::Failed as i32, reason: "stale".to_owned() };
    let (ours, theirs) = (worker.run_id(), stale.run_id());
    let both = format!("this coordinator belongs to run {ours}, but this request belongs to run {theirs}");
    let complete = CompleteRequest { member, incarnation, epoch: 0, splits: vec![0], bad_rows: vec![] };
    let refusals = [
        control.heartbeat(HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() }).await.map(drop),
        control.assign(ask(&stale, 0)).await.map(drop),
        control.complete(complete).await.map(drop),
        control.placement(PlacementRequest {}).await.map(drop),
        control.leave(leave).await.map(drop),
    ];
    for refused in refusals {
        let refusal = refused.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Fenced, "{refusal}");
        assert!(refusal.message.starts_with(&both), "{refusal}");
    }
    // The stale process has learnt from its own heartbeats that it must stop.
    let mut view = stale.subscribe();
    let fenced = tokio::time::timeout(TIMEOUT, view.wait_for(|view| view.fenced.is_some())).await;
    assert!(fenced.expect("the stale process goes on").is_ok());
    let status = cluster.control.status(StatusRequest {}).await.unwrap();
    assert_eq!(status.state, "training", "{}", status.reason);
    assert_eq!(work(cluster.control.as_ref(), &worker, 0).await.len(), 8);
}

/// The sizes are those of hourly files of a thousand feeds, and of 12 TB in splits of 60 MB.
#[tokio::test]
async fn many_files_and_many_splits_join_and_come_back() {
    let cluster = TestCluster::start(20.0).await;
    let path =
        |file: u32| format!("/data/clicks/2026-11-22/feed-{:04}/hour-{:02}/part-{file:06}.csv", file / 24, file % 24);
    let file = |file: u32| DataFile { path: path(file), bytes: 480_000_000, splittable: true, fingerprint: 0 };
    let files: Vec<DataFile> = (0..26_000).map(file).collect();
    let splits = 8 * files.len() as u32;
    let split = |index: u32| {
        let (file, part) = (index / 8, u64::from(index % 8));
        Split { id: 1 << 32 | u64::from(index), file, start: part * 60_000_000, end: (part + 1) * 60_000_000 }
    };
    let plan: Vec<Split> = (0..splits).map(split).collect();
    let done = plan.iter().step_by(2).map(|split| split.id).collect();
    let position = Position { epoch: 1, plan: plan.clone(), done, resume_cursors: Vec::new(), bad_rows: 0 };
    let request = JoinRequest { files, position: Some(position.clone()), ..cluster.request(Role::DenseWorker, 0) };
    println!("{splits} splits; the join has {} bytes", prost::Message::encoded_len(&request));
    let worker = Membership::join(Arc::clone(&cluster.control), request, TIMEOUT, &Shutdown::new()).await.unwrap();
    let (member, incarnation) = (worker.member_id(), worker.incarnation());
    let outcome = cluster.control.position(PositionRequest { member, incarnation, epoch: 1 }).await.unwrap();
    println!("the position has {} bytes", prost::Message::encoded_len(&outcome));
    assert_eq!(outcome.position, Some(position));
    let next = cluster.control.assign(ask(&worker, 1)).await.unwrap();
    assert_eq!(next.work, Some(Work::Split(plan[1])));
}

/// Regression: a join of a few bytes once made the coordinator plan thousands of gigabytes.
#[tokio::test]
async fn a_join_that_claims_enormous_files_takes_no_memory_and_ends_no_run() {
    let cluster = TestCluster::start(20.0).await;
    let request = cluster.request(Role::DenseWorker, 0);
    let vast = DataFile { bytes: u64::MAX, ..request.files[0].clone() };
    let joined = cluster.control.join(JoinRequest { files: vec![vast], ..request.clone() }).await.unwrap();
    let status = cluster.control.status(StatusRequest {}).await.unwrap();
    assert_eq!((joined.incarnation, status.splits), (1, 1 << 19));
    let none = DataFile { bytes: 0, ..request.files[0].clone() };
    let many = JoinRequest { files: vec![none; (1 << 18) + 1], instance: request.instance, ..request };
    let refused = cluster.control.join(many).await.unwrap_err();
    assert!(refused.message.contains("262145 training files, and a run has at most 262144"), "{refused}");
}

/// Invariants MB-1 and MB-5.
#[tokio::test]
async fn members_of_a_coordinator_that_was_killed_are_members_of_the_next_one_with_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let journal = JournalUse { folder: folder.path().join("journal"), runs: JournalRuns::Many };
    let listen = |address: String| {
        let journal = Some(journal.clone());
        async move { TestCluster::listen_as(&address, 20.0, |config| config.journal = journal).await }
    };
    // A process of its own, as far as that is possible here: it ends with everything that it has.
    let process = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut first = process.spawn(listen("127.0.0.1:0".to_owned())).await.unwrap();
    first.control = Arc::new(GrpcControlPlane::connect(&first.address, TIMEOUT, &Credentials::Open).unwrap());
    let servers = [first.join(Role::EmbeddingServer, 0).await, first.join(Role::EmbeddingServer, 1).await];
    let worker = first.join(Role::DenseWorker, 0).await;
    let (control, run) = (Arc::clone(&first.control), worker.run_id());
    let (member, incarnation) = (worker.member_id(), worker.incarnation());
    let Some(Work::Split(split)) = control.assign(ask(&worker, 0)).await.unwrap().work else { panic!("no split") };
    let placement = control.placement(PlacementRequest {}).await.unwrap();
    let address = first.address.clone();
    tokio::task::spawn_blocking(move || process.shutdown_timeout(TIMEOUT)).await.unwrap();

    let second = listen(address).await;
    let later = placement_of(&*control).await;
    assert_eq!((later, worker.run_id()), (placement, run));
    let status = control.status(StatusRequest {}).await.unwrap();
    let members: Vec<_> = status.members.iter().map(|member| (member.state.as_str(), member.incarnation)).collect();
    assert_eq!((members, status.splits_held), (vec![("alive", 1); 3], 1));
    // What it was given is still its own, and what it completes is complete.
    let complete = CompleteRequest { member, incarnation, epoch: 0, splits: vec![split.id], bad_rows: vec![] };
    control.complete(complete).await.unwrap();
    let read = work(&*control, &worker, 0).await;
    assert_eq!(read.len(), 7, "the split that was read before is not dealt out again: {read:?}");
    assert!(second.get("/metrics", "").await.contains("zagros_coordinator_recoveries_total 1"));
    worker.leave(Outcome::Finished, "").await.unwrap();
    for server in servers {
        assert_eq!(stop_reason(&server).await, "run finished");
        server.leave(Outcome::Finished, "").await.unwrap();
    }
    assert_eq!(second.outcome().await, RunOutcome::Finished);
    assert!(!folder.path().join("journal").exists(), "no process comes back to a run that is over");
}

/// A supervisor that starts every process again, such as Kubernetes: the process alone ends when it is asked to, and how the
/// run ended is found by each process after that.
#[tokio::test]
async fn a_coordinator_that_is_replaced_drains_no_run_and_one_of_a_run_that_is_over_ends_as_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let journal = JournalUse { folder: folder.path().join("journal"), runs: JournalRuns::One };
    let replace = |config: &mut CoordinatorConfig| {
        (config.journal, config.on_stop) = (Some(journal.clone()), StopMeaning::Restart);
    };
    let listen = async |address: &str| TestCluster::listen_as(address, 20.0, replace).await;
    let first = listen("127.0.0.1:0").await;
    let servers = [first.join(Role::EmbeddingServer, 0).await, first.join(Role::EmbeddingServer, 1).await];
    let worker = first.join(Role::DenseWorker, 0).await;
    let (control, address) = (Arc::clone(&first.control), first.address.clone());
    assert_eq!(first.stop().await, CoordinatorEnd::Restarts);

    let second = listen(&address).await;
    let generation = placement_of(&*control).await.generation;
    assert_eq!((generation, worker.subscribe().borrow().draining.clone()), (1, None));
    worker.leave(Outcome::Failed, "no data").await.unwrap();
    for server in servers {
        assert!(stop_reason(&server).await.contains("no data"));
        server.leave(Outcome::Finished, "").await.unwrap();
    }
    let failed = RunOutcome::Failed("dense worker 0: no data".to_owned());
    assert_eq!(second.outcome().await, failed);
    for _ in 0..2 {
        assert_eq!(listen(&address).await.outcome().await, failed, "the verdict stays");
    }
}

/// The placement, once the coordinator answers.
async fn placement_of(control: &dyn ControlPlane) -> PlacementResponse {
    let asked = tokio::time::timeout(TIMEOUT, async {
        loop {
            match control.placement(PlacementRequest {}).await {
                Ok(placement) => return placement,
                Err(refusal) => assert!(refusal.kind.is_retryable(), "{refusal}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    asked.await.expect("the coordinator does not answer")
}
