//! The embedding server as a process: ports, membership, and an orderly end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::service::Routes;
use tracing::{info, warn};
use zagros_coordinator_client::{ControlPlane, MemberError, Membership};
use zagros_coordinator_core::doctor::OwnWaits;
use zagros_job::Job;
use zagros_plumbing::admin::PageAccess;
use zagros_plumbing::metrics::IntCounter;
use zagros_plumbing::{Lifecycle, Shutdown, StopMeaning, admin};
use zagros_protocol::ServerIndex;
use zagros_protocol::control::{JoinRequest, Outcome, Role};
use zagros_transport::Credentials;

use crate::control::{RunCheck, StopReason, StorageFolders, take_part_in_run};
use crate::grpc::GrpcAdapter;
use crate::resharding::{MoveRunner, migration_service};
use crate::tier::limit_heap;
use crate::{EmbeddingService, LocalShard, ServerError};

/// How long running requests may take after the server stops accepting new ones, if the job's timeout is not shorter.
const GRACE: Duration = Duration::from_secs(10);

pub struct ServerConfig {
    pub job: Arc<Job>,
    pub index: ServerIndex,
    pub control: Arc<dyn ControlPlane>,
    /// The bound port of the data path.
    pub data_listener: TcpListener,
    /// The address `host:port` where workers reach the server.
    pub advertised: String,
    /// The bound port of health and metrics.
    pub admin_listener: Option<TcpListener>,
    /// What a caller must prove.
    pub credentials: Credentials,
    /// Who may read metrics.
    pub page: PageAccess,
    /// Folders and prefixes, besides those of the job, where rows may be saved and loaded.
    pub storage_folders: Vec<String>,
    /// What a request to end means. [`StopMeaning::Restart`] needs a log.
    pub on_stop: StopMeaning,
    pub registry: Registry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEnd {
    /// The run is over, or this process was asked to end.
    Stopped,
    /// The other servers have its buckets, and the run goes on without it.
    Released,
}

/// Serves until shutdown is requested or the coordinator says that this server is not needed any more.
pub async fn run(config: ServerConfig, shutdown: Shutdown) -> Result<ServerEnd, ServerError> {
    let index = config.index.0;
    if config.job.cluster.memory.is_some() {
        limit_heap();
    }
    let roots = StorageFolders::new(&config.job, &config.storage_folders);
    let roots = roots.map_err(ServerError::failed(index, "use a folder for saved rows"))?;
    let service = open_service(&config).await?;
    // A token of its own: stopping the server does not stop its whole process.
    let life = Lifecycle::new(Shutdown::new());
    let (failed, mut failures) = mpsc::channel(1);
    let grace = GRACE.min(config.job.cluster.timeout);
    let guard = Arc::new(RunCheck::new(config.index));
    let member = RunMember {
        service: Arc::clone(&service),
        guard: Arc::clone(&guard),
        job: config.job,
        control: config.control,
        advertised: config.advertised,
        on_stop: config.on_stop,
        credentials: config.credentials.clone(),
        shutdown,
        instance: rand::random(),
    };
    let moves = migration_service(Arc::clone(&service), Arc::clone(&guard));
    let adapter = GrpcAdapter::new(Arc::new(LocalShard::new(Arc::clone(&service))), guard, roots, service.timeout);
    let routes = adapter.routes().add_service(moves);
    let refused = service.metrics.refused_connections.clone();
    serve_data(&life, (config.data_listener, config.credentials), (routes, refused), index, failed.clone());
    if let Some(listener) = config.admin_listener {
        serve_admin(&life, (listener, config.page), config.registry, &service, index, failed);
    }
    let ended = tokio::select! {
        ended = member.take_part() => ended,
        Some(failure) = failures.recv() => Err(failure),
    };
    // The run is over. A connection that a peer keeps half open is not a failure.
    if let Err(late) = life.finish_tasks(grace).await {
        warn!(server = index, %late, "ports did not close in time");
    }
    ended
}

/// Recovery takes seconds: it has a thread that may block.
async fn open_service(config: &ServerConfig) -> Result<Arc<EmbeddingService>, ServerError> {
    let (job, index, registry) = (Arc::clone(&config.job), config.index, config.registry.clone());
    let opened = tokio::task::spawn_blocking(move || EmbeddingService::open(&job, index, &registry)).await;
    opened.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

fn serve_data(
    life: &Lifecycle,
    (listener, credentials): (TcpListener, Credentials),
    (routes, refused): (Routes, IntCounter),
    index: u32,
    failed: mpsc::Sender<ServerError>,
) {
    let stop = life.shutdown_token().clone();
    let serving = async move {
        zagros_transport::serve(listener, &credentials, refused, routes, async move { stop.requested().await }).await
    };
    life.spawn("data port", report_failure(serving, index, "serve its data port", failed));
}

fn serve_admin(
    life: &Lifecycle,
    (listener, access): (TcpListener, PageAccess),
    registry: Registry,
    service: &Arc<EmbeddingService>,
    index: u32,
    failed: mpsc::Sender<ServerError>,
) {
    let service = Arc::clone(service);
    let waits = service.waits.clone();
    let routes = admin::routes(registry, Arc::new(move || service.check_ready()));
    let routes = routes.merge(admin::json_route("/waits", move || OwnWaits {
        waits: waits.long_waits(),
        requests: waits.unanswered_requests(),
    }));
    let serving = admin::serve(listener, routes, access, life.shutdown_token().clone());
    life.spawn("admin port", report_failure(serving, index, "serve its admin port", failed));
}

/// Reports the failure of a port. Only the first failure matters.
async fn report_failure<E: std::error::Error + Send + Sync + 'static>(
    serving: impl Future<Output = Result<(), E>>,
    index: u32,
    what: &'static str,
    failed: mpsc::Sender<ServerError>,
) {
    if let Err(source) = serving.await {
        let _ = failed.try_send(ServerError::failed(index, what)(source));
    }
}

struct RunMember {
    credentials: Credentials,
    service: Arc<EmbeddingService>,
    guard: Arc<RunCheck>,
    job: Arc<Job>,
    control: Arc<dyn ControlPlane>,
    advertised: String,
    on_stop: StopMeaning,
    shutdown: Shutdown,
    instance: u64,
}

impl RunMember {
    async fn take_part(&self) -> Result<ServerEnd, ServerError> {
        let index = self.service.server_index();
        let mut joined = self.join().await;
        if let Err(MemberError::ForeignRows { .. }) = &joined {
            info!(server = index.0, "the rows that were recovered are of another run; the server starts without them");
            self.service.start_empty()?;
            joined = self.join().await;
        }
        let membership = match joined {
            Ok(membership) => membership,
            Err(MemberError::Over { .. }) => {
                info!(server = index.0, "the process before was released and killed; its log is deleted");
                self.service.delete_log();
                return Ok(ServerEnd::Released);
            }
            Err(_) if self.shutdown.is_requested() => return Ok(ServerEnd::Stopped),
            Err(source) => return Err(ServerError::Join { index: index.0, source }),
        };
        membership.report_waits(self.service.waits.clone());
        let run = membership.run_id();
        self.guard.note_joined(run, self.instance);
        info!(server = index.0, address = self.advertised, member = membership.member_id(), %run, "joined the run");
        let ended = self.serve_until_end(&membership).await;
        info!(server = index.0, reason = %ended, "stopping");
        match ended {
            // The next process in its slot has its rows. Until it joins, the coordinator counts this server as away.
            StopReason::Restarts => {
                let service = Arc::clone(&self.service);
                // It waits for the disk.
                let _ = tokio::task::spawn_blocking(move || service.hand_over()).await;
            }
            StopReason::Asked => self.leave(&membership, Outcome::Interrupted, "asked to stop").await,
            StopReason::RunOver(reason) => {
                if self.service.owns_nothing() {
                    // It has handed its buckets over, and a checkpoint of before may not have its files yet.
                    self.service.captures.await_delivery(self.service.timeout).await;
                }
                self.leave(&membership, Outcome::Finished, &reason).await;
                self.service.delete_log();
                if self.service.owns_nothing() {
                    return Ok(ServerEnd::Released);
                }
            }
            StopReason::Fenced(reason) => return Err(ServerError::Fenced { index: index.0, reason }),
            StopReason::Abandoned { silence, idle } => {
                return Err(ServerError::Abandoned { index: index.0, silence, idle });
            }
        }
        Ok(ServerEnd::Stopped)
    }

