//! One look at one job: dereference → validate → observe → decide → record or apply → clean up.
//!
//! Every step may be the last before the operator ends: each is repeated without harm.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder};
use kube::runtime::finalizer::{Event, finalizer};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::build::{Plan, Shared, build};
use crate::cluster::{Cluster, Sweep};
use crate::conditions::{Conditions, READY, RECONCILED, VALID};
use crate::crd::{CleanPodPolicy, HybridJob, HybridJobSpec, Phase, Progress};
use crate::decide::{Decision, Facts, News, Work, decide};
use crate::error::{Error, Remedy};
use crate::metrics::Metrics;
use crate::names::{Attempt, Role};
use crate::observe::Observed;
use crate::validate::{SpecProblem, ValidJob, validate};

/// Keeps a job until its pods were told to end.
pub const FINALIZER: &str = "zagros.dev/pods";
/// How often a job that waits for its user is looked at: what its spec names may appear without an event.
const USER_PATIENCE: Duration = Duration::from_secs(60);
/// First pause after an error; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Asks the coordinator of an attempt how far it is.
pub type Asker = Arc<dyn Fn(Attempt) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send>> + Send + Sync>;

/// Tells the time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What reconciling needs besides the job.
#[derive(Clone)]
pub struct Context {
    /// To Kubernetes.
    pub client: Client,
    /// Of Events.
    pub recorder: Recorder,
    /// Of the operator.
    pub metrics: Metrics,
    /// To the coordinators.
    pub asker: Asker,
    /// The time.
    pub clock: Clock,
    /// Errors in a row, by job.
    pub failures: Arc<Mutex<HashMap<String, u32>>>,
}

/// Looks at a job, and never fails for what is the user's to mend: that is written into the status.
///
/// # Errors
/// When it should be tried again after a pause.
pub async fn reconcile(guarded: Arc<DeserializeGuard<HybridJob>>, context: Arc<Context>) -> Result<Action, Error> {
    let started = Instant::now();
    let (Some(name), Some(namespace)) = (guarded.meta().name.clone(), guarded.meta().namespace.clone()) else {
        return Err(Error::Unnamed);
    };
    let cluster = Cluster::new(context.client.clone(), &namespace, &name);
    let result = match &guarded.0 {
        Ok(job) => guard(job.clone(), &cluster, &context).await,
        Err(invalid) => unreadable(&cluster, &name, &invalid.error).await,
    };
    context.metrics.seconds.observe(started.elapsed().as_secs_f64());
    let (outcome, result) = match result {
        Ok(action) => ("done", Ok(action)),
        Err(error) => match error.remedy() {
            Remedy::Again => ("retried", Ok(Action::requeue(FIRST_PAUSE))),
            Remedy::Later => ("retried", Err(error)),
            Remedy::Tell(reason) => ("told", tell(&cluster, &context, reason, error).await),
        },
    };
    context.metrics.reconciles.with_label_values(&[outcome]).inc();
    if result.is_ok() {
        failures(&context).remove(&format!("{namespace}/{name}"));
    }
    result
}

/// When to try again after an error.
#[must_use]
pub fn error_policy(guarded: Arc<DeserializeGuard<HybridJob>>, error: &Error, context: Arc<Context>) -> Action {
    let key = format!("{}/{}", guarded.namespace().unwrap_or_default(), guarded.name_any());
    let mut failures = failures(&context);
    let count = failures.entry(key.clone()).or_default();
    let pause = FIRST_PAUSE.saturating_mul(1 << (*count).min(16)).min(LONGEST_PAUSE);
    *count += 1;
    warn!(job = key, %error, again_in = ?pause, "reconciling failed");
    Action::requeue(pause)
}

fn failures(context: &Context) -> std::sync::MutexGuard<'_, HashMap<String, u32>> {
    context.failures.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn guard(job: HybridJob, cluster: &Cluster, context: &Arc<Context>) -> Result<Action, Error> {
    let cluster = &cluster.with_gang(job.spec.scheduling.gang.as_ref().map(|gang| gang.scheduler));
    let event = async |event: Event<HybridJob>| match event {
        Event::Apply(_) => look(cluster, context).await,
        Event::Cleanup(job) => {
            info!(job = job.name_any(), "job is deleted, its pods go");
            cluster.sweep(Sweep::All).await?;
            // Who deletes the job and orphans what it owns is left with none of these.
            for shared in Shared::ALL {
                cluster.withdraw(shared).await?;
            }
            Ok(Action::await_change())
        }
    };
    let guarded = finalizer(&cluster.jobs(), FINALIZER, Arc::new(job), event).await;
    guarded.map_err(|error| Error::from(Box::new(error)))
}

