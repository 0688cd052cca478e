//! Carries out decisions: records the status, then makes and removes objects.

use std::time::Duration;

use futures::future::join_all;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::build::{BuildPlan, BuildStage, ObjectManifest, SharedObject, build};
use crate::cache::JobObjects;
use crate::cluster::FINALIZER;
use crate::conditions::{READY, RECONCILED, StatusConditions};
use crate::context::{JobReconciliation, recorded_status};
use crate::crd::{CleanPodPolicy, HybridJob, HybridJobStatus, RunPhase};
use crate::decide::{EventNote, JobDecision, OperatorWork};
use crate::error::Error;
use crate::judge::elapsed_time;
use crate::memory::KnownRequest;
use crate::names::RunAttempt;
use crate::observe::ObservedObjects;
use crate::removal_order::{RemovalScope, RemovalStep};
use crate::reporting::{publish_event, record_status, refusal_message};
use crate::rollout::ServerFacts;
use crate::scale::answer::ask_for_numbers;
use crate::validate::ValidJob;

/// How soon a removal is looked at again, if no watch reports a change before.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// How long a deleted job waits for the end of its workers to be requested, whatever keeps Kubernetes from it.
const LATE: Duration = Duration::from_secs(300);

pub(crate) struct DecisionInput<'a> {
    pub(crate) attempt: &'a RunAttempt,
    pub(crate) valid: Option<&'a ValidJob>,
    pub(crate) observed: &'a ObservedObjects,
    /// How many servers the coordinator counts as alive, if it was asked just now.
    pub(crate) alive: Option<i32>,
}

/// The status first: an attempt is known before its objects exist. `None` when the next step is due at once.
pub(crate) async fn carry_out_decision(
    look: &JobReconciliation<'_>,
    job: &mut HybridJob,
    looked: &DecisionInput<'_>,
    decision: JobDecision,
) -> Result<Option<Action>, Error> {
    let JobDecision { status: next, work, again, news, asks_for, given_up } = decision;
    if next.last_failure != recorded_status(job).last_failure {
        look.context.metrics.failed_attempts.inc();
    }
    *job = record_status(look, job, next.clone()).await?;
    if let Some(news) = news {
        publish_event(look, job, looked.attempt.number, &news).await;
    }
    let (mut next, observed, number) = (next, looked.observed, looked.attempt.number);
    match (work, looked.valid) {
        (OperatorWork::Record, _) => return Ok(None),
        (OperatorWork::Run(stage), Some(valid)) => {
            let servers = ServerFacts { alive: looked.alive, ..observed.server_facts.clone() };
            let owner = job.clone();
            let plan = BuildPlan { owner: &owner, job: valid, attempt: looked.attempt, servers: &servers };
            run(look, job, &plan, stage, observed).await?;
            give_up(look, job, number, &given_up).await?;
            if let Some(wanted) = asks_for {
                next = ask_for_numbers(look, job, looked.attempt, wanted, next).await?;
            }
        }
        (OperatorWork::Drain | OperatorWork::Run(_), _) => {
            remove(look, job, observed, RemovalScope::Others(number)).await?
        }
        (OperatorWork::Clear, _) => remove(look, job, observed, RemovalScope::All).await?,
        (OperatorWork::Tidy(policy), _) => {
            let removal = observed.tidying_step(number, policy, look.now());
            let scope = if is_of_others(observed, number, look) {
                RemovalScope::Others(number)
            } else {
                RemovalScope::Only(number)
            };
            let is_tidy = removal == RemovalStep::Done && policy != CleanPodPolicy::None;
            carry_out(look, job, removal, scope).await?;
            // The model is saved. After a failure the claims stay as long as the HybridJob.
            if is_tidy && recorded_status(job).phase == Some(RunPhase::Succeeded) {
                once(look, job, "claims", look.cluster.remove_claims(RemovalScope::All)).await?;
            }
            // A run that is over must not keep a node from being drained.
            for budget in SharedObject::BUDGETS {
                withdraw(look, job, budget).await?;
            }
        }
        (OperatorWork::Delete, _) => look.cluster.delete_job(job).await?,
    }
    settle(look, job, next).await?;
    Ok(Some(pause(look, job, work, again)))
}

fn is_of_others(observed: &ObservedObjects, number: i32, look: &JobReconciliation<'_>) -> bool {
    observed.removal_step(RemovalScope::Others(number), look.now()) != RemovalStep::Done
}

