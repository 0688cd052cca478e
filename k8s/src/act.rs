//! Carries decisions out: records the status, then makes and removes objects.

use std::time::Duration;

use futures::future::join_all;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::build::{BuildPlan, BuildStage, ObjectManifest, SharedObject, build};
use crate::cache::Objects;
use crate::cluster::FINALIZER;
use crate::conditions::{Conditions, RECONCILED};
use crate::context::{Reconciliation, status};
use crate::crd::{HybridJob, HybridJobStatus, Phase};
use crate::decide::{Decision, EventNote, OperatorWork};
use crate::error::Error;
use crate::judge::elapsed;
use crate::memory::KnownRequest;
use crate::names::Attempt;
use crate::observe::ObservedObjects;
use crate::removal::{Removal, RemovalScope};
use crate::reporting::{publish, record, refusal};
use crate::validate::ValidJob;

/// How soon a removal is looked at again, if no watch tells of it before.
const SOON: Duration = Duration::from_secs(5);

/// When the workers of a deleted job should have been asked to end, whatever keeps Kubernetes from it.
const LATE: Duration = Duration::from_secs(300);

/// What a decision was made on.
pub(crate) struct DecisionInput<'a> {
    pub(crate) attempt: &'a Attempt,
    pub(crate) valid: Option<&'a ValidJob>,
    pub(crate) observed: &'a ObservedObjects,
}

/// Records, then acts: what was begun must be known before it exists. `None` when the next step is due at once.
pub(crate) async fn act(
    look: &Reconciliation<'_>,
    job: &mut HybridJob,
    looked: &DecisionInput<'_>,
    decision: Decision,
) -> Result<Option<Action>, Error> {
    let Decision { status: next, work, again, news, given_up } = decision;
    if next.last_failure != status(job).last_failure {
        look.context.metrics.failed_attempts.inc();
    }
    *job = record(look, job, next.clone()).await?;
    if let Some(news) = news {
        publish(look, job, looked.attempt.number, &news).await;
    }
    let (observed, number) = (looked.observed, looked.attempt.number);
    match (work, looked.valid) {
        (OperatorWork::Record, _) => return Ok(None),
        (OperatorWork::Run(stage), Some(valid)) => {
            run(look, job, &BuildPlan { owner: &job.clone(), job: valid, attempt: looked.attempt }, stage, observed)
                .await?;
            give_up(look, job, number, &given_up).await?;
        }
        (OperatorWork::Drain | OperatorWork::Run(_), _) => {
            remove(look, job, observed, RemovalScope::Others(number)).await?
        }
        (OperatorWork::Clear, _) => remove(look, job, observed, RemovalScope::All).await?,
        (OperatorWork::Tidy(policy), _) => {
            let removal = observed.tidying(number, policy, look.now());
            let scope = if is_of_others(observed, number, look) {
                RemovalScope::Others(number)
            } else {
                RemovalScope::Only(number)
            };
            carry_out(look, job, removal, scope).await?;
            // What is left of a run that is over keeps no node from being drained.
            for budget in SharedObject::BUDGETS {
                withdraw(look, job, budget).await?;
            }
        }
        (OperatorWork::Delete, _) => look.cluster.delete(job).await?,
    }
    settle(look, job, next).await?;
    Ok(Some(pause(look, job, work, again)))
}

fn is_of_others(observed: &ObservedObjects, number: i32, look: &Reconciliation<'_>) -> bool {
    observed.removal(RemovalScope::Others(number), look.now()) != Removal::Done
}

/// When to look again. A run that goes is looked at when its coordinator is to be asked.
fn pause(look: &Reconciliation<'_>, job: &HybridJob, work: OperatorWork, again: Option<Duration>) -> Action {
    let ask = look.memory(job, |memory| memory.next_ask(look.now()));
    match again {
        Some(again) if matches!(work, OperatorWork::Run(_)) => Action::requeue(again.min(ask)),
        Some(again) => Action::requeue(again),
        None => Action::await_change(),
    }
}

/// The work was done: nobody has to mend anything any more.
async fn settle(look: &Reconciliation<'_>, job: &mut HybridJob, mut next: HybridJobStatus) -> Result<(), Error> {
    if refusal(&next).is_none() {
        return Ok(());
    }
    Conditions::new(&mut next, job.meta().generation, look.now()).set(RECONCILED, true, "Done", "");
    *job = record(look, job, next).await?;
    Ok(())
}