    /// Serves until the server must stop. A server that ends alone does not ask the coordinator to drain the run.
    async fn serve_until_end(&self, membership: &Membership) -> StopReason {
        let timeout = self.job.cluster.timeout;
        let (service, control) = (Arc::clone(&self.service), Arc::clone(&self.control));
        let member = (membership.member_id(), membership.incarnation());
        let moves = MoveRunner::new(service, control, self.credentials.clone(), member);
        let take_part =
            |drains| take_part_in_run(&self.service, self.control.as_ref(), membership, moves, (timeout, drains));
        let never = Shutdown::new();
        match self.on_stop {
            StopMeaning::Drain => take_part(&self.shutdown).await,
            StopMeaning::Restart => tokio::select! {
                ended = take_part(&never) => ended,
                () = self.shutdown.requested() => StopReason::Restarts,
            },
        }
    }

    /// A process with a log reports the rows that it has recovered. The coordinator refuses a process with another job or another
    /// protocol version, and says which of them differs.
    async fn join(&self) -> Result<Membership, MemberError> {
        let request = JoinRequest {
            role: Role::EmbeddingServer.into(),
            index: self.service.server_index().0,
            address: self.advertised.clone(),
            instance: self.instance,
            job_fingerprint: self.job.fingerprint(),
            lineage: self.service.lineage().map_or(0, |lineage| lineage.0),
            recovered: self.service.has_recovered(),
            ..JoinRequest::default()
        };
        Membership::join(Arc::clone(&self.control), request, self.job.cluster.timeout, &self.shutdown).await
    }

    /// Leaves the run. If this fails, the coordinator notices the end when the lease ends.
    async fn leave(&self, membership: &Membership, outcome: Outcome, reason: &str) {
        if let Err(error) = membership.leave(outcome, reason).await {
            warn!(server = self.service.server_index().0, %error, "could not report the end to the coordinator");
        }
    }
}