/// When to look again. A run that makes pods is looked at when its coordinator is to be asked.
fn pause(look: &JobReconciliation<'_>, job: &HybridJob, work: OperatorWork, again: Option<Duration>) -> Action {
    let ask = look.with_memory(job, |memory| memory.next_ask(look.now()));
    match again {
        Some(again) if matches!(work, OperatorWork::Run(_)) => Action::requeue(again.min(ask)),
        Some(again) => Action::requeue(again),
        None => Action::await_change(),
    }
}

/// Notes that the work was done, so that no person has to act any more.
async fn settle(look: &JobReconciliation<'_>, job: &mut HybridJob, mut next: HybridJobStatus) -> Result<(), Error> {
    if refusal_message(&next).is_none() {
        return Ok(());
    }
    StatusConditions::new(&mut next, job.meta().generation, look.now()).set(RECONCILED, true, "Done", "");
    *job = record_status(look, job, next).await?;
    Ok(())
}

async fn run(
    look: &JobReconciliation<'_>,
    job: &mut HybridJob,
    plan: &BuildPlan<'_>,
    stage: BuildStage,
    observed: &ObservedObjects,
) -> Result<(), Error> {
    if !is_held(job) {
        *job = look.cluster.set_finalizer(job, true).await?;
    }
    remove(look, job, observed, RemovalScope::Others(plan.attempt.number)).await?;
    for shared in SharedObject::ALL.into_iter().filter(|one| !one.is_wanted(plan)) {
        withdraw(look, job, shared).await?;
    }
    if plan.job.asks_for_proof() {
        let secret = async {
            let access = look.cluster.run_secret(job).await?;
            look.with_memory(job, |memory| memory.access = Some(access));
            Ok(())
        };
        once(look, job, "Secret of the run", secret).await?;
    }
    let objects = look.context.caches.objects_of_job(&look.key);
    // Objects that pods mount or are found by come before the objects that make pods.
    let (workloads, others): (Vec<_>, Vec<_>) =
        build(plan, stage).into_iter().partition(|one| ["Job", "StatefulSet"].contains(&one.resource.kind.as_str()));
    for group in [others, workloads] {
        let applied = join_all(group.iter().map(|manifest| apply(look, job, manifest, &objects))).await;
        applied.into_iter().collect::<Result<(), Error>>()?;
    }
    Ok(())
}

async fn apply(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    manifest: &ObjectManifest,
    objects: &JobObjects,
) -> Result<(), Error> {
    let (title, now) = (manifest.title(), look.now());
    let hash = xxh3_64(serde_json::to_string(&manifest.object).unwrap_or_default().as_bytes());
    match look.with_memory(job, |memory| memory.known_request(&title, hash, now)) {
        KnownRequest::Refused(error) => return Err(error),
        KnownRequest::Applied { generation } if !has_drifted(manifest, generation, objects) => return Ok(()),
        KnownRequest::Applied { .. } | KnownRequest::Nothing => {}
    }
    let applied = look.cluster.apply(manifest).await;
    debug!(object = title, is_applied = applied.is_ok(), "applied");
    look.with_memory(job, |memory| match &applied {
        Ok(generation) => memory.note_applied(&title, hash, *generation, now),
        Err(error) if error.needs_a_person() => memory.note_refused(&title, hash, error, now),
        Err(_) => {}
    });
    applied.map(|_| ())
}

async fn withdraw(look: &JobReconciliation<'_>, job: &HybridJob, shared: SharedObject) -> Result<(), Error> {
    let title = format!("{} {}", shared.api_resource().kind, shared.object_name(&look.key.name));
    once(look, job, &title, look.cluster.delete_shared(shared)).await
}

/// Makes a request, unless that was done a short time ago.
async fn once(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    title: &str,
    request: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    const ABSENT: u64 = 0;
    let now = look.now();
    match look.with_memory(job, |memory| memory.known_request(title, ABSENT, now)) {
        KnownRequest::Refused(error) => return Err(error),
        KnownRequest::Applied { .. } => return Ok(()),
        KnownRequest::Nothing => {}
    }
    let done = request.await;
    look.with_memory(job, |memory| match &done {
        Ok(()) => memory.note_applied(title, ABSENT, None, now),
        Err(error) if error.needs_a_person() => memory.note_refused(title, ABSENT, error, now),
        Err(_) => {}
    });
    done
}

