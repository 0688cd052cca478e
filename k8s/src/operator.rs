//! The operator as a process: its port, its lease, its watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::net::TcpListener;
use tracing::{debug, warn};
use zagros_plumbing::admin::{self, Readiness};
use zagros_plumbing::metrics::Registry;
use zagros_plumbing::{Lifecycle, Shutdown};

use crate::crd::HybridJob;
use crate::error::Error;
use crate::leader::Candidate;
use crate::metrics::Metrics;
use crate::names::{Attempt, JOB_LABEL, MANAGER};
use crate::probe;
use crate::reconcile::{Asker, Clock, Context, error_policy, reconcile};

/// Events within this time of each other are looked at once.
const DEBOUNCE: Duration = Duration::from_millis(500);
/// Jobs looked at side by side.
const CONCURRENCY: u16 = 16;
/// How long what runs may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an operator needs.
pub struct OperatorConfig {
    /// To Kubernetes.
    pub client: Client,
    /// The namespace whose jobs it looks after; all if `None`.
    pub namespace: Option<String>,
    /// Its pod's name.
    pub identity: String,
    /// Namespace of its lease; without one it leads from the start.
    pub lease_namespace: Option<String>,
    /// Port of `/healthz`, `/readyz` and `/metrics`.
    pub admin: TcpListener,
    /// Where its metrics are registered.
    pub registry: Registry,
    /// How coordinators are asked.
    pub asker: Asker,
    /// The time.
    pub clock: Clock,
}

/// Asks coordinators under the names that their Services have.
#[must_use]
pub fn ask_coordinator() -> Asker {
    Arc::new(|attempt: Attempt| {
        Box::pin(async move {
            let asked = probe::ask(&attempt.status_address()).await;
            asked.inspect_err(|error| debug!(%error, "progress is not known")).ok()
        })
    })
}

/// Runs until shutdown is requested or another operator leads.
///
/// # Errors
/// When the lease is lost.
pub async fn run(config: OperatorConfig, shutdown: Shutdown) -> Result<(), Error> {
    // Its own token: the port stays open while reconciliations end.
    let life = Lifecycle::new(Shutdown::new());
    let metrics = Metrics::new(&config.registry);
    let waits = Arc::new(AtomicBool::new(true));
    serve(&life, config.admin, config.registry, Arc::clone(&waits));

    let context = Arc::new(Context {
        client: config.client.clone(),
        recorder: Recorder::new(
            config.client.clone(),
            Reporter { controller: MANAGER.to_owned(), instance: Some(config.identity.clone()) },
        ),
        metrics: metrics.clone(),
        asker: config.asker,
        clock: config.clock,
        failures: Arc::default(),
    });
    let mut candidate = config
        .lease_namespace
        .map(|namespace| Candidate::new(config.client.clone(), &namespace, MANAGER, &config.identity));
    let ended = async {
        if let Some(candidate) = &mut candidate {
            candidate.lead().await;
        }
        metrics.leads.set(1);
        waits.store(false, Ordering::Release);
        let stop = Shutdown::new();
        let controlled = control(config.client, config.namespace.as_deref(), context, stop.clone());
        tokio::select! {
            // Work under way is dropped where another leads: every step may be the last (`reconcile`).
            () = controlled => Ok(()),
            ended = async {
                hold(candidate.as_mut(), &shutdown).await?;
                stop.request();
                tokio::time::sleep(PATIENCE).await;
                warn!(patience = ?PATIENCE, "reconciling did not end in time; the next operator goes on with it");
                Ok(())
            } => ended,
        }
    };
    let ended = tokio::select! {
        ended = ended => ended,
        // Not leading yet: there is nothing to end.
        () = until_stopped_waiting(&shutdown, &waits) => Ok(()),
    };
    metrics.leads.set(0);
    if let (Some(candidate), Ok(())) = (&mut candidate, &ended) {
        let released = tokio::time::timeout(PATIENCE, candidate.release()).await;
        if !matches!(released, Ok(Ok(()))) {
            warn!("the lease was not given back: the next operator waits until it runs out");
        }
    }
    if let Err(late) = life.finish(PATIENCE).await {
        warn!(%late, "port did not close in time");
    }
    ended
}