/// Makes the objects of an attempt, and takes what is left of others one step further.
async fn run(
    look: &Reconciliation<'_>,
    job: &mut HybridJob,
    plan: &BuildPlan<'_>,
    stage: BuildStage,
    observed: &ObservedObjects,
) -> Result<(), Error> {
    if !is_held(job) {
        *job = look.cluster.hold(job, true).await?;
    }
    remove(look, job, observed, RemovalScope::Others(plan.attempt.number)).await?;
    for shared in SharedObject::ALL.into_iter().filter(|one| !one.is_wanted(plan)) {
        withdraw(look, job, shared).await?;
    }
    let objects = look.context.caches.objects(&look.key);
    // What pods are found by and mount is there before what makes pods.
    let (workloads, others): (Vec<_>, Vec<_>) =
        build(plan, stage).into_iter().partition(|one| ["Job", "StatefulSet"].contains(&one.resource.kind.as_str()));
    for group in [others, workloads] {
        let applied = join_all(group.iter().map(|manifest| apply(look, job, manifest, &objects))).await;
        applied.into_iter().collect::<Result<(), Error>>()?;
    }
    Ok(())
}

/// Applies an object that is not as it should be, as far as is known.
async fn apply(
    look: &Reconciliation<'_>,
    job: &HybridJob,
    manifest: &ObjectManifest,
    objects: &Objects,
) -> Result<(), Error> {
    let (title, now) = (manifest.title(), look.now());
    let hash = xxh3_64(serde_json::to_string(&manifest.object).unwrap_or_default().as_bytes());
    match look.memory(job, |memory| memory.known(&title, hash, now)) {
        KnownRequest::Refused(error) => return Err(error),
        KnownRequest::Applied { generation } if !has_drifted(manifest, generation, objects) => return Ok(()),
        KnownRequest::Applied { .. } | KnownRequest::Nothing => {}
    }
    let applied = look.cluster.apply(manifest).await;
    debug!(object = title, is_applied = applied.is_ok(), "applied");
    look.memory(job, |memory| match &applied {
        Ok(generation) => memory.applied(&title, hash, *generation, now),
        Err(error) if error.needs_a_person() => memory.refused(&title, hash, error, now),
        Err(_) => {}
    });
    applied.map(|_| ())
}

/// Removes what the attempts share and the spec does not ask for, if that was not done a while ago.
async fn withdraw(look: &Reconciliation<'_>, job: &HybridJob, shared: SharedObject) -> Result<(), Error> {
    const ABSENT: u64 = 0;
    let (title, now) = (format!("{} {}", shared.resource().kind, shared.name(&look.key.name)), look.now());
    match look.memory(job, |memory| memory.known(&title, ABSENT, now)) {
        KnownRequest::Refused(error) => return Err(error),
        KnownRequest::Applied { .. } => return Ok(()),
        KnownRequest::Nothing => {}
    }
    let withdrawn = look.cluster.withdraw(shared).await;
    look.memory(job, |memory| match &withdrawn {
        Ok(()) => memory.applied(&title, ABSENT, None, now),
        Err(error) if error.needs_a_person() => memory.refused(&title, ABSENT, error, now),
        Err(_) => {}
    });
    withdrawn
}

/// Whether an object that is watched went, or was changed by somebody after it was applied.
fn has_drifted(manifest: &ObjectManifest, applied: Option<i64>, objects: &Objects) -> bool {
    let name = manifest.object.name_any();
    fn find<K: Resource<DynamicType = ()>>(objects: &[std::sync::Arc<K>], name: &str) -> Option<Option<i64>> {
        objects.iter().find(|one| one.name_any() == name).map(|one| one.meta().generation)
    }
    let seen = match manifest.resource.kind.as_str() {
        "Job" => find(&objects.jobs, &name),
        "StatefulSet" => find(&objects.sets, &name),
        "Service" => find(&objects.services, &name),
        _ => return false,
    };
    match (seen, applied) {
        (None, _) => true,
        (Some(Some(seen)), Some(applied)) => seen > applied,
        _ => false,
    }
}

async fn remove(
    look: &Reconciliation<'_>,
    job: &HybridJob,
    observed: &ObservedObjects,
    scope: RemovalScope,
) -> Result<(), Error> {
    carry_out(look, job, observed.removal(scope, look.now()), scope).await
}

/// Takes one step of a removal. One that was refused is not tried again at once.
pub(crate) async fn carry_out(
    look: &Reconciliation<'_>,
    job: &HybridJob,
    removal: Removal,
    scope: RemovalScope,
) -> Result<(), Error> {
    if matches!(removal, Removal::Wait(_) | Removal::Done) {
        return Ok(());
    }
    let (title, now) = (format!("removal {removal:?}"), look.now());
    if let KnownRequest::Refused(error) = look.memory(job, |memory| memory.known(&title, 0, now)) {
        return Err(error);
    }
    let removed = remove_step(look, &removal, scope).await;
    look.memory(job, |memory| match &removed {
        Ok(()) => memory.done(&title, scope == RemovalScope::All),
        Err(error) if error.needs_a_person() => memory.refused(&title, 0, error, now),
        Err(_) => {}
    });
    removed
}