/// Whether a watched object is gone, or was changed after the operator applied it.
fn has_drifted(manifest: &ObjectManifest, applied: Option<i64>, objects: &JobObjects) -> bool {
    let name = manifest.object.name_any();
    fn find<K: Resource<DynamicType = ()>>(objects: &[std::sync::Arc<K>], name: &str) -> Option<Option<i64>> {
        objects.iter().find(|one| one.name_any() == name).map(|one| one.meta().generation)
    }
    let seen = match manifest.resource.kind.as_str() {
        "Job" => find(&objects.jobs, &name),
        "StatefulSet" => find(&objects.sets, &name),
        // Kubernetes counts no generations of a Service.
        "Service" => {
            let seen = objects.services.iter().find(|one| one.name_any() == name);
            let seen = seen.and_then(|seen| serde_json::to_value(seen.as_ref()).ok());
            return seen.is_none_or(|seen| !has_fields(&seen, &manifest.object.data));
        }
        _ => return false,
    };
    match (seen, applied) {
        (None, _) => true,
        (Some(Some(seen)), Some(applied)) => seen > applied,
        _ => false,
    }
}

/// Whether an object has the fields that were applied. Kubernetes adds others.
fn has_fields(seen: &Value, applied: &Value) -> bool {
    match (seen, applied) {
        (Value::Object(seen), Value::Object(applied)) => {
            applied.iter().all(|(name, field)| seen.get(name).is_some_and(|seen| has_fields(seen, field)))
        }
        (Value::Array(seen), Value::Array(applied)) => {
            let mut items = applied.iter().enumerate();
            seen.len() == applied.len() && items.all(|(index, item)| has_fields(&seen[index], item))
        }
        (seen, applied) => seen == applied,
    }
}

async fn remove(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    observed: &ObservedObjects,
    scope: RemovalScope,
) -> Result<(), Error> {
    carry_out(look, job, observed.removal_step(scope, look.now()), scope).await
}

/// Takes one step of a removal. A step that was refused is not repeated at once.
pub(crate) async fn carry_out(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    removal: RemovalStep,
    scope: RemovalScope,
) -> Result<(), Error> {
    if matches!(removal, RemovalStep::Wait(_) | RemovalStep::Done) {
        return Ok(());
    }
    let (title, now) = (format!("removal {removal:?}"), look.now());
    if let KnownRequest::Refused(error) = look.with_memory(job, |memory| memory.known_request(&title, 0, now)) {
        return Err(error);
    }
    let removed = remove_step(look, &removal, scope).await;
    look.with_memory(job, |memory| match &removed {
        Ok(()) => memory.note_removed(&title, scope == RemovalScope::All),
        Err(error) if error.needs_a_person() => memory.note_refused(&title, 0, error, now),
        Err(_) => {}
    });
    removed
}

async fn remove_step(look: &JobReconciliation<'_>, removal: &RemovalStep, scope: RemovalScope) -> Result<(), Error> {
    match removal {
        RemovalStep::Workers(targets) => look.cluster.end_pods(targets).await,
        // The cache may not know a new worker, and servers must not end before their workers.
        RemovalStep::Members(_) if look.cluster.has_workers(scope, look.now()).await? => Ok(()),
        RemovalStep::Members(targets) => look.cluster.end_pods(targets).await,
        RemovalStep::Services => look.cluster.remove_services(scope).await,
        RemovalStep::Wait(_) | RemovalStep::Done => Ok(()),
    }
}

async fn give_up(look: &JobReconciliation<'_>, job: &HybridJob, attempt: i32, pods: &[String]) -> Result<(), Error> {
    for pod in pods {
        look.cluster.give_up(pod).await?;
        let note = format!(
            "{pod} should have ended long ago, but its node does not report: the pod is given up, and another starts in its \
             place"
        );
        publish_event(look, job, attempt, &EventNote { is_warning: true, reason: "WorkerGivenUp", note }).await;
    }
    Ok(())
}

fn is_held(job: &HybridJob) -> bool {
    job.finalizers().iter().any(|one| one == FINALIZER)
}

