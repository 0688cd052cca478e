//! The operator as a process: its port, its lease, its watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Config;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{self, ObjectRef, reflector};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{PredicateConfig, WatchStreamExt, applier};
use kube::{Api, Client, Resource};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tracing::{debug, warn};
use zagros_plumbing::admin::{self, PageAccess, PageToken};
use zagros_plumbing::metrics::Registry;
use zagros_plumbing::{Lifecycle, Shutdown};

use crate::cache::{JobKey, ObjectCaches, scoped_api};
use crate::context::{Clock, CoordinatorQuery, OperatorContext, OperatorMetrics};
use crate::crd::HybridJob;
use crate::error::Error;
use crate::leader::LeaseHandle;
use crate::memory::OperatorMemory;
use crate::names::{MANAGER, RunAttempt};
use crate::probe::{self, CoordinatorScale};
use crate::reconcile::{error_policy, reconcile};

/// Events within this time of each other lead to one look.
const DEBOUNCE: Duration = Duration::from_millis(500);
/// The most jobs that are looked at at the same time for each core. A look mostly waits for Kubernetes.
const LOOKS: usize = 16;
/// The most jobs that are looked at at the same time, whatever the number of cores.
const MOST_LOOKS: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(10);

pub struct OperatorConfig {
    pub client: Client,
    /// The namespace whose jobs it manages; all if `None`.
    pub namespace: Option<String>,
    /// Its pod's name.
    pub identity: String,
    pub lease: Option<LeaseHandle>,
    /// Whether HybridJobs may have folders of nodes and privileged containers.
    pub allows_host_access: bool,
    /// Port of `/healthz`, `/readyz` and `/metrics`.
    pub admin: TcpListener,
    pub registry: Registry,
    pub asker: CoordinatorQuery,
    /// How they are asked for another number of embedding servers.
    pub scaler: CoordinatorScale,
    pub clock: Clock,
}

/// Asks coordinators by the names of their Services.
pub fn ask_coordinator() -> CoordinatorQuery {
    Arc::new(|attempt: RunAttempt, token: Option<PageToken>| {
        Box::pin(async move {
            let asked = probe::ask_status(&attempt.status_address(), token.as_ref()).await;
            asked.inspect_err(|error| debug!(%error, "the progress is unknown")).ok()
        })
    })
}

/// Runs until shutdown is requested or the lease is lost.
pub async fn run(config: OperatorConfig, shutdown: Shutdown) -> Result<(), Error> {
    // A separate token: the port stays open while reconciliations end.
    let life = Lifecycle::new(Shutdown::new());
    let metrics = OperatorMetrics::new(&config.registry);
    let waits = AtomicBool::new(true);
    let (routes, closed) = (admin::routes(config.registry, Arc::new(|| Ok(()))), life.shutdown_token().clone());
    // A follower is ready too: it does everything that is expected of it.
    life.spawn("http port", async move {
        if let Err(error) = admin::serve(config.admin, routes, PageAccess::Anyone, closed).await {
            warn!(%error, "http port failed");
        }
    });

    let context = Arc::new(OperatorContext {
        client: config.client.clone(),
        recorder: Recorder::new(
            config.client.clone(),
            Reporter { controller: MANAGER.to_owned(), instance: Some(config.identity.clone()) },
        ),
        metrics: metrics.clone(),
        asker: config.asker,
        scaler: config.scaler,
        clock: config.clock,
        allows_host_access: config.allows_host_access,
        caches: ObjectCaches::default(),
        memory: OperatorMemory::default(),
    });
    let mut lease = config.lease;
    let ended = async {
        if let Some(lease) = &mut lease {
            lease.wait_until_leading().await?;
        }
        metrics.leads.set(1);
        waits.store(false, Ordering::Release);
        let stop = Shutdown::new();
        let controlled = control(config.client, config.namespace.as_deref(), context, stop.clone());
        tokio::select! {
            // The work under way is dropped when another leads: every step may be the last (`reconcile`).
            () = controlled => Ok(()),
            ended = async {
                tokio::select! {
                    lost = wait_until_lost(lease.as_mut()) => return Err(lost),
                    () = shutdown.requested() => stop.request(),
                }
                tokio::time::sleep(TIMEOUT).await;
                warn!(timeout = ?TIMEOUT, "reconciling did not end in time; the next operator continues it");
                Ok(())
            } => ended,
        }
    };
    let ended = tokio::select! {
        ended = ended => ended,
        // It does not lead yet, so there is nothing to end.
        () = wait_for_early_stop(&shutdown, || !waits.load(Ordering::Acquire)) => Ok(()),
    };
    metrics.leads.set(0);
    if let (Some(lease), Ok(())) = (lease, &ended)
        && tokio::time::timeout(TIMEOUT, lease.give_back()).await.is_err()
    {
        warn!("the lease was not given back: the next operator waits until it expires");
    }
    if let Err(late) = life.finish_tasks(TIMEOUT).await {
        warn!(%late, "port did not close in time");
    }
    ended
}

