//! A run with one server process for tests, and clients of the server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
use zagros_protocol::{BucketMap, Generation, Refusal, RunId, ServerIndex};
use zagros_transport::datapath::embedding_client::EmbeddingClient;
use zagros_transport::{Credentials, PeerRole, open_channel, stamp_run};

pub(crate) const BUCKETS: u32 = 64;
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
    /// The address that workers get instead of the server's own.
    pub(crate) proxy: Option<String>,
    /// The largest number that workers have reported.
    pub(crate) batch: u64,
}

impl ScriptedState {
    fn entry(&self, joined: &JoinRequest) -> ServerEntry {
        let address = self.proxy.clone().unwrap_or_else(|| joined.address.clone());
        ServerEntry { index: 0, address, instance: joined.instance, alive: true, run: RUN.0, lineage: joined.lineage }
    }

    fn join(&mut self, request: JoinRequest) -> Result<JoinResponse, Refusal> {
        self.joined = Some(request);
        let joined = JoinResponse {
            member: 1,
            incarnation: 1,
            lease_ms: 150,
            generation: 0,
            over: false,
            run: RUN.0,
            discard: false,
        };
        self.refuse_join.clone().map_or(Ok(joined), Err)
    }

    fn heartbeat(&mut self, request: &HeartbeatRequest) -> Result<HeartbeatResponse, Refusal> {
        self.load = request.load.or(self.load);
        self.leaving |= request.leaving;
        let response = HeartbeatResponse {
            generation: self.map.as_ref().map_or(0, |map| map.generation().0),
            stop: self.stop.is_some(),
            reason: self.stop.clone().unwrap_or_default(),
            batch: self.batch,
            ..Default::default()
        };
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

impl NamesRun {
    pub(crate) fn new(run: RunId) -> Self {
        Self(Some(run))
    }
}

impl tonic::service::Interceptor for NamesRun {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(run) = self.0 {
            stamp_run(run, request.metadata_mut().as_mut());
        }
        Ok(request)
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
        Self::with_timeout(coordinator, TIMEOUT).await
    }

    /// As [`Self::start`], with this `cluster.timeout_seconds`.
    pub(crate) async fn with_timeout(coordinator: ScriptedRun, timeout: Duration) -> Self {
        Self::started(coordinator, timeout, StopMeaning::Drain).await
    }

    /// As [`Self::with_timeout`]. `on_stop` says what a request to end means.
    pub(crate) async fn started(coordinator: ScriptedRun, timeout: Duration, on_stop: StopMeaning) -> Self {
        let mut job = job();
        job.cluster.timeout = timeout;
        if on_stop == StopMeaning::Restart {
            job.cluster.durability = DurabilityLevel::Process;
        }
        let runs = tempfile::tempdir().unwrap();
        job.output.folder = runs.path().to_owned();
        let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (data_listener, admin_listener) = (listen().await, listen().await);
        let address = data_listener.local_addr().unwrap().to_string();
        let admin = admin_listener.local_addr().unwrap();
        let shutdown = Shutdown::new();
        let config = ServerConfig {
            job: Arc::new(job),
            index: ServerIndex(0),
            control: coordinator.control_plane(),
            data_listener,
            advertised: address.clone(),
            admin_listener: Some(admin_listener),
            credentials: Credentials::Open,
            page: PageAccess::ThisMachine,
            storage_folders: Vec::new(),
            on_stop,
            registry: Registry::new(),
        };
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
        InterceptedService::new(
            open_channel(&self.address, &Credentials::Open, PeerRole::EmbeddingServer).unwrap(),
            NamesRun(run),
        )
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
        [data]
        format = "delimited"
        train = "train.csv"
        columns = ["label", "item"]
        header = false
        [features]
        label = "label"
        categorical = ["item"]
        [embedding]
        dim = 2
        optimizer = { kind = "sgd", lr = 1.0 }
        [model]
        kind = "ffnn"
    "#;
    Job::parse(text, Path::new("test.toml"), &Overrides::none()).unwrap()
}
