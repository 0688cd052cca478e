//! From Kubernetes' objects to the few facts that a plan needs.

mod ends;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};

use crate::cache::JobObjects;
use crate::crd::RunProgress;
use crate::names::{ATTEMPT_LABEL, COORDINATOR_SUFFIX, PodRole, ROLE_LABEL, TEMPLATE_ANNOTATION};
use ends::{done, end_report, exit, is_verdict, started};

/// Reasons of the kubelet for a container that does not start. Each needs a person.
const STUCK: [&str; 8] = [
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
];
/// How long a pod may outlive its deadline before its node counts as lost.
const LINGER: SignedDuration = SignedDuration::from_secs(30);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedObjects {
    /// The coordinator, if its StatefulSet exists: as a Job would be, because it runs to an end.
    pub coordinator: Option<JobState>,
    pub workers: Option<JobState>,
    pub servers: Option<ServerSet>,
    pub pods: Vec<PodState>,
    /// Objects of all attempts that make pods, or by which pods are found.
    pub owned: Vec<OwnedObject>,
    /// Pods of all attempts that have not ended.
    pub remaining: Vec<PodState>,
    /// The last report of a coordinator whose run has ended well.
    pub end_report: Option<RunProgress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    pub kind: OwnedKind,
    pub name: String,
    /// Its attempt, where its label is a number.
    pub attempt: Option<i32>,
    /// Whether a Job has neither ended nor been suspended. Always true for other kinds.
    pub is_active: bool,
    pub is_deleting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedKind {
    Coordinator,
    Workers,
    Servers,
    Service,
}

impl OwnedKind {
    /// Whether workers need its pods for as long as they run.
    pub fn is_member(self) -> bool {
        matches!(self, Self::Coordinator | Self::Servers)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalScope {
    All,
    Others(i32),
    Only(i32),
}

impl RemovalScope {
    /// Whether an object of this attempt is removed. If its attempt cannot be read, it belongs to no attempt that is kept.
    pub fn includes(self, attempt: Option<i32>) -> bool {
        match self {
            Self::All => true,
            Self::Others(kept) => attempt != Some(kept),
            Self::Only(removed) => attempt == Some(removed),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerSet {
    /// Hash of its template, by the operator.
    pub template: Option<String>,
    /// Pods of this index and above are restarted.
    pub partition: i32,
    /// Whether its controller has seen its newest form.
    pub is_seen: bool,
    /// Revision of the template that pods should have, and whether all have it.
    pub revision: Option<String>,
    pub is_updating: bool,
    /// Size of the disk of each server. It never changes.
    pub disk: Option<Quantity>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobState {
    pub succeeded: i32,
    pub failed: i32,
    /// Whether the pod of number 0 ended well.
    pub first_is_done: bool,
    /// Whether it is suspended: its pods are gone, and none are made.
    pub is_suspended: bool,
    /// How it ended or is about to end; `None` while it runs.
    pub end: Option<JobEnd>,
    /// Whether it has an end while some of its pods run.
    pub is_ending: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum JobEnd {
    /// All its pods ended with 0.
    Complete { at: Timestamp },
    Failed {
        at: Timestamp,
        /// Kubernetes' word: `BackoffLimitExceeded`.
        reason: String,
        /// Kubernetes' message, after the reason.
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct PodState {
    pub name: String,
    /// Its attempt, where its label is a number.
    pub attempt: Option<i32>,
    pub role: PodRole,
    pub is_ready: bool,
    /// The last end of its container with another code than 0.
    pub exit: Option<PodExit>,
    /// Revision of the StatefulSet's template that it was made from.
    pub revision: Option<String>,
    /// When its container ended last, if that was with 0.
    pub done: Option<Timestamp>,
    pub trouble: Option<PodTrouble>,
    /// Since when its container is being created. A mount may be missing, which the kubelet does not report here.
    pub creating: Option<Timestamp>,
    /// The node with which it is lost, or from which it is removed.
    pub departure: Option<String>,
    /// When the kubelet kills it, if its deletion was requested.
    pub until: Option<Timestamp>,
    pub has_ended: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PodExit {
    pub code: i32,
    /// Kubernetes' word: `Error`, `OOMKilled`.
    pub reason: String,
    /// The end of its log.
    pub message: String,
    pub at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTrouble {
    /// Kubernetes' word: `ImagePullBackOff`, `Unschedulable`.
    pub reason: String,
    pub message: String,
}

impl ObservedObjects {
    pub fn new(attempt: i32, objects: &JobObjects) -> Self {
        let all: Vec<PodState> = objects.pods.iter().filter_map(|pod| PodState::from_pod(pod)).collect();
        let remaining = all.iter().filter(|pod| !pod.has_ended).cloned().collect();
        let pods: Vec<PodState> = all.into_iter().filter(|pod| pod.attempt == Some(attempt)).collect();
        let workers = objects.jobs.iter().find(|job| attempt_of(job.as_ref()) == Some(attempt));
        let set = |role: PodRole| {
            let mut sets = objects.sets.iter().filter(|set| attempt_of(set.as_ref()) == Some(attempt));
            sets.find(|set| role_of_set(set) == role)
        };
        let mut of_attempt = objects.pods.iter().filter(|pod| attempt_of(pod.as_ref()) == Some(attempt));
        Self {
            coordinator: set(PodRole::Coordinator).map(|_| coordinator(&pods)),
            workers: workers.map(|job| JobState::from_job(job)),
            servers: set(PodRole::Server).map(|set| ServerSet::from_set(set)),
            owned: owned(objects),
            remaining,
            end_report: of_attempt.find_map(end_report),
            pods,
        }
    }

    /// The worker that ended last with another code than 0. Workers that were replaced before `back` do not count.
    pub fn lost_worker(&self, back: Option<Timestamp>) -> Option<&PodState> {
        let workers = self.pods.iter().filter(|pod| pod.role == PodRole::Worker && pod.ended_after(back));
        workers.max_by_key(|pod| pod.exit.as_ref().and_then(|exit| exit.at))
    }

    /// The same without the workers that were replaced before `back`.
    #[must_use]
    pub fn without_replaced(mut self, back: Option<Timestamp>) -> Self {
        self.pods.retain(|pod| pod.role != PodRole::Worker || pod.exit.is_none() || pod.ended_after(back));
        self
    }

    /// The same without the servers and workers from these indices on. They leave the run, and how they end is of no consequence.
    #[must_use]
    pub fn without_members_from(mut self, server: i32, worker: i32) -> Self {
        let bound = |role: PodRole| match role {
            PodRole::Coordinator => i32::MAX,
            PodRole::Server => server,
            PodRole::Worker => worker,
        };
        self.pods.retain(|pod| pod.index().is_none_or(|index| index < bound(pod.role)));
        self
    }

    /// Counts the pods themselves, because the counts of their controllers may be older.
    pub fn ready_count(&self, role: PodRole) -> i32 {
        let ready = self.count_pods(|pod| pod.role == role && pod.is_ready);
        match (role, &self.coordinator) {
            (PodRole::Server, _) => ready,
            (PodRole::Worker, _) => ready + self.workers.as_ref().map_or(0, |job| job.succeeded),
            // Started again after the end of the run, it may be ready for a moment.
            (PodRole::Coordinator, Some(JobState { end: None, .. })) => ready,
            (PodRole::Coordinator, job) => job.as_ref().map_or(0, |job| job.succeeded),
        }
    }

    pub(crate) fn count_pods(&self, is_counted: impl Fn(&PodState) -> bool) -> i32 {
        i32::try_from(self.pods.iter().filter(|pod| is_counted(pod)).count()).unwrap_or(i32::MAX)
    }

    /// Pods of these attempts that have not ended. One that is there long after its deadline is on a node that does not report,
    /// and no removal waits for it.
    pub fn awaited_pods(&self, scope: RemovalScope, now: Timestamp) -> impl Iterator<Item = &PodState> {
        self.remaining.iter().filter(move |pod| scope.includes(pod.attempt) && !pod.is_overdue(LINGER, now))
    }

    pub fn awaited_worker(&self, scope: RemovalScope, now: Timestamp) -> Option<&PodState> {
        self.awaited_pods(scope, now).find(|pod| pod.role == PodRole::Worker)
    }

    /// Whether a worker must end before its servers may.
    pub fn has_workers(&self, scope: RemovalScope, now: Timestamp) -> bool {
        self.awaited_worker(scope, now).is_some() || self.has_active_workers(scope)
    }

    fn has_active_workers(&self, scope: RemovalScope) -> bool {
        let mut workers = self.owned.iter().filter(|one| one.kind == OwnedKind::Workers && scope.includes(one.attempt));
        workers.any(|job| job.is_active && !job.is_deleting)
    }

    /// Whether a worker's pod is being deleted while its Job is there and may make another in its place.
    pub fn has_leaving_workers(&self) -> bool {
        let is_leaving = |pod: &PodState| pod.role == PodRole::Worker && pod.until.is_some();
        self.pods.iter().any(is_leaving) && self.has_active_workers(RemovalScope::All)
    }
}

fn attempt_of<K: Resource>(object: &K) -> Option<i32> {
    object.labels().get(ATTEMPT_LABEL)?.parse().ok()
}

fn role_of_set(set: &StatefulSet) -> PodRole {
    if set.name_any().ends_with(COORDINATOR_SUFFIX) { PodRole::Coordinator } else { PodRole::Server }
}

/// The coordinator. Its container is started again whenever it ends, and ends with the same code once the run is over.
fn coordinator(pods: &[PodState]) -> JobState {
    let pod = pods.iter().find(|pod| pod.role == PodRole::Coordinator);
    let end = pod.and_then(PodState::verdict);
    let is_done = matches!(end, Some(JobEnd::Complete { .. }));
    JobState { succeeded: i32::from(is_done), end, ..JobState::default() }
}

fn owned(objects: &JobObjects) -> Vec<OwnedObject> {
    fn one<K: Resource>(object: &K, kind: OwnedKind, is_active: bool) -> Option<OwnedObject> {
        // Objects that all attempts share have no attempt label.
        object.labels().get(ATTEMPT_LABEL)?;
        let is_deleting = object.meta().deletion_timestamp.is_some();
        Some(OwnedObject { kind, name: object.name_any(), attempt: attempt_of(object), is_active, is_deleting })
    }
    let jobs = objects.jobs.iter().filter_map(|job| {
        let state = JobState::from_job(job);
        one(job.as_ref(), OwnedKind::Workers, state.end.is_none() && !state.is_suspended)
    });
    let sets = objects.sets.iter().filter_map(|set| {
        let is_coordinator = role_of_set(set) == PodRole::Coordinator;
        one(set.as_ref(), if is_coordinator { OwnedKind::Coordinator } else { OwnedKind::Servers }, true)
    });
    let services = objects.services.iter().filter_map(|service| one(service.as_ref(), OwnedKind::Service, true));
    jobs.chain(sets).chain(services).collect()
}

impl ServerSet {
    fn from_set(set: &StatefulSet) -> Self {
        let (spec, status) = (set.spec.clone().unwrap_or_default(), set.status.clone().unwrap_or_default());
        let partition = spec.update_strategy.and_then(|strategy| strategy.rolling_update?.partition);
        let claim = spec.volume_claim_templates.unwrap_or_default().into_iter().next();
        Self {
            template: set.annotations().get(TEMPLATE_ANNOTATION).cloned(),
            partition: partition.unwrap_or(0),
            is_seen: status.observed_generation >= set.metadata.generation,
            is_updating: status.current_revision != status.update_revision,
            revision: status.update_revision,
            disk: claim.and_then(|claim| claim.spec?.resources?.requests?.remove("storage")),
        }
    }
}

impl JobState {
    fn from_job(job: &Job) -> Self {
        let is_suspended = job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
        let Some(status) = &job.status else { return Self { is_suspended, ..Self::default() } };
        let condition = |type_: &str| {
            let conditions = status.conditions.iter().flatten();
            conditions.into_iter().find(|condition| condition.type_ == type_ && condition.status == "True")
        };
        let (complete, failed) = (condition("Complete"), condition("Failed"));
        let is_over = complete.is_some() || failed.is_some();
        // Kubernetes adds `Complete` and `Failed` only when no pod is left, which never happens on a lost node.
        let complete = complete.or_else(|| condition("SuccessCriteriaMet"));
        let failed = failed.or_else(|| condition("FailureTarget"));
        let end =
            complete.map(|complete| JobEnd::Complete { at: transition_time(complete) }).or_else(|| failed.map(failure));
        let count = |pods: Option<i32>| pods.unwrap_or(0);
        // `0,2-4`, in ascending order.
        let done = status.completed_indexes.as_deref().unwrap_or_default();
        Self {
            succeeded: count(status.succeeded),
            failed: count(status.failed),
            first_is_done: done.split([',', '-']).next() == Some("0"),
            is_suspended,
            is_ending: end.is_some() && !is_over,
            end,
        }
    }
}

fn transition_time(condition: &JobCondition) -> Timestamp {
    condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

fn failure(failed: &JobCondition) -> JobEnd {
    let parts = [failed.reason.as_deref(), failed.message.as_deref()];
    let message = parts.into_iter().flatten().collect::<Vec<_>>().join(": ");
    JobEnd::Failed { at: transition_time(failed), reason: failed.reason.clone().unwrap_or_default(), message }
}

impl PodState {
    /// 0 when the run is over, 4 when it has failed. With any other code the coordinator ended alone, and the next
    /// process continues the run.
    fn verdict(&self) -> Option<JobEnd> {
        let or_epoch = |at: Option<Timestamp>| at.unwrap_or(Timestamp::UNIX_EPOCH);
        let failed = |exit: &PodExit| JobEnd::Failed {
            at: or_epoch(exit.at),
            reason: "RunFailed".to_owned(),
            message: exit.message.clone(),
        };
        let exit = self.exit.as_ref().filter(|exit| is_verdict(self.role, exit)).map(failed);
        let done = self.done.filter(|_| self.role == PodRole::Coordinator);
        exit.or_else(|| done.map(|at| JobEnd::Complete { at }))
    }

    /// Whether the process after the one that ended badly does its work: that end is of no consequence.
    pub fn has_recovered(&self) -> bool {
        self.role != PodRole::Worker && self.is_ready && self.verdict().is_none()
    }

    /// Its number among the pods of its role. The name of a worker's pod ends with a part that is new for each pod.
    pub(crate) fn index(&self) -> Option<i32> {
        self.name.rsplit('-').nth(usize::from(self.role == PodRole::Worker))?.parse().ok()
    }

    /// Whether it should have gone so long ago.
    pub(crate) fn is_overdue(&self, by: SignedDuration, now: Timestamp) -> bool {
        self.until.and_then(|until| until.checked_add(by).ok()).is_some_and(|gone| gone <= now)
    }

    fn ended_after(&self, moment: Option<Timestamp>) -> bool {
        self.exit.as_ref().is_some_and(|exit| moment.is_none_or(|moment| exit.at.is_none_or(|at| at > moment)))
    }

    fn from_pod(pod: &Pod) -> Option<Self> {
        let role = PodRole::from_short_name(pod.labels().get(ROLE_LABEL)?)?;
        let status = pod.status.clone().unwrap_or_default();
        // By its name: other containers in the pod, such as a mesh's, end for reasons of their own.
        let container = status.container_statuses.iter().flatten().find(|one| one.name == role.short_name());
        let others = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
        let conditions = status.conditions.unwrap_or_default();
        let find = |type_: &str, status: &str| conditions.iter().find(|one| one.type_ == type_ && one.status == status);
        let is_ready = find("Ready", "True").is_some();
        let unscheduled = find("PodScheduled", "False").map(|condition| PodTrouble {
            reason: condition.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned()),
            message: condition.message.clone().unwrap_or_default(),
        });
        let placed = find("PodScheduled", "True")
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| "no node".to_owned());
        let is_lost = status.reason.as_deref() == Some("NodeLost") || status.phase.as_deref() == Some("Unknown");
        let trouble = container.and_then(stuck).or_else(|| others.clone().find_map(stuck_beside)).or(unscheduled);
        // Since the container was started again: how the process before it ended is of no consequence any more.
        let turned =
            conditions.iter().find(|one| one.type_ == "Ready").and_then(|one| one.last_transition_time.as_ref());
        let has_been_ready =
            turned.zip(container.and_then(started)).is_some_and(|(turned, started)| turned.0 > started);
        let is_deleting = is_lost || pod.metadata.deletion_timestamp.is_some();
        Some(Self {
            name: pod.name_any(),
            attempt: attempt_of(pod),
            role,
            // A pod whose container cannot be made, or that is being deleted, is not ready, whatever its conditions say.
            is_ready: is_ready && trouble.is_none() && !is_deleting,
            exit: container.and_then(exit).filter(|exit| is_verdict(role, exit) || !has_been_ready),
            revision: pod.labels().get("controller-revision-hash").cloned(),
            done: container.and_then(done),
            trouble,
            creating: container.filter(|container| is_creating(container)).and(placed),
            departure: is_deleting.then_some(node),
            until: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            has_ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        })
    }
}

fn stuck(container: &ContainerStatus) -> Option<PodTrouble> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    STUCK
        .contains(&reason.as_str())
        .then(|| PodTrouble { reason, message: waiting.message.clone().unwrap_or_default() })
}

/// A sidecar that does not start keeps the role's container from starting.
fn stuck_beside(container: &ContainerStatus) -> Option<PodTrouble> {
    let trouble = stuck(container)?;
    Some(PodTrouble { message: format!("container {}: {}", container.name, trouble.message), ..trouble })
}

fn is_creating(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("ContainerCreating"))
}

#[cfg(test)]
mod tests;
