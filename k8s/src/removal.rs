//! In which order a run is removed.
//!
//! Workers go first: reported to end, they write a checkpoint of what they have trained, and that needs the servers and the
//! coordinator. Those go once no worker is left, and what pods find each other by goes last:
//!
//! ```text
//!  Workers ──► Wait (a worker's pod) ──► Members ──► Wait (another pod) ──► Services ──► Done
//! ```
//!
//! Each look takes the next step from what there is, so an operator that takes over goes on where the last one was.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::crd::CleanPodPolicy;
use crate::names::Role;
use crate::observe::{ObservedObjects, OwnedKind, OwnedObject, Remaining};

/// How long after its time a pod may still be there before its node counts as lost.
pub const LINGER: SignedDuration = SignedDuration::from_secs(30);

/// Which attempts are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalScope {
    /// All.
    All,
    /// All but this.
    Others(i32),
    /// This alone.
    Only(i32),
}

impl RemovalScope {
    /// Whether an object of this attempt is removed. One whose attempt cannot be read belongs to none that is kept.
    #[must_use]
    pub fn has(self, attempt: Option<i32>) -> bool {
        match self {
            Self::All => true,
            Self::Others(kept) => attempt != Some(kept),
            Self::Only(removed) => attempt == Some(removed),
        }
    }
}

/// The next step of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Workers are asked to end.
    Workers(Vec<RemovalTarget>),
    /// A pod has not ended yet.
    Wait(String),
    /// Servers and coordinator are asked to end.
    Members(Vec<RemovalTarget>),
    /// What pods find each other by goes: Services, the job file, groups.
    Services,
    /// Nothing is left.
    Done,
}

/// An object that goes, or whose pods do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalTarget {
    /// Its kind.
    pub kind: OwnedKind,
    /// Its name.
    pub name: String,
    /// How.
    pub how: How,
}

/// How an object's pods are asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The object is deleted, and all its pods with it.
    Delete,
    /// The Job is suspended: pods that run end, and those that have ended stay with their logs.
    Suspend,
}

impl ObservedObjects {
    /// The next step of removing attempts whole.
    #[must_use]
    pub fn removal(&self, scope: RemovalScope, now: Timestamp) -> Removal {
        match self.workers_removal(scope, now) {
            Removal::Done => {}
            step => return step,
        }
        let members = self.members(scope);
        if !members.is_empty() {
            return Removal::Members(members);
        }
        let of_member = |pod: &&Remaining| pod.role != Role::Worker;
        if let Some(pod) = self.awaited(scope, now).find(of_member) {
            return Removal::Wait(pod.name.clone());
        }
        let has_services = self.owned.iter().any(|one| one.kind == OwnedKind::Service && scope.has(one.attempt));
        if has_services { Removal::Services } else { Removal::Done }
    }

    /// Servers and coordinators.
    #[must_use]
    pub fn members(&self, scope: RemovalScope) -> Vec<RemovalTarget> {
        self.targets(scope, |one| one.kind.is_member().then_some(How::Delete))
    }

    /// The part of it that is about workers.
    #[must_use]
    pub fn workers_removal(&self, scope: RemovalScope, now: Timestamp) -> Removal {
        let workers = self.targets(scope, |one| (one.kind == OwnedKind::Workers).then_some(How::Delete));
        if !workers.is_empty() {
            return Removal::Workers(workers);
        }
        self.awaited_worker(scope, now).map_or(Removal::Done, |pod| Removal::Wait(pod.name.clone()))
    }

    /// Whether a workers' Job may make pods.
    #[must_use]
    pub fn has_active_workers(&self, scope: RemovalScope) -> bool {
        self.owned
            .iter()
            .any(|one| one.kind == OwnedKind::Workers && one.is_active && !one.is_deleting && scope.has(one.attempt))
    }

    /// A worker that has not ended, and is waited for.
    #[must_use]
    pub fn awaited_worker(&self, scope: RemovalScope, now: Timestamp) -> Option<&Remaining> {
        self.awaited(scope, now).find(|pod| pod.role == Role::Worker)
    }

    /// The next step of tidying up after an attempt that is over: what still runs ends, in the same order.
    #[must_use]
    pub fn tidying(&self, attempt: i32, policy: CleanPodPolicy, now: Timestamp) -> Removal {
        let others = self.removal(RemovalScope::Others(attempt), now);
        if others != Removal::Done {
            return others;
        }
        let scope = RemovalScope::Only(attempt);
        let how = |one: &OwnedObject| match (policy, one.kind) {
            (CleanPodPolicy::None, _) | (_, OwnedKind::Service) => None,
            (CleanPodPolicy::All, _) | (CleanPodPolicy::Running, OwnedKind::Servers) => Some(How::Delete),
            (CleanPodPolicy::Running, OwnedKind::Workers | OwnedKind::Coordinator) => {
                one.is_active.then_some(How::Suspend)
            }
        };
        let workers = self.targets(scope, |one| how(one).filter(|_| one.kind == OwnedKind::Workers));
        if !workers.is_empty() {
            return Removal::Workers(workers);
        }
        let members = self.targets(scope, |one| how(one).filter(|_| one.kind.is_member()));
        match self.awaited_worker(scope, now) {
            Some(pod) if !members.is_empty() => Removal::Wait(pod.name.clone()),
            _ if members.is_empty() => Removal::Done,
            _ => Removal::Members(members),
        }
    }

    fn targets(&self, scope: RemovalScope, how: impl Fn(&OwnedObject) -> Option<How>) -> Vec<RemovalTarget> {
        let in_scope = self.owned.iter().filter(|one| scope.has(one.attempt) && !one.is_deleting);
        let targets =
            in_scope.filter_map(|one| Some(RemovalTarget { kind: one.kind, name: one.name.clone(), how: how(one)? }));
        targets.collect()
    }