/// Waits for ever if the work has begun when it is asked to end.
async fn wait_for_early_stop(stop: &Shutdown, has_started: impl FnOnce() -> bool) {
    stop.requested().await;
    if has_started() {
        std::future::pending::<()>().await;
    }
}

/// Waits for ever without a lease.
async fn wait_until_lost(lease: Option<&mut LeaseHandle>) -> Error {
    match lease {
        Some(lease) => lease.wait_until_lost().await,
        None => std::future::pending().await,
    }
}

/// A job that may be unreadable.
type Guarded = DeserializeGuard<HybridJob>;

async fn control(client: Client, namespace: Option<&str>, context: Arc<OperatorContext>, stop: Shutdown) {
    let (known, writer) = reflector::store();
    let jobs = edited_jobs(scoped_api(&client, namespace), writer);
    let (changed, changes) = mpsc::unbounded_channel();
    let kept = Arc::clone(&context);
    let others = futures::stream::unfold(changes, async |mut changes| Some((changes.recv().await?, changes)));
    let (ends, store) = (stop.clone(), known.clone());
    let queue = futures::stream::select(jobs, others.map(|key| reference(&key)))
        .take_until(async move { ends.requested().await })
        .map(Ok::<_, std::convert::Infallible>);
    let config = Config::default().debounce(DEBOUNCE).concurrency(concurrency());
    let look = |job, context| Box::pin(reconcile(job, context));
    let reconciled = applier(look, error_policy, context, known.clone(), queue, config).for_each(async |result| {
        if let Err(error) = result {
            debug!(%error, "a reconciliation failed");
        }
        kept.memory.forget_unknown(store.len(), |key| store.get(&reference(key)).is_some());
    });
    // An `applier` that is asked to end before the first list has arrived would wait for it for ever.
    let asked_early = wait_for_early_stop(&stop, || known.wait_until_ready().now_or_never().is_some());
    tokio::select! {
        () = reconciled => {}
        () = kept.caches.fill(&client, namespace, changed) => {}
        () = asked_early => debug!("asked to end before the jobs were listed"),
    }
}

/// How many jobs are looked at at the same time. More would only wait for a core, and what they have read would be old.
fn concurrency() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u16::try_from(cores.saturating_mul(LOOKS).min(MOST_LOOKS)).unwrap_or(u16::MAX)
}

/// A change of the status does not count: the operator itself made it.
fn edited_jobs(api: Api<Guarded>, writer: reflector::store::Writer<Guarded>) -> impl Stream<Item = ObjectRef<Guarded>> {
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let edited =
        reflector(writer, events).applied_objects().predicate_filter(what_users_do, PredicateConfig::default());
    edited.filter_map(async |job| {
        let job = job.inspect_err(|error| debug!(%error, "the watch of HybridJobs failed")).ok()?;
        Some(ObjectRef::from_obj(&job))
    })
}

fn what_users_do(job: &Guarded) -> Option<u64> {
    let deleted = u64::from(job.meta().deletion_timestamp.is_some());
    job.meta()
        .generation
        .and_then(|generation| u64::try_from(generation).ok())
        .map(|generation| generation * 2 + deleted)
}

fn reference(job: &JobKey) -> ObjectRef<Guarded> {
    ObjectRef::new(&job.name).within(&job.namespace)
}