async fn remove_step(look: &Reconciliation<'_>, removal: &Removal, scope: RemovalScope) -> Result<(), Error> {
    match removal {
        Removal::Workers(targets) => look.cluster.end(targets).await,
        // The cache may be older than a worker: servers must not go under it.
        Removal::Members(_) if look.cluster.has_workers(scope, look.now()).await? => Ok(()),
        Removal::Members(targets) => look.cluster.end(targets).await,
        Removal::Services => look.cluster.remove_services(scope).await,
        Removal::Wait(_) | Removal::Done => Ok(()),
    }
}

async fn give_up(look: &Reconciliation<'_>, job: &HybridJob, attempt: i32, pods: &[String]) -> Result<(), Error> {
    for pod in pods {
        look.cluster.give_up(pod).await?;
        let note = format!(
            "{pod} should have ended long ago, and its node is not heard of: it is given up, and another starts in its \
             place"
        );
        publish(look, job, attempt, &EventNote { is_warning: true, reason: "WorkerGivenUp", note }).await;
    }
    Ok(())
}

fn is_held(job: &HybridJob) -> bool {
    job.finalizers().iter().any(|one| one == FINALIZER)
}

/// Removes the finalizer of a job that has no workers, and is to have none: nothing has to end in order.
pub(crate) async fn release(
    look: &Reconciliation<'_>,
    job: &mut HybridJob,
    observed: &ObservedObjects,
) -> Result<(), Error> {
    let has_workers = observed.has_active_workers(RemovalScope::All)
        || observed.awaited_worker(RemovalScope::All, look.now()).is_some();
    let will_have = status(job).phase.is_some_and(Phase::makes_pods);
    if !has_workers && !will_have && is_held(job) {
        *job = look.cluster.hold(job, false).await?;
    }
    Ok(())
}

/// The job is deleted. Its workers end first, and write a checkpoint; then all else is reported to go. The finalizer holds the
/// job for that long and no longer: not for a right that the operator lost, and not for a pod that never ends. What is left
/// then goes with its owner, by Kubernetes itself.
pub(crate) async fn farewell(look: &Reconciliation<'_>, job: &HybridJob) -> Result<Action, Error> {
    if !is_held(job) {
        return Ok(Action::await_change());
    }
    match end_workers(look, job).await {
        Ok(true) => {
            info!(job = look.key.name, "job is deleted, its workers have ended");
            match remove_rest(look, job).await {
                Err(error) if !error.needs_a_person() => return Err(error),
                Err(error) => warn!(job = look.key.name, %error, "objects of a deleted job are left to Kubernetes"),
                Ok(()) => {}
            }
        }
        Ok(false) => return Ok(Action::requeue(SOON)),
        Err(error) if error.needs_a_person() => {
            warn!(job = look.key.name, %error, "job is deleted, its pods end in any order");
        }
        Err(error) => return Err(error),
    }
    match look.cluster.hold(job, false).await {
        Err(error) if !error.is_missing() => Err(error),
        _ => {
            look.context.memory.forget(&look.key);
            Ok(Action::await_change())
        }
    }
}

/// Also what lost its owner: who deletes the job and orphans what it owns is left with nothing.
async fn remove_rest(look: &Reconciliation<'_>, job: &HybridJob) -> Result<(), Error> {
    let observed = ObservedObjects::new(status(job).attempt, &look.context.caches.objects(&look.key));
    look.cluster.end(&observed.members(RemovalScope::All)).await?;
    look.cluster.remove_services(RemovalScope::All).await?;
    for shared in SharedObject::ALL {
        look.cluster.withdraw(shared).await?;
    }
    Ok(())
}

/// Whether no worker of a job that is deleted is waited for any more. One that was reported to go has its time; one that was
/// not reported long after is not waited for.
async fn end_workers(look: &Reconciliation<'_>, job: &HybridJob) -> Result<bool, Error> {
    let now = look.now();
    let deleted = job.meta().deletion_timestamp.as_ref().map(|time| time.0);
    let is_late = deleted.is_some_and(|deleted| elapsed(deleted, now) >= LATE);
    if let Err(error) = look.context.caches.listed().await {
        return if is_late { Ok(true) } else { Err(error) };
    }
    let observed = ObservedObjects::new(status(job).attempt, &look.context.caches.objects(&look.key));
    let removal = observed.workers_removal(RemovalScope::All, now);
    let is_reported = observed.awaited_worker(RemovalScope::All, now).is_some_and(|pod| pod.until.is_some());
    match removal {
        Removal::Done => Ok(!look.cluster.has_workers(RemovalScope::All, now).await?),
        Removal::Wait(_) if is_reported => Ok(false),
        _ if is_late => {
            warn!(job = look.key.name, "job is deleted, its workers were not asked to end in time");
            Ok(true)
        }
        step => carry_out(look, job, step, RemovalScope::All).await.map(|()| false),
    }
}
