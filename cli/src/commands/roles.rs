//! `zagros coordinator`, `embedding-server`, `dense-worker`: one role in this process.

use std::io::Read;
use std::sync::Arc;

use tokio::net::TcpListener;
use zagros_collective::{GlooRendezvous, Rendezvous};
use zagros_coordinator::{CoordinatorConfig, RunOutcome};
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_dense_worker::{RunFolder, Silent, Worker, check_checkpoints};
use zagros_embedding_client::GrpcShard;
use zagros_embedding_server::ServerConfig;
use zagros_job::Job;
use zagros_plumbing::lifecycle::{Shutdown, Signals};
use zagros_plumbing::{admin, metrics};
use zagros_protocol::ServerIndex;

use crate::args::{ConfigArgs, CoordinatorArgs, ServerArgs, WorkerArgs};
use crate::exit::{Exit, Failure, OrInternal};
use crate::page_token;
use crate::resume::{self, Start};
use crate::start::{load_job, watch_signals};
use crate::terminal::Terminal;
use crate::up::Announcement;

/// What every role process has.
struct Role {
    job: Arc<Job>,
    name: String,
    shutdown: Shutdown,
    signals: Signals,
    registry: metrics::Registry,
}

impl Role {
    fn start(config: &ConfigArgs, name: String) -> Result<Self, Failure> {
        let job = Arc::new(load_job(&config.config, &config.sets)?);
        let shutdown = Shutdown::new();
        let signals = watch_signals(&shutdown)?;
        if config.exit_with_parent {
            exit_with_parent(shutdown.clone());
        }
        let registry = metrics::Registry::new();
        metrics::describe_process(&registry, env!("CARGO_PKG_VERSION"));
        Ok(Self { job, name, shutdown, signals, registry })
    }

    async fn bind(&self, key: &str, address: &str) -> Result<TcpListener, Failure> {
        TcpListener::bind(address).await.map_err(|error| {
            let what = format!("{} cannot listen on {address} ({key}): {error}", self.name);
            let help = format!("stop what uses that port, or choose another: --set {key}=HOST:PORT");
            Failure::with_help(Exit::Cluster, what, help)
        })
    }

    fn announce(&self, config: &ConfigArgs, grpc: Option<&TcpListener>, http: &TcpListener) -> Result<(), Failure> {
        let address = grpc.map(TcpListener::local_addr).transpose().or_internal()?;
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        let admin = http.local_addr().or_internal()?.to_string();
        tracing::info!(address, admin, "listening");
        let Some(path) = &config.announce else { return Ok(()) };
        let role = self.name.replace(' ', "-");
        Announcement { role, pid: std::process::id(), address, admin }.write(path).or_internal()?;
        tracing::info!(file = %path.display(), "announced");
        Ok(())
    }

    fn control(&self) -> Result<Arc<dyn ControlPlane>, Failure> {
        let cluster = &self.job.cluster;
        let control = GrpcControlPlane::connect(&cluster.coordinator, cluster.patience);
        Ok(Arc::new(control.map_err(|error| Failure::from_error(Exit::Usage, error))?))
    }

    /// Success unless a signal asked for the end.
    fn exit(&self) -> Exit {
        self.signals.exit_code().map_or(Exit::Success, |code| Exit::Signal(code as u8))
    }
}

/// Serves the control path until the run ends.
pub(crate) async fn coordinator(args: CoordinatorArgs) -> Result<Exit, Failure> {
    let role = Role::start(&args.config, "coordinator".to_owned())?;
    let page_token = page_token::from_environment()?;
    let grpc = role.bind("cluster.coordinator", &role.job.cluster.coordinator).await?;
    let http = role.bind("cluster.admin", &role.job.cluster.admin).await?;
    role.announce(&args.config, Some(&grpc), &http)?;
    let config = CoordinatorConfig {
        job: Arc::clone(&role.job),
        grpc_listener: grpc,
        admin_listener: Some(http),
        page_token,
        registry: role.registry.clone(),
    };
    let outcome = zagros_coordinator::run(config, role.shutdown.clone()).await;
    match outcome.map_err(|error| Failure::from_error(Exit::Cluster, error))? {
        RunOutcome::Failed(reason) => Err(Failure::with_help(
            Exit::Cluster,
            format!("the run failed: {reason}"),
            "the worker's log has the cause",
        )),
        RunOutcome::Finished | RunOutcome::Interrupted(_) => Ok(role.exit()),
    }
}

/// How many threads serve requests, which must be known before anything runs on them.
pub(crate) fn server_threads(args: &ServerArgs) -> Result<usize, Failure> {
    Ok(load_job(&args.config.config, &args.config.sets)?.cluster.server_threads)
}