    /// Pods that have not ended. One that is there long after it should have been killed is on a node that nobody hears
    /// of, and not waited for.
    fn awaited(&self, scope: RemovalScope, now: Timestamp) -> impl Iterator<Item = &Remaining> {
        self.remaining.iter().filter(move |pod| scope.has(pod.attempt) && !is_overdue(pod.until, LINGER, now))
    }
}

/// Whether a pod that was reported to go should have gone so long ago.
#[must_use]
pub fn is_overdue(until: Option<Timestamp>, by: SignedDuration, now: Timestamp) -> bool {
    until.and_then(|until| until.checked_add(by).ok()).is_some_and(|gone| gone <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn owned(kind: OwnedKind, attempt: i32) -> OwnedObject {
        let name = format!("ctr-{attempt}-{kind:?}");
        OwnedObject { kind, name, attempt: Some(attempt), is_active: true, is_deleting: false }
    }

    fn pod(role: Role, attempt: i32, until: Option<i64>) -> Remaining {
        let name = format!("ctr-{attempt}-{}-0", role.word());
        Remaining { name, attempt: Some(attempt), role, until: until.map(at) }
    }

    fn run(attempt: i32) -> ObservedObjects {
        let kinds = [OwnedKind::Coordinator, OwnedKind::Workers, OwnedKind::Servers, OwnedKind::Service];
        ObservedObjects {
            owned: kinds.into_iter().map(|kind| owned(kind, attempt)).collect(),
            remaining: Role::ALL.into_iter().map(|role| pod(role, attempt, None)).collect(),
            ..ObservedObjects::default()
        }
    }

    fn names(removal: Removal) -> Vec<String> {
        match removal {
            Removal::Workers(targets) | Removal::Members(targets) => targets.into_iter().map(|one| one.name).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn workers_go_first_and_services_last() {
        let mut seen = run(1);
        assert_eq!(names(seen.removal(RemovalScope::All, at(0))), ["ctr-1-Workers"]);
        seen.owned.retain(|one| one.kind != OwnedKind::Workers);
        assert_eq!(seen.removal(RemovalScope::All, at(0)), Removal::Wait("ctr-1-worker-0".to_owned()));
        seen.remaining.retain(|pod| pod.role != Role::Worker);
        assert_eq!(names(seen.removal(RemovalScope::All, at(0))), ["ctr-1-Coordinator", "ctr-1-Servers"]);
        seen.owned.retain(|one| one.kind == OwnedKind::Service);
        assert_eq!(seen.removal(RemovalScope::All, at(0)), Removal::Wait("ctr-1-coordinator-0".to_owned()));
        seen.remaining.clear();
        assert_eq!(seen.removal(RemovalScope::All, at(0)), Removal::Services);
        seen.owned.clear();
        assert_eq!(seen.removal(RemovalScope::All, at(0)), Removal::Done);
    }

    #[test]
    fn the_attempt_that_runs_is_kept() {
        let mut seen = run(2);
        assert_eq!(seen.removal(RemovalScope::Others(2), at(0)), Removal::Done);
        seen.owned.push(owned(OwnedKind::Servers, 1));
        assert_eq!(names(seen.removal(RemovalScope::Others(2), at(0))), ["ctr-1-Servers"]);
        // A label that somebody broke.
        seen.owned.last_mut().unwrap().attempt = None;
        assert_eq!(names(seen.removal(RemovalScope::Others(2), at(0))), ["ctr-1-Servers"]);
    }

    #[test]
    fn an_object_that_is_going_is_not_reported_again() {
        let mut seen = run(1);
        seen.owned.iter_mut().for_each(|one| one.is_deleting = true);
        assert_eq!(seen.removal(RemovalScope::All, at(0)), Removal::Wait("ctr-1-worker-0".to_owned()));
    }

    #[test]
    fn a_pod_on_a_lost_node_holds_nothing_up() {
        let mut seen = run(1);
        seen.owned.retain(|one| one.kind == OwnedKind::Servers);
        seen.remaining = vec![pod(Role::Worker, 1, Some(60))];
        assert_eq!(seen.removal(RemovalScope::All, at(89)), Removal::Wait("ctr-1-worker-0".to_owned()));
        assert_eq!(names(seen.removal(RemovalScope::All, at(90))), ["ctr-1-Servers"]);
    }

    #[test]
    fn what_has_ended_stays_with_its_logs_and_what_runs_ends_in_order() {
        let mut seen = run(1);
        let tidying = |seen: &ObservedObjects, policy| seen.tidying(1, policy, at(0));
        let suspended = RemovalTarget { kind: OwnedKind::Workers, name: "ctr-1-Workers".to_owned(), how: How::Suspend };
        assert_eq!(tidying(&seen, CleanPodPolicy::Running), Removal::Workers(vec![suspended]));
        seen.owned[1].is_active = false;
        assert_eq!(tidying(&seen, CleanPodPolicy::Running), Removal::Wait("ctr-1-worker-0".to_owned()));
        seen.remaining.clear();
        let Removal::Members(targets) = tidying(&seen, CleanPodPolicy::Running) else { panic!("members") };
        assert_eq!([targets[0].how, targets[1].how], [How::Suspend, How::Delete]);
        seen.owned[0].is_active = false;
        seen.owned.retain(|one| one.kind != OwnedKind::Servers);
        assert_eq!(tidying(&seen, CleanPodPolicy::Running), Removal::Done);
        assert_eq!(tidying(&seen, CleanPodPolicy::None), Removal::Done);
        assert_eq!(names(tidying(&seen, CleanPodPolicy::All)), ["ctr-1-Workers"]);
    }
}