/// The steps.
async fn look(cluster: &Cluster, context: &Context) -> Result<Action, Error> {
    let Some(job) = cluster.current().await? else { return Ok(Action::await_change()) };
    let attempt = attempt(&job)?;
    let observed = cluster.observe(attempt.number).await?;
    let valid = match cluster.text(&attempt, &job.spec.job).await? {
        Some(text) => validate(&job, &text, &attempt),
        None => Err(vec![missing_config(&job)]),
    };
    let is_over = status(&job).phase.is_some_and(Phase::is_final);
    let valid = match valid {
        Err(problems) if !is_over => return refuse(cluster, context, job, &observed, &problems).await,
        valid => valid.ok(),
    };
    let facts = Facts {
        job: &attempt.job,
        namespace: &attempt.namespace,
        spec: &job.spec,
        generation: job.meta().generation,
        status: &status(&job),
        template: &template(&job.spec),
        observed: &observed,
        rejoins: valid.as_ref().is_some_and(ValidJob::rejoins),
        progress: progress(&attempt, &job, &observed, context).await,
        now: (context.clock)(),
    };
    let decision = decide(&facts);
    act(cluster, context, &job, &attempt, valid.as_ref(), &observed, decision).await
}

fn status(job: &HybridJob) -> crate::crd::HybridJobStatus {
    job.status.clone().unwrap_or_default()
}

/// The attempt that the status tells of, or the first.
fn attempt(job: &HybridJob) -> Result<Attempt, Error> {
    let namespace = job.namespace().ok_or(Error::Unnamed)?;
    Ok(Attempt { job: job.name_any(), namespace, number: status(job).attempt.max(1) })
}

/// What an attempt is made from: another value makes another attempt. How the run ends, who watches it and which workers
/// it may have are no part of it.
pub(crate) fn template(spec: &HybridJobSpec) -> String {
    let mut made_from = json!({
        "job": spec.job,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "imagePullSecrets": spec.image_pull_secrets,
        "coordinator": spec.coordinator,
        "embeddingServers": spec.embedding_servers,
        "denseWorkers": spec.dense_workers,
        "volumes": spec.volumes,
        "output": spec.output,
        "scheduling": spec.scheduling,
        "serviceAccountName": spec.service_account_name,
        "podSecurityContext": spec.pod_security_context,
    });
    // Without what is not given: a field that a later operator knows restarts no run.
    if let Some(fields) = made_from.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    format!("{:016x}", xxh3_64(made_from.to_string().as_bytes()))
}

async fn progress(attempt: &Attempt, job: &HybridJob, observed: &Observed, context: &Context) -> Option<Progress> {
    let is_up = observed.ready(Role::Coordinator) > 0 && status(job).attempt > 0;
    if !is_up { None } else { (context.asker)(attempt.clone()).await }
}