/// Serves the data path of one shard until told to stop.
pub(crate) async fn embedding_server(args: ServerArgs) -> Result<Exit, Failure> {
    let role = Role::start(&args.config, format!("embedding server {}", args.index))?;
    // Each server writes its own rows: what is wrong with its environment is told now.
    check_checkpoints(&role.job).map_err(resume::failed)?;
    let address = server_address(&role.job, args.index)?;
    let grpc = role.bind("cluster.server_addresses", address).await?;
    let http = role.bind("cluster.admin", &role.job.cluster.admin).await?;
    role.announce(&args.config, Some(&grpc), &http)?;
    let advertised = args.advertise.map_or_else(|| reachable("embedding server", &grpc), Ok)?;
    let config = ServerConfig {
        job: Arc::clone(&role.job),
        index: ServerIndex(args.index),
        control: role.control()?,
        data_listener: grpc,
        advertised,
        admin_listener: Some(http),
        registry: role.registry.clone(),
    };
    let ended = zagros_embedding_server::run(config, role.shutdown.clone()).await;
    ended.map_err(|error| Failure::from_error(Exit::Cluster, error))?;
    Ok(role.exit())
}

/// Trains until the data ends.
pub(crate) async fn dense_worker(args: WorkerArgs) -> Result<Exit, Failure> {
    let role = Role::start(&args.config, format!("dense worker {}", args.index))?;
    let http = role.bind("cluster.admin", &role.job.cluster.admin).await?;
    let rendezvous = rendezvous(&role, args.advertise).await?;
    role.announce(&args.config, None, &http)?;
    let routes = admin::routes(role.registry.clone(), Arc::new(|| Ok(())));
    tokio::spawn(admin::serve(http, routes, role.shutdown.clone()));

    // One worker writes for all.
    let start = match args.folder {
        _ if args.index > 0 => None,
        Some(path) => Some(Start::within(RunFolder::open(path).or_internal()?, &role.job, args.fresh)?),
        None => Some(Start::of(&role.job, args.fresh)?),
    };
    let patience = role.job.cluster.patience;
    let worker = Worker {
        job: Job::clone(&role.job),
        control: role.control()?,
        connect: Arc::new(move |entry| GrpcShard::connect(entry, patience)),
        index: args.index,
        rendezvous,
        registry: role.registry.clone(),
        observer: Arc::new(Silent),
        folder: start.as_ref().map(|start| start.folder.clone()),
        resume: start.as_ref().and_then(|start| start.point.clone()),
        shutdown: role.shutdown.clone(),
    };
    crate::report::finish(worker, Terminal::new(true), &role.signals).await
}

/// Where the other workers of a run of several find this one.
async fn rendezvous(role: &Role, advertise: Option<String>) -> Result<Option<Arc<dyn Rendezvous>>, Failure> {
    let cluster = &role.job.cluster;
    if cluster.workers == 1 {
        return Ok(None);
    }
    let listener = role.bind("cluster.worker_address", &cluster.worker_address).await?;
    let address = advertise.map_or_else(|| reachable("dense worker", &listener), Ok)?;
    let listener = listener.into_std().or_internal()?;
    listener.set_nonblocking(false).or_internal()?;
    let rendezvous = GlooRendezvous::new(listener, address);
    Ok(Some(Arc::new(rendezvous.map_err(|error| Failure::from_error(Exit::Usage, error))?)))
}

fn server_address(job: &Job, index: u32) -> Result<&str, Failure> {
    let addresses = &job.cluster.server_addresses;
    // One address serves all when each server has a host (or a free port) of its own.
    let address = if addresses.len() == 1 { addresses.first() } else { addresses.get(index as usize) };
    address.map(String::as_str).ok_or_else(|| {
        let what = format!("cluster.server_addresses has {} entries, none for server {index}", addresses.len());
        Failure::with_help(Exit::Usage, what, "give one address per server, or one for all")
    })
}

/// The address that a server listens on, where others can reach it by that.
fn reachable(role: &str, listener: &TcpListener) -> Result<String, Failure> {
    let address = listener.local_addr().or_internal()?;
    if address.ip().is_unspecified() {
        let what = format!("{role} listens on {address}, which no worker can connect to by that name");
        return Err(Failure::with_help(Exit::Usage, what, "tell workers where it is: --advertise HOST:PORT"));
    }
    Ok(address.to_string())
}

/// Requests the end when standard input closes. A plain thread: a read of a pipe cannot be cancelled.
fn exit_with_parent(shutdown: Shutdown) {
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // Nothing is ever written to it: the read returns when the parent is gone.
        let _ = std::io::stdin().read_to_end(&mut rest);
        // First of all: the log went to the parent too, so nothing after this may matter.
        shutdown.request();
        tracing::warn!("the parent process is gone, stopping");
    });
}
