//! Carries out decisions: records the status, then makes and removes objects.

use std::time::Duration;

use futures::future::join_all;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tracing::debug;
use xxhash_rust::xxh3::xxh3_64;

use crate::build::{BuildPlan, BuildStage, ObjectManifest, SharedObject, build};
use crate::cache::JobObjects;
use crate::conditions::{RECONCILED, StatusConditions};
use crate::context::{JobReconciliation, recorded_status};
use crate::crd::{CleanPodPolicy, HybridJob, HybridJobStatus, RunPhase};
use crate::decide::{EventNote, JobDecision, OperatorWork};
use crate::error::Error;
use crate::memory::RememberedRequest;
use crate::names::RunAttempt;
use crate::observe::ObservedObjects;
use crate::removal::{is_held, take_step};
use crate::removal_order::{RemovalScope, RemovalStep};
use crate::reporting::{publish_event, record_status, refusal_message};
use crate::scale::answer::ask_for_numbers;
use crate::validate::ValidJob;

/// The hash of a request that applies no manifest.
const ABSENT: u64 = 0;

/// The status first: an attempt is known before its objects exist. `None` when the next step is due at once.
pub(crate) async fn carry_out_decision(
    look: &JobReconciliation<'_>,
    job: &mut HybridJob,
    attempt: &RunAttempt,
    valid: Option<&ValidJob>,
    observed: &ObservedObjects,
    decision: JobDecision,
) -> Result<Option<Action>, Error> {
    let JobDecision { status: next, work, again, news, asks_for, given_up } = decision;
    if next.last_failure != recorded_status(job).last_failure {
        look.context.metrics.failed_attempts.inc();
    }
    *job = record_status(look, job, next.clone()).await?;
    if let Some(news) = news {
        publish_event(look, job, attempt.number, &news).await;
    }
    let (mut next, number) = (next, attempt.number);
    match (work, valid) {
        (OperatorWork::Record, _) => return Ok(None),
        (OperatorWork::Run(stage), Some(valid)) => {
            let owner = job.clone();
            let plan = BuildPlan { owner: &owner, job: valid, attempt, servers: &observed.server_facts };
            run(look, job, &plan, stage, observed).await?;
            give_up(look, job, number, &given_up).await?;
            if let Some(wanted) = asks_for {
                next = ask_for_numbers(look, job, attempt, wanted, next).await?;
            }
        }
        (OperatorWork::Drain | OperatorWork::Run(_), _) => {
            remove(look, job, observed, RemovalScope::Others(number)).await?
        }
        (OperatorWork::Clear, _) => remove(look, job, observed, RemovalScope::All).await?,
        (OperatorWork::Tidy(policy), _) => {
            let removal = observed.tidying_step(number, policy, look.now());
            let others = RemovalScope::Others(number);
            let is_of_others = observed.removal_step(others, look.now()) != RemovalStep::Done;
            let scope = if is_of_others { others } else { RemovalScope::Only(number) };
            let is_tidy = removal == RemovalStep::Done && policy != CleanPodPolicy::None;
            take_step(look, job, removal, scope).await?;
            // The model is saved. After a failure the claims stay as long as the HybridJob.
            if is_tidy && recorded_status(job).phase == Some(RunPhase::Succeeded) {
                let claims = async { look.cluster.remove_claims(RemovalScope::All).await.map(|()| None) };
                once(look, job, ("claims", ABSENT), |_| true, claims).await?;
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
            Ok(None)
        };
        once(look, job, ("Secret of the run", ABSENT), |_| true, secret).await?;
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
    let title = manifest.title();
    let hash = xxh3_64(serde_json::to_string(&manifest.object).unwrap_or_default().as_bytes());
    let request = async {
        let applied = look.cluster.apply(manifest).await;
        debug!(object = title, is_applied = applied.is_ok(), "applied");
        applied
    };
    once(look, job, (&title, hash), |generation| !has_drifted(manifest, generation, objects), request).await
}

async fn withdraw(look: &JobReconciliation<'_>, job: &HybridJob, shared: SharedObject) -> Result<(), Error> {
    let title = format!("{} {}", shared.api_resource().kind, shared.object_name(&look.key.name));
    let request = async { look.cluster.delete_shared(shared).await.map(|()| None) };
    once(look, job, (&title, ABSENT), |_| true, request).await
}

/// Makes a request, unless that was done a short time ago and what it made is still there.
async fn once(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    (title, hash): (&str, u64),
    is_there: impl Fn(Option<i64>) -> bool,
    request: impl Future<Output = Result<Option<i64>, Error>>,
) -> Result<(), Error> {
    let now = look.now();
    match look.with_memory(job, |memory| memory.known_request(title, hash, now)) {
        Some(RememberedRequest::Refused { error, .. }) => return Err(error),
        Some(RememberedRequest::Applied { generation, .. }) if is_there(generation) => return Ok(()),
        Some(RememberedRequest::Applied { .. }) | None => {}
    }
    let done = request.await;
    look.with_memory(job, |memory| match &done {
        Ok(generation) => memory.note_applied(title, hash, *generation, now),
        Err(error) if error.needs_a_person() => memory.note_refused(title, hash, error, now),
        Err(_) => {}
    });
    done.map(|_| ())
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
    take_step(look, job, observed.removal_step(scope, look.now()), scope).await
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