/// Records, then acts: what was begun must be known before it exists.
async fn act(
    cluster: &Cluster,
    context: &Context,
    job: &HybridJob,
    attempt: &Attempt,
    valid: Option<&ValidJob>,
    observed: &Observed,
    decision: Decision,
) -> Result<Action, Error> {
    let Decision { status, work, again, news } = decision;
    if decision_fails(job, &status) {
        context.metrics.failed_attempts.inc();
    }
    record(cluster, job, status).await?;
    if let Some(news) = news {
        publish(context, job, attempt.number, &news).await;
    }
    match (work, valid) {
        (Work::Run(stage), Some(valid)) => {
            if observed.has_leftovers {
                cluster.sweep(Sweep::Others(attempt.number)).await?;
            }
            let plan = Plan { owner: job, job: valid, attempt };
            for manifest in build(&plan, stage) {
                debug!(object = manifest.title(), "applied");
                cluster.apply(&manifest).await?;
            }
            for shared in Shared::ALL.into_iter().filter(|one| !one.is_wanted(&plan)) {
                cluster.withdraw(shared).await?;
            }
        }
        (Work::Clear, _) if observed.has_any => cluster.sweep(Sweep::All).await?,
        (Work::Tidy(policy), _) => {
            tidy(cluster, observed, policy).await?;
            // What is left of a run that is over keeps no node from being drained.
            for budget in Shared::BUDGETS {
                cluster.withdraw(budget).await?;
            }
        }
        (Work::Delete, _) => cluster.delete(job).await?,
        (Work::Run(_) | Work::Clear | Work::Record, _) => {}
    }
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

fn decision_fails(job: &HybridJob, next: &crate::crd::HybridJobStatus) -> bool {
    next.last_failure != status(job).last_failure
}

async fn tidy(cluster: &Cluster, observed: &Observed, policy: CleanPodPolicy) -> Result<(), Error> {
    match policy {
        CleanPodPolicy::Running if observed.servers.is_some() || observed.has_leftovers => {
            cluster.sweep(Sweep::Servers).await
        }
        CleanPodPolicy::All if observed.has_any => cluster.sweep(Sweep::Pods).await,
        CleanPodPolicy::Running | CleanPodPolicy::All | CleanPodPolicy::None => Ok(()),
    }
}

/// Writes the status if it changed.
async fn record(cluster: &Cluster, job: &HybridJob, next: crate::crd::HybridJobStatus) -> Result<(), Error> {
    if job.status.as_ref() == Some(&next) {
        return Ok(());
    }
    let mut object = job.clone();
    object.status = Some(next);
    cluster.record(&object).await.map(|_| ())
}

/// The spec cannot be carried out: says why, and waits. What runs goes on running.
async fn refuse(
    cluster: &Cluster,
    context: &Context,
    job: HybridJob,
    observed: &Observed,
    problems: &[SpecProblem],
) -> Result<Action, Error> {
    let message = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let mut next = status(&job);
    let is_news = next.message.as_deref() != Some(&message);
    next.observed_generation = job.meta().generation;
    next.message = Some(message.clone());
    if observed.coordinator.is_none() {
        next.phase = Some(Phase::Invalid);
    }
    Conditions::new(&mut next, job.meta().generation, (context.clock)())
        .set(VALID, false, "InvalidSpec", message.clone())
        .set(READY, false, "InvalidSpec", "the spec cannot be carried out");
    let number = next.attempt;
    record(cluster, &job, next).await?;
    if observed.coordinator.is_none() && observed.has_leftovers {
        cluster.sweep(Sweep::Others(number)).await?;
    }
    if is_news {
        publish(context, &job, number, &News { is_warning: true, reason: "InvalidSpec", note: message }).await;
    }
    Ok(Action::requeue(USER_PATIENCE))
}

fn missing_config(job: &HybridJob) -> SpecProblem {
    let place = job.spec.job.config_map.as_ref();
    let (name, key) = place.map_or(("", ""), |place| (place.name.as_str(), place.key.as_str()));
    let namespace = job.namespace().unwrap_or_default();
    SpecProblem {
        field: "spec.job.configMap".to_owned(),
        message: format!("no ConfigMap {name} with key {key} in namespace {namespace}: make it, or correct the name"),
    }
}

/// An object that an older definition let in, or that was written past it.
async fn unreadable(cluster: &Cluster, name: &str, error: &str) -> Result<Action, Error> {
    let message = format!("the object cannot be read: {error}; correct it, or apply k8s/crd again");
    warn!(job = name, error, "job cannot be read");
    let status = json!({ "status": { "phase": "Invalid", "message": message } });
    let patched = cluster.raw().patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
    patched.map_err(Error::of(format!("record the status of HybridJob {name}")))?;
    Ok(Action::requeue(USER_PATIENCE))
}

/// What someone has to mend: told in the status, looked at again later.
async fn tell(cluster: &Cluster, context: &Context, reason: &'static str, error: Error) -> Result<Action, Error> {
    let message = error.to_string();
    let Ok(Some(job)) = cluster.current().await else { return Err(error) };
    let mut next = status(&job);
    let is_news = !next.conditions.iter().any(|one| one.type_ == RECONCILED && one.message == message);
    Conditions::new(&mut next, job.meta().generation, (context.clock)()).set(
        RECONCILED,
        false,
        reason,
        message.clone(),
    );
    next.message = Some(message.clone());
    let number = next.attempt;
    // Without the permission to write a status, the log is the only place.
    if record(cluster, &job, next).await.is_err() {
        return Err(error);
    }
    warn!(job = job.name_any(), reason, error = message, "someone has to act");
    if is_news {
        publish(context, &job, number, &News { is_warning: true, reason, note: message }).await;
    }
    Ok(Action::requeue(USER_PATIENCE))
}

/// An Event is a courtesy: without it the status says the same.
async fn publish(context: &Context, job: &HybridJob, attempt: i32, news: &News) {
    const LONGEST: usize = 1000;
    let event = KubeEvent {
        type_: if news.is_warning { EventType::Warning } else { EventType::Normal },
        reason: news.reason.to_owned(),
        note: Some(news.note.chars().take(LONGEST).collect()),
        action: format!("Attempt{attempt}"),
        secondary: None,
    };
    if let Err(error) = context.recorder.publish(&event, &job.object_ref(&())).await {
        debug!(%error, reason = news.reason, "event was not published");
    }
}
