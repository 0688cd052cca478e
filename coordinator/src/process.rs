//! The coordinator as a process: two ports, a timer, and an end of which every member learns.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tracing::{info, warn};
use zagros_job::Job;
use zagros_plumbing::listener::BoundedListener;
use zagros_plumbing::{Deadline, Lifecycle, Shutdown, admin, grpc};

use crate::page::{self, PageAccess, PageToken};
use crate::service::CoordinatorService;
use crate::{CoordinatorError, LocalCoordinator, RunOutcome, StatusReport};

/// The longest delay until an expired lease, or the end of the run, is noticed.
const TICK: Duration = Duration::from_millis(100);
/// The longest time for the workers to save and leave after the coordinator is asked to end: as long as one save may take.
/// A worker that hangs loses its lease long before. A second signal ends the coordinator at once.
const DRAIN: Duration = Duration::from_secs(3600);
/// How often the log names the workers that a drain waits for.
const REMINDER: Duration = Duration::from_secs(10);
/// How long open connections may take to close.
const CLOSE: Duration = Duration::from_secs(5);

/// The settings of the process.
#[derive(Debug)]
pub struct CoordinatorConfig {
    /// The job of the run.
    pub job: Arc<Job>,
    /// Bound port of the control path.
    pub grpc_listener: TcpListener,
    /// Bound port of the live page, `/healthz`, `/readyz`, `/metrics` and `/status`.
    pub admin_listener: Option<TcpListener>,
    /// The token that opens the page. Without a token, a page on a loopback address is open to this machine. A page on
    /// another address gets a random token, which the log shows.
    pub page_token: Option<PageToken>,
    /// Folder of its journal. A process that starts again with the same folder goes on with the run.
    pub journal: Option<PathBuf>,
    /// Where its metrics are registered.
    pub registry: Registry,
}

/// Serves until the run is over. Then waits up to one lease for the members to leave. Returns how the run ended. `shutdown`
/// drains the run: it is over once its workers have saved and left.
///
/// # Errors
/// When a port fails.
pub async fn run(config: CoordinatorConfig, shutdown: Shutdown) -> Result<RunOutcome, CoordinatorError> {
    let coordinator = match &config.journal {
        Some(folder) => LocalCoordinator::open(&config.job, folder, &config.registry)?,
        None => LocalCoordinator::new(&config.job, &config.registry),
    };
    // A separate token: the ports stay open until the members have learnt of the end.
    let life = Lifecycle::new(Shutdown::new());
    let (failed, mut failures) = mpsc::channel(2);
    serve_grpc(&life, config.grpc_listener, &coordinator, failed.clone());
    if let Some(listener) = config.admin_listener {
        let access = access(&listener, config.page_token)?;
        serve_admin(&life, listener, &coordinator, (config.registry, access), failed);
    }

    let supervised = supervise(&coordinator, &shutdown, config.job.cluster.lease);
    let outcome = tokio::select! {
        outcome = supervised => {
            coordinator.forget();
            Ok(outcome)
        }
        Some(error) = failures.recv() => Err(error),
    };
    if let Err(late) = life.finish(CLOSE).await {
        warn!(%late, "ports did not close in time");
    }
    outcome
}

fn serve_grpc(
    life: &Lifecycle,
    listener: TcpListener,
    coordinator: &Arc<LocalCoordinator>,
    failed: mpsc::Sender<CoordinatorError>,
) {
    let (service, shutdown) = (CoordinatorService::serving(Arc::clone(coordinator)), life.shutdown().clone());
    life.spawn("grpc port", async move {
        let incoming = BoundedListener::new(listener).into_stream();
        let stop = async move { shutdown.requested().await };
        let served = grpc::server().add_service(service).serve_with_incoming_shutdown(incoming, stop).await;
        report(served.map_err(CoordinatorError::from), &failed).await;
    });
}

fn serve_admin(
    life: &Lifecycle,
    listener: TcpListener,
    coordinator: &Arc<LocalCoordinator>,
    (registry, access): (Registry, PageAccess),
    failed: mpsc::Sender<CoordinatorError>,
) {
    let shutdown = life.shutdown().clone();
    let page = page::routes(coordinator, access, shutdown.clone());
    let routes = routes(coordinator, registry).merge(page);
    life.spawn("http port", async move {
        let served = admin::serve(listener, routes, shutdown).await;
        report(served.map_err(CoordinatorError::from), &failed).await;
    });
}

/// Decides who may see the page. Logs its address, with the token if that is a random one.
fn access(listener: &TcpListener, token: Option<PageToken>) -> Result<PageAccess, CoordinatorError> {
    let address = listener.local_addr()?;
    let is_given = token.is_some();
    let access = PageAccess::of(address, token);
    let host = match address.ip() {
        ip if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        ip => ip,
    };
    let url = format!("http://{}/", SocketAddr::new(host, address.port()));
    match &access {
        PageAccess::Token { token, .. } if !is_given => info!("live page: {url}?token={}", token.reveal()),
        PageAccess::Token { .. } => info!("live page: {url}?token=… (the token it was given)"),
        PageAccess::ThisMachine => info!("live page: {url}"),
    }
    Ok(access)
}

fn routes(coordinator: &Arc<LocalCoordinator>, registry: Registry) -> Router {
    let readiness = Arc::clone(coordinator);
    let status = Arc::clone(coordinator);
    let routes = admin::routes(registry, Arc::new(move || readiness.ready()));
    routes.route("/status", get(async move || Json(StatusReport::from(status.glance()))))
}

async fn report(served: Result<(), CoordinatorError>, failed: &mpsc::Sender<CoordinatorError>) {
    if let Err(error) = served {
        // Nobody receives the error once the run is over.
        let _ = failed.send(error).await;
    }
}

/// Waits until the run is over, and then up to one lease for all members to leave.
async fn supervise(coordinator: &LocalCoordinator, shutdown: &Shutdown, lease: Duration) -> RunOutcome {
    let outcome = tokio::select! {
        outcome = ended(coordinator) => outcome,
        () = shutdown.requested() => {
            drained(coordinator).await
        }
    };
    let grace = Deadline::after(lease);
    while !coordinator.is_deserted() && !grace.is_past() {
        tokio::time::sleep(TICK.min(grace.left())).await;
        coordinator.tick();
    }
    info!(outcome = outcome.word(), everyone_left = coordinator.is_deserted(), "coordinator ends");
    outcome
}

/// Drains the run: waits until the workers have saved and left. Names the late ones.
async fn drained(coordinator: &LocalCoordinator) -> RunOutcome {
    const REASON: &str = "the coordinator was asked to end";
    coordinator.drain(REASON);
    let deadline = Deadline::after(DRAIN);
    while !deadline.is_past() {
        if let Ok(outcome) = tokio::time::timeout(REMINDER.min(deadline.left()), ended(coordinator)).await {
            return outcome;
        }
        let (waiting_for, waited) = (coordinator.drain_waits_for(), deadline.waited());
        info!("{REASON}; still waiting for {waiting_for} after {waited:.0?}");
    }
    let late = coordinator.drain_waits_for();
    coordinator.end(RunOutcome::Interrupted(format!("{REASON}, and {late} did not leave within {DRAIN:?}")));
    ended(coordinator).await
}

async fn ended(coordinator: &LocalCoordinator) -> RunOutcome {
    loop {
        if let Some(outcome) = coordinator.outcome() {
            return outcome;
        }
        tokio::time::sleep(TICK).await;
        coordinator.tick();
    }
}