/// Shutdown, while another leads.
async fn until_stopped_waiting(shutdown: &Shutdown, waits: &AtomicBool) {
    shutdown.requested().await;
    if !waits.load(Ordering::Acquire) {
        std::future::pending::<()>().await;
    }
}

/// Until shutdown, or until it no longer leads.
async fn hold(candidate: Option<&mut Candidate>, shutdown: &Shutdown) -> Result<(), Error> {
    match candidate {
        None => {
            shutdown.requested().await;
            Ok(())
        }
        Some(candidate) => tokio::select! {
            lost = candidate.hold() => Err(lost),
            () = shutdown.requested() => Ok(()),
        },
    }
}

/// A follower is ready: it does all that is asked of it.
fn serve(life: &Lifecycle, listener: TcpListener, registry: Registry, waits: Arc<AtomicBool>) {
    let readiness: Readiness = Arc::new(move || {
        debug!(follows = waits.load(Ordering::Acquire), "asked for readiness");
        Ok(())
    });
    let (routes, shutdown) = (admin::routes(registry, readiness), life.shutdown().clone());
    life.spawn("http port", async move {
        if let Err(error) = admin::serve(listener, routes, shutdown).await {
            warn!(%error, "http port failed");
        }
    });
}

/// Watches jobs and what they are made of.
async fn control(client: Client, namespace: Option<&str>, context: Arc<Context>, stop: Shutdown) {
    let ours = watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={MANAGER}"));
    let jobs: Api<DeserializeGuard<HybridJob>> = scoped(&client, namespace);
    let controller = Controller::new(jobs, watcher::Config::default());
    let known = controller.store();
    let ends = stop.clone();
    let reconciled = controller
        .with_config(Config::default().debounce(DEBOUNCE).concurrency(CONCURRENCY))
        .owns::<Job>(scoped(&client, namespace), ours.clone())
        .owns::<StatefulSet>(scoped(&client, namespace), ours.clone())
        .watches::<Pod, _>(scoped(&client, namespace), ours, job_of)
        .graceful_shutdown_on(async move { ends.requested().await })
        .run(reconcile, error_policy, context)
        .for_each(async |result| {
            if let Err(error) = result {
                debug!(%error, "a watch or a reconciliation failed");
            }
        });
    tokio::select! {
        () = reconciled => {}
        () = asked_to_end_before_it_began(&stop, &known) => debug!("asked to end before the jobs were listed"),
    }
}

/// A `Controller` that is asked to end before its first list has arrived waits for that list for ever, and nothing
/// fetches it any more.
async fn asked_to_end_before_it_began(stop: &Shutdown, known: &Store<DeserializeGuard<HybridJob>>) {
    stop.requested().await;
    if known.wait_until_ready().now_or_never().is_some() {
        std::future::pending::<()>().await;
    }
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The job of a pod, whose owner is a Job or a StatefulSet.
fn job_of(pod: Pod) -> Option<ObjectRef<DeserializeGuard<HybridJob>>> {
    let job = pod.labels().get(JOB_LABEL)?.clone();
    Some(ObjectRef::new(&job).within(&pod.namespace()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_leads_to_its_job() {
        let pod = |labels: serde_json::Value| {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "namespace": "ads", "labels": labels}}))
                .unwrap()
        };
        let found = job_of(pod(serde_json::json!({"zagros.dev/job": "ctr"}))).unwrap();
        assert_eq!((found.name.as_str(), found.namespace.as_deref()), ("ctr", Some("ads")));
        assert!(job_of(pod(serde_json::json!({"app": "other"}))).is_none());
    }
}
