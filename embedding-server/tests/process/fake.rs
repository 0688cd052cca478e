//! A run with one server process for tests, and clients of the server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use prometheus::Registry;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};
use zagros_coordinator_client::ControlPlane;
use zagros_embedding_server::{ServerConfig, ServerEnd, ServerError, run};
use zagros_fakes::FakeControlPlane;
use zagros_job::{DurabilityLevel, Job, Overrides};
use zagros_plumbing::admin::PageAccess;
use zagros_plumbing::{Deadline, Shutdown, StopMeaning};
use zagros_protocol::control::{
    HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, PlacementResponse,
    ServerEntry, ServerLoad, Writer,
};
use zagros_protocol::datapath::{Access, Encoding, LookupRequest, LookupResponse, PushRequest};
use zagros_protocol::packed::{decode_values, encode_ids, encode_values};
use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind, RunId, Segment, Segments, ServerIndex, TableId};
use zagros_transport::datapath::embedding_client::EmbeddingClient;
use zagros_transport::{Credentials, PeerRole, open_channel, stamp_run};

pub(crate) const BUCKETS: u32 = 64;
/// Weights of a row of the job's table.
pub(crate) const DIM: usize = 2;
pub(crate) const RUN: RunId = RunId(0xa);
/// The dense worker of the run, with its first incarnation.
pub(crate) const WRITER: Writer = Writer { member: 3, incarnation: 1 };
/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The coordinator's knowledge of the run, and the server's reports. Tests change it.
#[derive(Default)]
pub(crate) struct ScriptedState {
    pub(crate) map: Option<BucketMap>,
    pub(crate) refuse_join: Option<Refusal>,
    pub(crate) refuse_heartbeat: Option<Refusal>,
    pub(crate) stop: Option<String>,
    pub(crate) joined: Option<JoinRequest>,
    pub(crate) load: Option<ServerLoad>,
    pub(crate) left: Option<LeaveRequest>,
    /// The server has reported that it was asked to end.
    pub(crate) leaving: bool,
    /// Writers in addition to [`WRITER`].
    pub(crate) more_writers: Vec<Writer>,
    /// The largest number that workers have reported.
    pub(crate) batch: u64,
}

impl ScriptedState {
    fn entry(&self, joined: &JoinRequest) -> ServerEntry {
        let address = joined.address.clone();
        ServerEntry { index: 0, address, instance: joined.instance, alive: true, run: RUN.0, lineage: joined.lineage }
    }

    fn join(&mut self, request: JoinRequest) -> Result<JoinResponse, Refusal> {
        self.joined = Some(request);
        let joined = JoinResponse { member: 1, incarnation: 1, lease_ms: 150, run: RUN.0, ..JoinResponse::default() };
        self.refuse_join.clone().map_or(Ok(joined), Err)
    }

    fn heartbeat(&mut self, request: &HeartbeatRequest) -> Result<HeartbeatResponse, Refusal> {
        self.load = request.load.or(self.load);
        self.leaving |= request.leaving;
        let generation = self.map.as_ref().map_or(0, |map| map.generation().0);
        let (stop, reason) = (self.stop.is_some(), self.stop.clone().unwrap_or_default());
        let response = HeartbeatResponse { generation, stop, reason, batch: self.batch, ..Default::default() };
        self.refuse_heartbeat.clone().map_or(Ok(response), Err)
    }

    fn placement(&self) -> PlacementResponse {
        match &self.map {
            None => PlacementResponse { waiting_for: "embedding server 1".to_owned(), ..PlacementResponse::default() },
            Some(map) => PlacementResponse {
                generation: map.generation().0,
                owners: map.pack_owners().into(),
                servers: self.joined.iter().map(|joined| self.entry(joined)).collect(),
                writers: [&[WRITER], &self.more_writers[..]].concat(),
                ..PlacementResponse::default()
            },
        }
    }
}

/// A run with one embedding server behind a scripted coordinator.
#[derive(Clone)]
pub(crate) struct ScriptedRun {
    state: Arc<Mutex<ScriptedState>>,
    control: Arc<FakeControlPlane>,
}

impl Default for ScriptedRun {
    fn default() -> Self {
        let (state, control) = (Arc::<Mutex<ScriptedState>>::default(), Arc::<FakeControlPlane>::default());
        let run = || Arc::clone(&state);
        let (joining, beating, leaving, placing) = (run(), run(), run(), run());
        control.join.set(move |request| joining.lock().unwrap().join(request));
        control.heartbeat.set(move |request| beating.lock().unwrap().heartbeat(&request));
        control.leave.set(move |request| {
            leaving.lock().unwrap().left = Some(request);
            Ok(LeaveResponse {})
        });
        control.placement.set(move |_| Ok(placing.lock().unwrap().placement()));
        Self { state, control }
    }
}

impl ScriptedRun {
    /// A placement in which server 0 owns all buckets.
    pub(crate) fn placed(generation: u64) -> Self {
        let coordinator = Self::default();
        coordinator.change(|state| state.map = Some(BucketMap::split_evenly(Generation(generation), BUCKETS, 1)));
        coordinator
    }

    pub(crate) fn control_plane(&self) -> Arc<dyn ControlPlane> {
        self.control.clone()
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut ScriptedState) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// Waits until `is_so` returns true for the state.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&ScriptedState) -> bool) {
        wait(what, async || self.change(|state| is_so(state))).await;
    }
}

