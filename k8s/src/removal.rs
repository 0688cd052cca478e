//! The removal of what a job has, one step at each look: after an attempt, with a deleted job, in a namespace that is being
//! deleted. `removal_order.rs` says which step is next.

use std::time::Duration;

use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use tracing::{debug, info, warn};

use crate::build::SharedObject;
use crate::cluster::FINALIZER;
use crate::conditions::{READY, StatusConditions};
use crate::context::{JobReconciliation, recorded_status};
use crate::crd::{HybridJob, RunPhase};
use crate::error::Error;
use crate::judge::elapsed_time;
use crate::memory::RememberedRequest;
use crate::observe::ObservedObjects;
use crate::removal_order::{RemovalScope, RemovalStep, RemovalTarget};
use crate::reporting::record_status;

/// How soon a removal is looked at again, if no watch reports a change before.
const SOON: Duration = Duration::from_secs(5);

/// How long a deleted job waits for the end of its workers to be requested, whatever keeps Kubernetes from it.
const LATE: Duration = Duration::from_secs(300);

/// Takes one step of a removal. A step that was refused is not repeated at once.
pub(crate) async fn take_step(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    removal: RemovalStep,
    scope: RemovalScope,
) -> Result<(), Error> {
    let (title, now) = (format!("removal {removal:?}"), look.now());
    let known = look.with_memory(job, |memory| memory.known_request(&title, 0, now));
    if let Some(RememberedRequest::Refused { error, .. }) = known {
        return Err(error);
    }
    let removed = match &removal {
        RemovalStep::Workers(targets) => look.cluster.end_pods(targets).await,
        RemovalStep::Members(targets) => end_members(look, targets, scope).await,
        RemovalStep::Services => look.cluster.remove_services(scope).await,
        RemovalStep::Wait(_) | RemovalStep::Done => return Ok(()),
    };
    look.with_memory(job, |memory| match &removed {
        Ok(()) => memory.note_removed(&title, scope == RemovalScope::All),
        Err(error) if error.needs_a_person() => memory.note_refused(&title, 0, error, now),
        Err(_) => {}
    });
    removed
}

/// The cache may not know a new worker, and servers must not end before their workers.
async fn end_members(
    look: &JobReconciliation<'_>,
    targets: &[RemovalTarget],
    scope: RemovalScope,
) -> Result<(), Error> {
    if look.cluster.has_workers(scope, look.now()).await? { Ok(()) } else { look.cluster.end_pods(targets).await }
}

/// Kubernetes deletes pods first. The workers' Job keeps an ended pod until it has made another, which it may not make
/// in a namespace that is being deleted: so the Job goes.
pub(crate) async fn vacate_namespace(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    observed: &ObservedObjects,
) -> Result<Action, Error> {
    info!(job = look.key.name, namespace = look.key.namespace, "the namespace is being deleted; the workers' Job goes");
    take_step(look, job, observed.workers_removal(RemovalScope::All, look.now()), RemovalScope::All).await?;
    Ok(Action::requeue(SOON))
}

pub(crate) fn is_held(job: &HybridJob) -> bool {
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
        step => take_step(look, job, step, RemovalScope::All).await.map(|()| false),
    }
}