/// Removes the finalizer of a job that has no workers and gets none: nothing has to end in order.
pub(crate) async fn release_finalizer(
    look: &JobReconciliation<'_>,
    job: &mut HybridJob,
    observed: &ObservedObjects,
) -> Result<(), Error> {
    let has_workers = observed.has_active_workers(RemovalScope::All)
        || observed.awaited_worker(RemovalScope::All, look.now()).is_some();
    let will_have = recorded_status(job).phase.is_some_and(RunPhase::makes_pods);
    if !has_workers && !will_have && is_held(job) {
        *job = look.cluster.set_finalizer(job, false).await?;
    }
    Ok(())
}

/// Workers end first and write a checkpoint; then everything else is deleted. The finalizer holds the job until then
/// and no longer: a right that the operator lost, or a pod that never ends, does not hold it.
pub(crate) async fn end_deleted_job(look: &JobReconciliation<'_>, job: &HybridJob) -> Result<Action, Error> {
    if !is_held(job) {
        return Ok(Action::await_change());
    }
    match end_workers(look, job).await {
        Ok(true) => {
            info!(job = look.key.name, "job is deleted; its workers have ended");
            match remove_rest(look, job).await {
                Err(error) if !error.needs_a_person() => return Err(error),
                Err(error) => warn!(job = look.key.name, %error, "objects of a deleted job are left to Kubernetes"),
                Ok(()) => {}
            }
        }
        Ok(false) => {
            tell_wait(look, job).await;
            return Ok(Action::requeue(SOON));
        }
        Err(error) if error.needs_a_person() => {
            warn!(job = look.key.name, %error, "job is deleted; its pods end in any order");
        }
        Err(error) => return Err(error),
    }
    match look.cluster.set_finalizer(job, false).await {
        Err(error) if !error.is_missing() => Err(error),
        _ => {
            look.context.memory.forget_job(&look.key);
            Ok(Action::await_change())
        }
    }
}

/// Says in the status which worker a deleted job waits for. Its end does not depend on that.
async fn tell_wait(look: &JobReconciliation<'_>, job: &HybridJob) {
    let mut next = recorded_status(job);
    let observed = ObservedObjects::new(next.attempt, &look.context.caches.objects_of_job(&look.key));
    let Some(pod) = observed.awaited_worker(RemovalScope::All, look.now()) else { return };
    let message = format!("is deleted once its workers have ended; {} has not ended yet", pod.name);
    next.message = Some(message.clone());
    StatusConditions::new(&mut next, job.meta().generation, look.now()).set(READY, false, "Deleting", message);
    if let Err(error) = record_status(look, job, next).await {
        debug!(job = look.key.name, %error, "the status of a deleted job was not recorded");
    }
}

/// Deletes also objects without an owner: a job deleted with `--cascade=orphan` leaves nothing but its Secret.
async fn remove_rest(look: &JobReconciliation<'_>, job: &HybridJob) -> Result<(), Error> {
    let observed = ObservedObjects::new(recorded_status(job).attempt, &look.context.caches.objects_of_job(&look.key));
    look.cluster.end_pods(&observed.member_targets(RemovalScope::All)).await?;
    look.cluster.remove_services(RemovalScope::All).await?;
    for shared in SharedObject::ALL {
        look.cluster.delete_shared(shared).await?;
    }
    Ok(())
}

/// A worker that was asked to end gets its time. One that could not be asked for long is not waited for.
async fn end_workers(look: &JobReconciliation<'_>, job: &HybridJob) -> Result<bool, Error> {
    let now = look.now();
    let deleted = job.meta().deletion_timestamp.as_ref().map(|time| time.0);
    let is_late = deleted.is_some_and(|deleted| elapsed_time(deleted, now) >= LATE);
    if let Err(error) = look.context.caches.wait_until_listed().await {
        return if is_late { Ok(true) } else { Err(error) };
    }
    let observed = ObservedObjects::new(recorded_status(job).attempt, &look.context.caches.objects_of_job(&look.key));
    let removal = observed.workers_removal(RemovalScope::All, now);
    let is_reported = observed.awaited_worker(RemovalScope::All, now).is_some_and(|pod| pod.until.is_some());
    match removal {
        RemovalStep::Done => Ok(!look.cluster.has_workers(RemovalScope::All, now).await?),
        RemovalStep::Wait(_) if is_reported => Ok(false),
        _ if is_late => {
            warn!(job = look.key.name, "job is deleted; its workers were not asked to end in time");
            Ok(true)
        }
        step => carry_out(look, job, step, RemovalScope::All).await.map(|()| false),
    }
}