/// Checks again until `is_so` returns true. Fails with the name `what` when the timeout ends.
pub(crate) async fn wait(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Deadline::from_now(TIMEOUT);
    while !is_so().await {
        assert!(!deadline.is_past(), "waited {TIMEOUT:?} until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) type MemberChannel = InterceptedService<Channel, NamesRun>;

/// Adds a run to each request.
#[derive(Clone)]
pub(crate) struct NamesRun(Option<RunId>);

impl tonic::service::Interceptor for NamesRun {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(run) = self.0 {
            stamp_run(run, request.metadata_mut().as_mut());
        }
        Ok(request)
    }
}

/// A channel to a server, whose requests name this run.
pub(crate) fn member_channel(address: &str, run: Option<RunId>) -> MemberChannel {
    let channel = open_channel(address, &Credentials::Open, PeerRole::EmbeddingServer).unwrap();
    InterceptedService::new(channel, NamesRun(run))
}

/// A server at a new port, without an admin port.
pub(crate) async fn server_config(job: Job, index: u32, control: Arc<dyn ControlPlane>) -> ServerConfig {
    let data_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    ServerConfig {
        job: Arc::new(job),
        index: ServerIndex(index),
        control,
        advertised: data_listener.local_addr().unwrap().to_string(),
        data_listener,
        admin_listener: None,
        credentials: Credentials::Open,
        page: PageAccess::ThisMachine,
        storage_folders: Vec::new(),
        on_stop: StopMeaning::Drain,
        registry: Registry::new(),
    }
}

pub(crate) struct Process {
    pub(crate) coordinator: ScriptedRun,
    pub(crate) shutdown: Shutdown,
    pub(crate) address: String,
    pub(crate) admin: SocketAddr,
    /// The folder of the job's `output.folder`.
    pub(crate) runs: TempDir,
    running: JoinHandle<Result<ServerEnd, ServerError>>,
}

impl Process {
    pub(crate) async fn start(coordinator: ScriptedRun) -> Self {
        Self::started(coordinator, TIMEOUT, StopMeaning::Drain).await
    }

    /// As [`Self::start`], with this `cluster.timeout_seconds`. `on_stop` says what a request to end means.
    pub(crate) async fn started(coordinator: ScriptedRun, timeout: Duration, on_stop: StopMeaning) -> Self {
        let mut job = job();
        job.cluster.timeout = timeout;
        if on_stop == StopMeaning::Restart {
            job.cluster.durability = DurabilityLevel::Process;
        }
        let runs = tempfile::tempdir().unwrap();
        job.output.folder = runs.path().to_owned();
        let admin_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (admin, shutdown) = (admin_listener.local_addr().unwrap(), Shutdown::new());
        let config = server_config(job, 0, coordinator.control_plane()).await;
        let config = ServerConfig { admin_listener: Some(admin_listener), on_stop, ..config };
        let address = config.advertised.clone();
        let running = tokio::spawn(run(config, shutdown.clone()));
        Self { coordinator, shutdown, address, admin, runs, running }
    }

    /// As [`Self::start`]. Returns when the server is ready.
    pub(crate) async fn ready(coordinator: ScriptedRun) -> Self {
        let process = Self::start(coordinator).await;
        process.until_ready().await;
        process
    }

    pub(crate) async fn until_ready(&self) {
        wait("the server is ready", async || self.get("/readyz").await.starts_with("HTTP/1.1 200")).await;
    }

    pub(crate) fn client(&self) -> EmbeddingClient<MemberChannel> {
        EmbeddingClient::new(self.channel(Some(RUN)))
    }

    /// A channel whose requests name this run.
    pub(crate) fn channel(&self, run: Option<RunId>) -> MemberChannel {
        member_channel(&self.address, run)
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    pub(crate) async fn ended(self) -> Result<ServerEnd, ServerError> {
        let ended = tokio::time::timeout(TIMEOUT, self.running).await;
        ended.expect("the server should have ended").unwrap()
    }
}

/// A job with one table of dim 2 that uses SGD with learning rate 1.
pub(crate) fn job() -> Job {
    let text = r#"
        data = { format = "delimited", train = "train.csv", columns = ["label", "item"], header = false }
        features = { label = "label", categorical = ["item"] }
        embedding = { dim = 2, optimizer = { kind = "sgd", lr = 1.0 } }
        model = { kind = "ffnn" }
    "#;
    Job::parse(text, Path::new("test.toml"), &Overrides::none()).unwrap()
}

/// Segments and ids of a request for rows of the job's table.
fn rows_of(ids: &[u64]) -> (Bytes, Bytes) {
    let segment = Segment { table: TableId(0), rows: ids.len() as u32, dim: DIM as u32 };
    (Segments::new(vec![segment]).pack().into(), encode_ids(ids).into())
}

pub(crate) fn lookup_of(generation: u64, ids: &[u64], access: Access) -> LookupRequest {
    let (segments, ids) = rows_of(ids);
    let (access, encoding) = (access as i32, Encoding::F32 as i32);
    LookupRequest { generation, segments, ids, access, encoding, ..LookupRequest::default() }
}

/// Push number `seq` at generation 1.
pub(crate) fn push_of(Writer { member, incarnation }: Writer, seq: u64, ids: &[u64], values: &[f32]) -> PushRequest {
    let ((segments, ids), encoding) = (rows_of(ids), Encoding::F32 as i32);
    let gradients = encode_values(values, encoding).unwrap().into();
    let payload = PushRequest { segments, ids, gradients, encoding, ..PushRequest::default() };
    PushRequest { generation: 1, writer: member, incarnation, seq, step: seq, ..payload }
}

pub(crate) fn row_values(answer: &LookupResponse) -> Vec<f32> {
    let mut values = vec![f32::NAN; answer.rows.len() / 4];
    decode_values(&answer.rows, answer.encoding, &mut values).unwrap();
    values
}

/// What a caller hears of a coordinator that has gone.
pub(crate) fn away() -> Refusal {
    Refusal::new(RefusalKind::Unavailable, "connection refused")
}
