//! The order in which a run is removed.
//!
//! Workers go first: when they are asked to end, they write a checkpoint of what they have trained, and that needs the
//! servers and the coordinator. Those go once no worker is left. The objects by which pods find each other go last:
//!
//! ```text
//!  workers ──► wait (a worker's pod) ──► confirm, members ──► wait (another pod) ──► services ──► done
//! ```
//!
//! Each plan derives the next step from what exists. An operator that takes over therefore continues at the same step.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

use super::{GLANCE, Planner};
use crate::build::SharedObject;
use crate::crd::{CleanPodPolicy, RunPhase};
use crate::memory::elapsed_time;
use crate::names::{PodRole, is_held};
use crate::observe::{OwnedKind, OwnedObject, RemovalScope};
use crate::step::{EventNote, LATE, NO_CONTENT, ObjectDeletion, PlanStep, SOON};

/// How long a worker's pod may outlive its deadline before the operator gives it up.
const GIVE_UP: SignedDuration = SignedDuration::from_secs(60);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum RemovalProgress {
    Due(Vec<PlanStep>),
    /// A pod has not ended yet.
    Wait(String),
    Done,
}

impl Planner<'_> {
    pub(super) fn removal(&self, scope: RemovalScope) -> RemovalProgress {
        match self.workers_removal(scope) {
            RemovalProgress::Done => {}
            removal => return removal,
        }
        match self.members_removal(scope) {
            RemovalProgress::Done => {}
            removal => return removal,
        }
        if let Some(pod) = self.seen.run.awaited_pods(scope, self.seen.now).next() {
            return RemovalProgress::Wait(pod.name.clone());
        }
        let mut services = self.seen.run.owned.iter().filter(|one| one.kind == OwnedKind::Service);
        let has_services = services.any(|one| scope.includes(one.attempt));
        if has_services { RemovalProgress::Due(vec![self.delete_attempts(scope)]) } else { RemovalProgress::Done }
    }

    fn workers_removal(&self, scope: RemovalScope) -> RemovalProgress {
        let workers = self.steps_for(scope, |one| (one.kind == OwnedKind::Workers).then(|| delete(one)));
        if !workers.is_empty() {
            return RemovalProgress::Due(workers);
        }
        let awaited = self.seen.run.awaited_worker(scope, self.seen.now);
        awaited.map_or(RemovalProgress::Done, |pod| RemovalProgress::Wait(pod.name.clone()))
    }

    /// Coordinator and servers go once no worker is left.
    fn members_removal(&self, scope: RemovalScope) -> RemovalProgress {
        let members = self.steps_for(scope, |one| one.kind.is_member().then(|| delete(one)));
        match self.seen.run.awaited_worker(scope, self.seen.now) {
            _ if members.is_empty() => RemovalProgress::Done,
            Some(pod) => RemovalProgress::Wait(pod.name.clone()),
            None => RemovalProgress::Due([vec![PlanStep::ConfirmNoWorkers(scope)], members].concat()),
        }
    }

    /// Steps for the objects whose deletion was not requested yet.
    fn steps_for(&self, scope: RemovalScope, step: impl Fn(&OwnedObject) -> Option<PlanStep>) -> Vec<PlanStep> {
        let owned = self.seen.run.owned.iter().filter(|one| scope.includes(one.attempt) && !one.is_deleting);
        owned.filter_map(step).collect()
    }

    fn delete_attempts(&self, scope: RemovalScope) -> PlanStep {
        let gang = self.job.spec.scheduling.gang.as_ref().map(|gang| gang.scheduler);
        PlanStep::Delete(ObjectDeletion::Attempts(scope, gang))
    }

    pub(super) fn take_steps(&mut self, removal: RemovalProgress) {
        if let RemovalProgress::Due(steps) = removal {
            self.work.extend(steps);
        }
    }

    /// A worker of an earlier attempt that may still write to the run folder. Members that are made now would give up waiting for
    /// it.
    pub(super) fn earlier_worker(&self) -> Option<String> {
        let (run, others) = (&self.seen.run, RemovalScope::Others(self.recorded.attempt));
        let mut owned = run.owned.iter().filter(|one| others.includes(one.attempt) && !one.is_deleting);
        let job = owned.find(|one| one.kind == OwnedKind::Workers).map(|one| &one.name);
        let worker = job.or_else(|| run.awaited_worker(others, self.seen.now).map(|pod| &pod.name));
        worker.filter(|_| run.workers.is_none()).cloned()
    }

    /// The job is over. What still runs ends, in the same order.
    pub(super) fn clean_up(mut self) -> Vec<PlanStep> {
        let job = self.job;
        let policy = &job.spec.run_policy;
        let ended = self.recorded.completion_time.as_ref().map_or(self.seen.now, |time| time.0);
        let left = policy.ttl_seconds_after_finished.map(|seconds| {
            let ttl = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            ttl.saturating_sub(elapsed_time(ended, self.seen.now))
        });
        if left == Some(Duration::ZERO) {
            self.work.push(PlanStep::DeleteJob);
            return self.finish("the HybridJob is deleted", Some(GLANCE));
        }
        let removal = self.tidying(policy.clean_pod_policy);
        let is_tidy = removal == RemovalProgress::Done;
        self.take_steps(removal);
        // The model is saved. After a failure the claims stay as long as the HybridJob.
        let is_saved = self.recorded.phase == Some(RunPhase::Succeeded);
        if is_tidy && is_saved && policy.clean_pod_policy != CleanPodPolicy::None {
            self.delete_once(ObjectDeletion::Claims);
        }
        // A run that is over must not keep a node from being drained.
        SharedObject::BUDGETS.into_iter().for_each(|budget| self.delete_once(ObjectDeletion::Shared(budget)));
        let at_most = if is_tidy { left } else { Some(left.unwrap_or(GLANCE).min(GLANCE)) };
        self.finish("the job is over", at_most)
    }

    fn tidying(&self, policy: CleanPodPolicy) -> RemovalProgress {
        let others = self.removal(RemovalScope::Others(self.recorded.attempt));
        if others != RemovalProgress::Done || policy == CleanPodPolicy::None {
            return others;
        }
        let scope = RemovalScope::Only(self.recorded.attempt);
        let workers = self.steps_for(scope, |one| match (one.kind, policy) {
            (OwnedKind::Workers, CleanPodPolicy::All) => Some(delete(one)),
            (OwnedKind::Workers, _) => one.is_active.then(|| PlanStep::Suspend(one.name.clone())),
            _ => None,
        });
        if !workers.is_empty() {
            return RemovalProgress::Due(workers);
        }
        self.members_removal(scope)
    }

    /// Kubernetes deletes pods first. The workers' Job keeps an ended pod until it has made another, which it may not make
    /// in a namespace that is being deleted: so the Job goes.
    pub(super) fn vacate_namespace(self) -> Vec<PlanStep> {
        let steps = match self.workers_removal(RemovalScope::All) {
            RemovalProgress::Due(steps) => steps,
            RemovalProgress::Wait(_) | RemovalProgress::Done => Vec::new(),
        };
        [steps, vec![PlanStep::Wait("the namespace is being deleted", Some(SOON))]].concat()
    }

    /// Workers end first and write a checkpoint; then everything else is deleted, also objects without an owner: a job that is
    /// deleted with `--cascade=orphan` leaves nothing but its Secret. The finalizer holds the job until then and no longer.
    pub(super) fn end_deleted_job(mut self) -> Vec<PlanStep> {
        let (all, now) = (RemovalScope::All, self.seen.now);
        let deleted = self.job.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0);
        let awaited = self.seen.run.awaited_worker(all, now);
        let is_asked = awaited.is_some_and(|pod| pod.until.is_some());
        let is_late = elapsed_time(deleted, now) >= LATE;
        match self.workers_removal(all) {
            RemovalProgress::Done => self.work.push(PlanStep::ConfirmNoWorkers(all)),
            // A worker that was asked to end gets its time. One that could not be asked for long is not waited for.
            removal if !is_late || (is_asked && matches!(removal, RemovalProgress::Wait(_))) => {
                if let Some(pod) = awaited {
                    let message = format!("is deleted once its workers have ended; {} has not ended yet", pod.name);
                    self.unready("Deleting", message);
                }
                self.take_steps(removal);
                self.work.push(PlanStep::Wait("workers of a deleted job end", Some(SOON)));
                return self.assemble();
            }
            _ => {}
        }
        let members = self.steps_for(all, |one| one.kind.is_member().then(|| delete(one)));
        let shared = SharedObject::ALL.map(|shared| PlanStep::Delete(ObjectDeletion::Shared(shared)));
        let ending =
            [self.delete_attempts(all), PlanStep::Hold(false), PlanStep::Wait("the HybridJob is deleted", None)];
        self.work.extend(members.into_iter().chain(shared).chain(ending));
        self.assemble()
    }

    /// Plans a deletion, unless it was made a short time ago.
    pub(super) fn delete_once(&mut self, deletion: ObjectDeletion) {
        let title = deletion.title(&self.attempt.job);
        if self.seen.requests.applied_generation(&title, NO_CONTENT, self.seen.now).is_none() {
            self.work.push(PlanStep::Delete(deletion));
        }
    }

    /// Pods that should have gone long ago. Their kubelet does not report, and their Job makes no other pod before they
    /// have ended.
    pub(super) fn give_up_pods(&mut self) {
        let (seen, rejoins) = (self.seen, self.workers_rejoin());
        let workers = seen.run.pods.iter().filter(|pod| rejoins && pod.role == PodRole::Worker && !pod.has_ended);
        for pod in workers.filter(|pod| pod.is_overdue(GIVE_UP, seen.now)) {
            let note = format!(
                "{} should have ended long ago, but its node does not report: the pod is given up, and another starts in its \
                 place",
                pod.name
            );
            self.work.push(PlanStep::GiveUp(pod.name.clone()));
            self.work.push(PlanStep::Publish(EventNote::warning_note("WorkerGivenUp", note)));
        }
    }

    /// Nothing has to end in order.
    pub(super) fn may_release(&self) -> bool {
        is_held(self.job)
            && !self.seen.run.has_workers(RemovalScope::All, self.seen.now)
            && !self.status.phase.is_some_and(RunPhase::makes_pods)
    }
}

fn delete(one: &OwnedObject) -> PlanStep {
    PlanStep::Delete(ObjectDeletion::Workload(one.kind, one.name.clone()))
}
