//! The order in which a run is removed.
//!
//! Workers go first: when they are asked to end, they write a checkpoint of what they have trained, and that needs the
//! servers and the coordinator. Those go once no worker is left. The objects by which pods find each other go last:
//!
//! ```text
//!  Workers ──► Wait (a worker's pod) ──► Members ──► Wait (another pod) ──► Services ──► Done
//! ```
//!
//! Each look derives the next step from what exists. An operator that takes over therefore continues at the same step.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::crd::CleanPodPolicy;
use crate::names::PodRole;
use crate::observe::{ObservedObjects, OwnedKind, OwnedObject, PodState};

/// How long a pod may outlive its deadline before its node counts as lost.
pub const LINGER: SignedDuration = SignedDuration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalScope {
    All,
    Others(i32),
    Only(i32),
}

impl RemovalScope {
    /// Whether an object of this attempt is removed. If its attempt cannot be read, it belongs to no attempt that is kept.
    #[must_use]
    pub fn includes(self, attempt: Option<i32>) -> bool {
        match self {
            Self::All => true,
            Self::Others(kept) => attempt != Some(kept),
            Self::Only(removed) => attempt == Some(removed),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    Workers(Vec<RemovalTarget>),
    /// A pod has not ended yet.
    Wait(String),
    Members(Vec<RemovalTarget>),
    /// The objects by which pods find each other go: Services, the job file, groups.
    Services,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalTarget {
    pub kind: OwnedKind,
    pub name: String,
    pub how: RemovalMethod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalMethod {
    Delete,
    /// The Job is suspended: pods that run end, and those that have ended stay with their logs.
    Suspend,
}

impl ObservedObjects {
    #[must_use]
    pub fn removal_step(&self, scope: RemovalScope, now: Timestamp) -> RemovalStep {
        match self.workers_removal(scope, now) {
            RemovalStep::Done => {}
            step => return step,
        }
        let members = self.member_targets(scope);
        if !members.is_empty() {
            return RemovalStep::Members(members);
        }
        let of_member = |pod: &&PodState| pod.role != PodRole::Worker;
        if let Some(pod) = self.awaited(scope, now).find(of_member) {
            return RemovalStep::Wait(pod.name.clone());
        }
        let has_services = self.owned.iter().any(|one| one.kind == OwnedKind::Service && scope.includes(one.attempt));
        if has_services { RemovalStep::Services } else { RemovalStep::Done }
    }

    #[must_use]
    pub fn member_targets(&self, scope: RemovalScope) -> Vec<RemovalTarget> {
        self.targets(scope, |one| one.kind.is_member().then_some(RemovalMethod::Delete))
    }

    /// The part of the removal that concerns workers.
    #[must_use]
    pub fn workers_removal(&self, scope: RemovalScope, now: Timestamp) -> RemovalStep {
        let workers = self.targets(scope, |one| (one.kind == OwnedKind::Workers).then_some(RemovalMethod::Delete));
        if !workers.is_empty() {
            return RemovalStep::Workers(workers);
        }
        self.awaited_worker(scope, now).map_or(RemovalStep::Done, |pod| RemovalStep::Wait(pod.name.clone()))
    }

    #[must_use]
    pub fn has_active_workers(&self, scope: RemovalScope) -> bool {
        self.owned.iter().any(|one| {
            one.kind == OwnedKind::Workers && one.is_active && !one.is_deleting && scope.includes(one.attempt)
        })
    }

    /// Whether a worker's pod is being deleted while its Job is there and may make another in its place.
    #[must_use]
    pub fn has_leaving_workers(&self) -> bool {
        let is_leaving = |pod: &PodState| pod.role == PodRole::Worker && pod.until.is_some();
        self.pods.iter().any(is_leaving) && self.has_active_workers(RemovalScope::All)
    }

    #[must_use]
    pub fn awaited_worker(&self, scope: RemovalScope, now: Timestamp) -> Option<&PodState> {
        self.awaited(scope, now).find(|pod| pod.role == PodRole::Worker)
    }

    /// The next step of cleaning up after an attempt that is over: what still runs ends, in the same order.
    #[must_use]
    pub fn tidying_step(&self, attempt: i32, policy: CleanPodPolicy, now: Timestamp) -> RemovalStep {
        let others = self.removal_step(RemovalScope::Others(attempt), now);
        if others != RemovalStep::Done {
            return others;
        }
        let scope = RemovalScope::Only(attempt);
        let how = |one: &OwnedObject| match (policy, one.kind) {
            (CleanPodPolicy::None, _) | (_, OwnedKind::Service) => None,
            (CleanPodPolicy::All, _) | (_, OwnedKind::Servers | OwnedKind::Coordinator) => Some(RemovalMethod::Delete),
            (CleanPodPolicy::Running, OwnedKind::Workers) => one.is_active.then_some(RemovalMethod::Suspend),
        };
        let workers = self.targets(scope, |one| how(one).filter(|_| one.kind == OwnedKind::Workers));
        if !workers.is_empty() {
            return RemovalStep::Workers(workers);
        }
        let members = self.targets(scope, |one| how(one).filter(|_| one.kind.is_member()));
        match self.awaited_worker(scope, now) {
            Some(pod) if !members.is_empty() => RemovalStep::Wait(pod.name.clone()),
            _ if members.is_empty() => RemovalStep::Done,
            _ => RemovalStep::Members(members),
        }
    }

    fn targets(&self, scope: RemovalScope, how: impl Fn(&OwnedObject) -> Option<RemovalMethod>) -> Vec<RemovalTarget> {
        let in_scope = self.owned.iter().filter(|one| scope.includes(one.attempt) && !one.is_deleting);
        let targets =
            in_scope.filter_map(|one| Some(RemovalTarget { kind: one.kind, name: one.name.clone(), how: how(one)? }));
        targets.collect()
    }

    /// A pod that is there long after its deadline is on a node that does not report. The removal does not wait for it.
    fn awaited(&self, scope: RemovalScope, now: Timestamp) -> impl Iterator<Item = &PodState> {
        self.remaining.iter().filter(move |pod| scope.includes(pod.attempt) && !is_overdue(pod.until, LINGER, now))
    }
}

/// Whether a pod should have gone so long ago.
#[must_use]
pub fn is_overdue(until: Option<Timestamp>, by: SignedDuration, now: Timestamp) -> bool {
    until.and_then(|until| until.checked_add(by).ok()).is_some_and(|gone| gone <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, owned, timestamp};

    fn pod(role: PodRole, attempt: i32) -> PodState {
        let name = format!("ctr-{attempt}-{}-0", role.short_name());
        PodState { attempt: Some(attempt), ..fixture::pod(&name, role) }
    }

    fn run(attempt: i32) -> ObservedObjects {
        let kinds = [OwnedKind::Coordinator, OwnedKind::Workers, OwnedKind::Servers, OwnedKind::Service];
        let owned = kinds.into_iter().map(|kind| owned(kind, attempt)).collect();
        let remaining = PodRole::ALL.into_iter().map(|role| pod(role, attempt)).collect();
        ObservedObjects { owned, remaining, ..ObservedObjects::default() }
    }

    #[test]
    fn the_attempt_that_runs_is_kept() {
        let mut seen = run(2);
        assert_eq!(seen.removal_step(RemovalScope::Others(2), timestamp(0)), RemovalStep::Done);
        seen.owned.push(owned(OwnedKind::Servers, 1));
        let (kind, name) = (OwnedKind::Servers, "ctr-1-Servers".to_owned());
        let stale = RemovalStep::Members(vec![RemovalTarget { kind, name, how: RemovalMethod::Delete }]);
        assert_eq!(seen.removal_step(RemovalScope::Others(2), timestamp(0)), stale);
        // A user changed the label.
        seen.owned.last_mut().unwrap().attempt = None;
        assert_eq!(seen.removal_step(RemovalScope::Others(2), timestamp(0)), stale);
    }

    #[test]
    fn an_object_whose_deletion_was_requested_is_not_deleted_again() {
        let mut seen = run(1);
        seen.owned.iter_mut().for_each(|one| one.is_deleting = true);
        assert_eq!(seen.removal_step(RemovalScope::All, timestamp(0)), RemovalStep::Wait("ctr-1-worker-0".to_owned()));
    }
}
