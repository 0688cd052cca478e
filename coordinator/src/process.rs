//! The coordinator as a process: two ports, a timer, and an end of which every member learns.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::service::Routes;
use tracing::{info, warn};
use zagros_coordinator_core::doctor::Observation;
use zagros_job::Job;
use zagros_plumbing::admin::{PageAccess, PageToken};
use zagros_plumbing::{Deadline, Lifecycle, Shutdown, StopMeaning, admin};
use zagros_protocol::Refusal;
use zagros_transport::Credentials;

use crate::journaled::JournalFailure;
use crate::page;
use crate::service::CoordinatorService;
use crate::{CoordinatorError, JournalUse, LocalCoordinator, RunOutcome, StatusReport};

/// The longest delay until an expired lease, or the end of the run, is noticed.
const TICK: Duration = Duration::from_millis(100);
/// The longest time for the workers to save and leave after the coordinator is asked to end: as long as one save may take.
/// A worker that hangs loses its lease long before. A second signal ends the coordinator at once.
const DRAIN: Duration = Duration::from_secs(3600);
/// How often the log names the workers that a drain waits for.
const REMINDER: Duration = Duration::from_secs(10);
/// How long open connections may take to close.
const CLOSE: Duration = Duration::from_secs(5);

/// How old the file with the state of the run is at most, while the process lives.
const STATE_AGE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct CoordinatorConfig {
    pub job: Arc<Job>,
    /// Bound port of the control path.
    pub grpc_listener: TcpListener,
    /// Bound port of the live page, `/healthz`, `/readyz`, `/metrics` and `/status`.
    pub admin_listener: Option<TcpListener>,
    /// What a caller must prove, and what the token of the page, `/metrics` and `/status` is derived from.
    pub credentials: Credentials,
    /// Its journal. A process that starts again with the same journal goes on with the run.
    pub journal: Option<JournalUse>,
    /// What a request to end means. [`StopMeaning::Restart`] needs a journal.
    pub on_stop: StopMeaning,
    /// File that gets the state of the run every two seconds. `zagros doctor` reads it once the process is gone.
    pub state_file: Option<PathBuf>,
    /// File that gets the report of a run that is finished, in brief.
    pub end_report: Option<PathBuf>,
    pub registry: Registry,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorEnd {
    Over(RunOutcome),
    /// The process was asked to end. The run goes on with the next process.
    Restarts,
}

/// Serves until the run is over. Then waits up to one lease for the members to leave. `shutdown` drains the run, which is over
/// once its workers have saved and left; or it ends this process alone, as [`CoordinatorConfig::on_stop`] says.
pub async fn run(config: CoordinatorConfig, shutdown: Shutdown) -> Result<CoordinatorEnd, CoordinatorError> {
    let coordinator = match &config.journal {
        Some(journal) => LocalCoordinator::open(&config.job, journal, &config.registry)?,
        None => LocalCoordinator::new(&config.job, &config.registry),
    };
    // A separate token: the ports stay open until the members have learnt of the end.
    let life = Lifecycle::new(Shutdown::new());
    let (failed, mut failures) = mpsc::channel(2);
    serve_grpc(&life, (config.grpc_listener, config.credentials.clone()), &coordinator, failed.clone());
    if let Some(listener) = config.admin_listener {
        let access = page_access(&listener, &config.credentials)?;
        let is_open = config.job.cluster.insecure && !config.credentials.is_checked();
        let access = if is_open { access.of_page() } else { access };
        serve_admin(&life, listener, &coordinator, (config.registry, access), failed);
    }

    if let Some(path) = config.state_file.clone() {
        let (coordinator, ended) = (Arc::clone(&coordinator), life.shutdown_token().clone());
        life.spawn("state file", async move { keep_state(&path, &coordinator, &ended).await });
    }
    let (lease, timeout) = (config.job.cluster.lease, config.job.cluster.timeout);
    let ended = tokio::select! {
        ended = supervise(&coordinator, &shutdown, config.on_stop, lease) => {
            if matches!(ended, CoordinatorEnd::Over(_)) {
                coordinator.forget_run();
            }
            Ok(ended)
        }
        // No member waits longer for its coordinator (invariant WT-1).
        unwritable = unwritable_for(&coordinator, lease + timeout) => Err(unwritable),
        Some(error) = failures.recv() => Err(error),
    };
    if let Err(late) = life.finish_tasks(CLOSE).await {
        warn!(%late, "ports did not close in time");
    }
    if let Some(path) = &config.state_file {
        write_state(path, &coordinator, false).await;
    }
    if let (Some(file), Ok(CoordinatorEnd::Over(RunOutcome::Finished))) = (config.end_report, &ended) {
        write_end(&file, &StatusReport::from(coordinator.read_status()).in_brief());
    }
    if matches!(ended, Ok(CoordinatorEnd::Restarts)) {
        // After the ports: no input follows.
        coordinator.hand_over();
    }
    ended
}

/// A report that cannot be written fails nothing: the run is over.
fn write_end(file: &Path, report: &StatusReport) {
    let written = serde_json::to_vec(report).map_err(io::Error::other).and_then(|text| std::fs::write(file, text));
    if let Err(error) = written {
        warn!(file = %file.display(), %error, "the report of the end is not written");
    }
}

fn serve_grpc(
    life: &Lifecycle,
    (listener, credentials): (TcpListener, Credentials),
    coordinator: &Arc<LocalCoordinator>,
    failed: mpsc::Sender<CoordinatorError>,
) {
    let (service, shutdown) = (CoordinatorService::new_server(Arc::clone(coordinator)), life.shutdown_token().clone());
    let refused = coordinator.metrics.refused_connections.clone();
    life.spawn("grpc port", async move {
        let stop = async move { shutdown.requested().await };
        let served = zagros_transport::serve(listener, &credentials, refused, Routes::new(service), stop).await;
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
    let shutdown = life.shutdown_token().clone();
    let routes = routes(coordinator, registry).merge(page::page_routes(coordinator, shutdown.clone()));
    life.spawn("http port", async move {
        let served = admin::serve(listener, routes, access, shutdown).await;
        report(served.map_err(CoordinatorError::from), &failed).await;
    });
}

/// Decides who may see the page, `/metrics` and `/status`. On a loopback address no token is needed. On another one there is always a
/// token: that of the run's secret, or else a random one. Logs the page's address, with the token if that is a random one.
fn page_access(listener: &TcpListener, credentials: &Credentials) -> Result<PageAccess, CoordinatorError> {
    let address = listener.local_addr()?;
    let is_exposed = !address.ip().is_loopback();
    let token = credentials.page_token().filter(|_| is_exposed).and_then(|token| PageToken::parse(&token));
    let is_given = token.is_some();
    let access = PageAccess::new(address, token);
    let host = match address.ip() {
        ip if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        ip => ip,
    };
    let url = format!("http://{}/", SocketAddr::new(host, address.port()));
    match &access {
        PageAccess::Token { token, .. } if !is_given => info!("live page: {url}?token={}", token.expose_secret()),
        PageAccess::Token { .. } => {
            info!("live page: {url}?token=… (what `zagros secret token` prints for the run's secret)");
        }
        PageAccess::ThisMachine | PageAccess::Anyone => info!("live page: {url}"),
    }
    Ok(access)
}

fn routes(coordinator: &Arc<LocalCoordinator>, registry: Registry) -> Router {
    let readiness = Arc::clone(coordinator);
    let status = Arc::clone(coordinator);
    let routes = admin::routes(registry, Arc::new(move || readiness.check_ready()));
    routes.merge(admin::json_route("/status", move || StatusReport::from(status.read_status())))
}

async fn report(served: Result<(), CoordinatorError>, failed: &mpsc::Sender<CoordinatorError>) {
    if let Err(error) = served {
        // No task receives the error once the run is over.
        let _ = failed.send(error).await;
    }
}

/// Waits until the run is over, and then up to one lease for all members to leave.
async fn supervise(
    coordinator: &LocalCoordinator,
    shutdown: &Shutdown,
    on_stop: StopMeaning,
    lease: Duration,
) -> CoordinatorEnd {
    let outcome = tokio::select! {
        outcome = ended(coordinator) => outcome,
        () = shutdown.requested() => match on_stop {
            StopMeaning::Drain => drained(coordinator).await,
            StopMeaning::Restart => {
                info!("asked to end; the run goes on with the next process, which replays the journal");
                return CoordinatorEnd::Restarts;
            }
        },
    };
    let grace = Deadline::from_now(lease);
    while !coordinator.is_deserted() && !grace.is_past() {
        tokio::time::sleep(TICK.min(grace.time_left())).await;
        coordinator.tick();
    }
    info!(outcome = outcome.as_str(), everyone_left = coordinator.is_deserted(), "coordinator ends");
    CoordinatorEnd::Over(outcome)
}

/// Drains the run: waits until the workers have saved and left. Names the late ones.
async fn drained(coordinator: &LocalCoordinator) -> RunOutcome {
    const REASON: &str = "the coordinator was asked to end";
    until_written(|| coordinator.drain_run(REASON)).await;
    let deadline = Deadline::from_now(DRAIN);
    while !deadline.is_past() {
        if let Ok(outcome) = tokio::time::timeout(REMINDER.min(deadline.time_left()), ended(coordinator)).await {
            return outcome;
        }
        let (waiting_for, waited) = (coordinator.drain_waits_for(), deadline.time_waited());
        info!("{REASON}; still waiting for {waiting_for} after {waited:.0?}");
    }
    let late = coordinator.drain_waits_for();
    let why = format!("{REASON}, and {late} did not leave within {DRAIN:?}");
    until_written(|| coordinator.end_run(RunOutcome::Interrupted(why.clone()))).await;
    ended(coordinator).await
}

/// Repeats a call of this process until the journal takes it. The journal's own failure is in the log, and
/// [`unwritable_for`] bounds the wait.
async fn until_written(call: impl Fn() -> Result<(), Refusal>) {
    while call().is_err() {
        tokio::time::sleep(TICK).await;
    }
}

/// Resolves once the journal has taken no input for so long.
async fn unwritable_for(coordinator: &LocalCoordinator, longest: Duration) -> CoordinatorError {
    loop {
        if let Some(JournalFailure { since, why }) = coordinator.journal_failure()
            && since.elapsed() > longest
        {
            return CoordinatorError::Unwritable { waited: since.elapsed(), why };
        }
        tokio::time::sleep(TICK).await;
    }
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

/// The state of the run in a file: `zagros doctor` reads it when the coordinator does not answer, or has ended.
async fn keep_state(path: &Path, coordinator: &LocalCoordinator, shutdown: &Shutdown) {
    let mut is_written = true;
    loop {
        is_written = write_state(path, coordinator, !is_written).await;
        tokio::select! {
            () = tokio::time::sleep(STATE_AGE) => {}
            () = shutdown.requested() => return,
        }
    }
}

/// Writes once, and answers whether it did. What fails here fails nothing else. A disk that is full is reported once.
async fn write_state(path: &Path, coordinator: &LocalCoordinator, has_failed: bool) -> bool {
    let observation = Observation::from(&coordinator.read_status());
    let file = path.to_owned();
    let written = tokio::task::spawn_blocking(move || replace(&file, &observation)).await;
    let failed = written.map_err(io::Error::other).flatten().err();
    if let (Some(error), false) = (&failed, has_failed) {
        warn!(file = %path.display(), %error, "the state of the run is not written; the run goes on");
    }
    failed.is_none()
}

/// Replaces the file as a whole. It need not survive a loss of power, so nothing is synced.
fn replace(path: &Path, observation: &Observation) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(observation)?)?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use zagros_job::Overrides;

    use super::*;

    #[tokio::test]
    async fn the_file_is_replaced_and_a_folder_that_is_gone_stops_nothing() {
        let text = "name = 'ads'\n[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap();
        let coordinator = LocalCoordinator::new(&job, &prometheus::Registry::new());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        for _ in 0..2 {
            assert!(write_state(&file, &coordinator, false).await);
            let observation: Observation = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            assert_eq!((observation.job.as_str(), observation.state.as_str()), ("ads", "waiting"));
        }
        drop(folder);
        assert!(!write_state(&file, &coordinator, false).await);
    }
}
