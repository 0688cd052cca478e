//! What there is, as values: from Kubernetes' objects to the few facts that decisions are made on.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};

use crate::cache::Objects;
use crate::names::{ATTEMPT_LABEL, ROLE_LABEL, Role};

/// Reasons of the kubelet for a container that does not start, each of which needs a person.
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

/// All that there is of a job, seen at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedObjects {
    /// The coordinator's Job.
    pub coordinator: Option<JobState>,
    /// The workers' Job.
    pub workers: Option<JobState>,
    /// Ready servers of those there are to be, if the StatefulSet exists.
    pub servers: Option<i32>,
    /// Pods of the attempt.
    pub pods: Vec<PodState>,
    /// Objects of all attempts that make pods, or that pods are found by.
    pub owned: Vec<OwnedObject>,
    /// Pods of all attempts that have not ended.
    pub remaining: Vec<Remaining>,
}

/// An object of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    /// What it is.
    pub kind: OwnedKind,
    /// Its name.
    pub name: String,
    /// Its attempt, where its label is a number.
    pub attempt: Option<i32>,
    /// A Job that has not ended and is not suspended; of other kinds always.
    pub is_active: bool,
    /// Whether it was reported to go.
    pub is_deleting: bool,
}

/// What an object of an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedKind {
    /// The coordinator's Job.
    Coordinator,
    /// The workers' Job.
    Workers,
    /// The servers' StatefulSet.
    Servers,
    /// A Service.
    Service,
}

impl OwnedKind {
    /// Whether workers need its pods as long as they run.
    #[must_use]
    pub fn is_member(self) -> bool {
        matches!(self, Self::Coordinator | Self::Servers)
    }
}

/// A pod that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Its name.
    pub name: String,
    /// Its attempt, where its label is a number.
    pub attempt: Option<i32>,
    /// What it is.
    pub role: Role,
    /// When the kubelet kills it, once it was reported to go.
    pub until: Option<Timestamp>,
}

/// A Job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobState {
    /// Pods that are ready.
    pub ready: i32,
    /// Pods that ended well.
    pub succeeded: i32,
    /// Pods that failed or were lost.
    pub failed: i32,
    /// Whether the pod of number 0 ended well.
    pub first_is_done: bool,
    /// Whether somebody suspended it: its pods are gone, and none are made.
    pub is_suspended: bool,
    /// How it ended, or is about to end, if it has.
    pub end: Option<JobEnd>,
    /// Whether it has an end but pods of it have not ended yet.
    pub is_ending: bool,
}

/// How a Job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum JobEnd {
    /// All its pods ended with 0.
    Complete {
        /// When.
        at: Timestamp,
    },
    /// A pod failed or was lost.
    Failed {
        /// When.
        at: Timestamp,
        /// Kubernetes' word: `BackoffLimitExceeded`.
        reason: String,
        /// In Kubernetes' words, the reason with it.
        message: String,
    },
}

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodState {
    /// Name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Whether it is ready.
    pub is_ready: bool,
    /// How its container ended last, with anything but 0.
    pub exit: Option<PodExit>,
    /// What keeps it from starting.
    pub trouble: Option<PodTrouble>,
    /// Since when its container is being made: what it mounts may be missing, of which the kubelet tells nothing here.
    pub creating: Option<Timestamp>,
    /// The node that it is lost with, or being removed from.
    pub departure: Option<String>,
    /// When the kubelet kills it, once it was reported to go.
    pub until: Option<Timestamp>,
    /// Whether it has ended, well or badly.
    pub has_ended: bool,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PodExit {
    /// Its code.
    pub code: i32,
    /// Kubernetes' word: `Error`, `OOMKilled`.
    pub reason: String,
    /// The end of its log.
    pub message: String,
    /// When.
    pub at: Option<Timestamp>,
}

/// What keeps a pod from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTrouble {
    /// Kubernetes' word: `ImagePullBackOff`, `Unschedulable`.
    pub reason: String,
    /// In Kubernetes' words.
    pub message: String,
}

impl ObservedObjects {
    /// Sorts what there is of a job.
    #[must_use]
    pub fn new(attempt: i32, objects: &Objects) -> Self {
        let pods: Vec<PodState> = (objects.pods.iter())
            .filter(|pod| attempt_of(pod.as_ref()) == Some(attempt))
            .filter_map(|pod| PodState::of(pod))
            .collect();
        // By the pods themselves: what their controllers count may be older.
        let ready = |role: Role| {
            let ready = pods.iter().filter(|pod| pod.role == role && pod.is_ready).count();
            i32::try_from(ready).unwrap_or(i32::MAX)
        };
        let job = |role: Role| {
            let of_role = |job: &&Arc<Job>| attempt_of(job.as_ref()) == Some(attempt) && role_of_job(job) == Some(role);
            let found = objects.jobs.iter().find(of_role);
            found.map(|job| JobState { ready: ready(role), ..JobState::of(job) })
        };
        let has_servers = objects.sets.iter().any(|set| attempt_of(set.as_ref()) == Some(attempt));
        Self {
            coordinator: job(Role::Coordinator),
            workers: job(Role::Worker),
            servers: has_servers.then(|| ready(Role::Server)),
            owned: owned(objects),
            remaining: objects.pods.iter().filter_map(|pod| Remaining::of(pod)).collect(),
            pods,
        }
    }

    /// The worker that ended last with anything but 0, of those that were not replaced yet when all were there again.
    #[must_use]
    pub fn lost_worker(&self, back: Option<Timestamp>) -> Option<&PodState> {
        let workers = self.pods.iter().filter(|pod| pod.role == Role::Worker && pod.ended_after(back));
        workers.max_by_key(|pod| pod.exit.as_ref().and_then(|exit| exit.at))
    }

    /// The same without workers that were replaced.
    #[must_use]
    pub fn without_replaced(&self, back: Option<Timestamp>) -> Self {
        let mut observed = self.clone();
        let is_replaced = |pod: &PodState| pod.role == Role::Worker && pod.exit.is_some() && !pod.ended_after(back);
        observed.pods.retain(|pod| !is_replaced(pod));
        observed
    }

    /// Pods of a role that are ready or ended well.
    #[must_use]
    pub fn ready(&self, role: Role) -> i32 {
        let of_job = |job: &Option<JobState>| job.as_ref().map_or(0, |job| job.ready + job.succeeded);
        match role {
            Role::Coordinator => of_job(&self.coordinator),
            Role::Server => self.servers.unwrap_or(0),
            Role::Worker => of_job(&self.workers),
        }
    }
}

fn attempt_of<K: Resource>(object: &K) -> Option<i32> {
    object.labels().get(ATTEMPT_LABEL)?.parse().ok()
}

/// By its name: the objects of all roles have the same labels.
fn role_of_job(job: &Job) -> Option<Role> {
    let name = job.name_any();
    [Role::Coordinator, Role::Worker].into_iter().find(|role| name.ends_with(&format!("-{}", role.word())))
}

fn owned(objects: &Objects) -> Vec<OwnedObject> {
    fn one<K: Resource>(object: &K, kind: OwnedKind, is_active: bool) -> OwnedObject {
        let is_deleting = object.meta().deletion_timestamp.is_some();
        OwnedObject { kind, name: object.name_any(), attempt: attempt_of(object), is_active, is_deleting }
    }
    // What all attempts share has no label of an attempt.
    fn is_of_an_attempt<K: Resource>(object: &K) -> bool {
        object.labels().contains_key(ATTEMPT_LABEL)
    }
    let jobs = objects.jobs.iter().filter(|job| is_of_an_attempt(job.as_ref())).filter_map(|job| {
        let kind = if role_of_job(job)? == Role::Worker { OwnedKind::Workers } else { OwnedKind::Coordinator };
        let state = JobState::of(job);
        Some(one(job.as_ref(), kind, state.end.is_none() && !state.is_suspended))
    });
    let sets = objects.sets.iter().filter(|set| is_of_an_attempt(set.as_ref()));
    let services = objects.services.iter().filter(|service| is_of_an_attempt(service.as_ref()));
    jobs.chain(sets.map(|set| one(set.as_ref(), OwnedKind::Servers, true)))
        .chain(services.map(|service| one(service.as_ref(), OwnedKind::Service, true)))
        .collect()
}

impl JobState {
    fn of(job: &Job) -> Self {
        let is_suspended = job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
        let Some(status) = &job.status else { return Self { is_suspended, ..Self::default() } };
        let condition = |type_: &str| {
            let conditions = status.conditions.iter().flatten();
            conditions.into_iter().find(|condition| condition.type_ == type_ && condition.status == "True")
        };
        let (complete, failed) = (condition("Complete"), condition("Failed"));
        let is_over = complete.is_some() || failed.is_some();
        // Kubernetes adds the other two only when no pod is left, which on a lost node is never.
        let complete = complete.or_else(|| condition("SuccessCriteriaMet"));
        let failed = failed.or_else(|| condition("FailureTarget"));
        let end = complete.map(|complete| JobEnd::Complete { at: at(complete) }).or_else(|| failed.map(failure));
        let count = |pods: Option<i32>| pods.unwrap_or(0);
        // `0,2-4`, in ascending order.
        let done = status.completed_indexes.as_deref().unwrap_or_default();
        Self {
            ready: 0,
            succeeded: count(status.succeeded),
            failed: count(status.failed),
            first_is_done: done.split([',', '-']).next() == Some("0"),
            is_suspended,
            is_ending: end.is_some() && !is_over,
            end,
        }
    }
}

fn at(condition: &JobCondition) -> Timestamp {
    condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

fn failure(failed: &JobCondition) -> JobEnd {
    let parts = [failed.reason.as_deref(), failed.message.as_deref()];
    let message = parts.into_iter().flatten().collect::<Vec<_>>().join(": ");
    JobEnd::Failed { at: at(failed), reason: failed.reason.clone().unwrap_or_default(), message }
}

impl Remaining {
    fn of(pod: &Pod) -> Option<Self> {
        let role = Role::from_word(pod.labels().get(ROLE_LABEL)?)?;
        let until = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        (!has_ended(pod)).then(|| Self { name: pod.name_any(), attempt: attempt_of(pod), role, until })
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

impl PodState {
    fn ended_after(&self, moment: Option<Timestamp>) -> bool {
        self.exit.as_ref().is_some_and(|exit| moment.is_none_or(|moment| exit.at.is_none_or(|at| at > moment)))
    }

    fn of(pod: &Pod) -> Option<Self> {
        let role = Role::from_word(pod.labels().get(ROLE_LABEL)?)?;
        let status = pod.status.clone().unwrap_or_default();
        // By its name: others in the pod, such as those that a mesh puts there, end for reasons of their own.
        let container = status.container_statuses.iter().flatten().find(|one| one.name == role.word());
        let others = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
        let conditions = status.conditions.unwrap_or_default();
        let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let unschedulable = conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False");
        let unscheduled = unschedulable.map(|condition| PodTrouble {
            reason: condition.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned()),
            message: condition.message.clone().unwrap_or_default(),
        });
        let scheduled = conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "True");
        let placed = scheduled.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| "no node".to_owned());
        let is_lost = status.reason.as_deref() == Some("NodeLost") || status.phase.as_deref() == Some("Unknown");
        let trouble = container.and_then(stuck).or_else(|| others.clone().find_map(stuck_beside)).or(unscheduled);
        let is_deleting = is_lost || pod.metadata.deletion_timestamp.is_some();
        Some(Self {
            name: pod.name_any(),
            role,
            // A pod whose container cannot be made, or that goes, is not ready, whatever else is said of it.
            is_ready: is_ready && trouble.is_none() && !is_deleting,
            exit: container.and_then(exit),
            trouble,
            creating: container.filter(|container| is_creating(container)).and(placed),
            departure: is_deleting.then_some(node),
            until: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            has_ended: has_ended(pod),
        })
    }
}

/// The present end of the container, or that before its restart.
fn exit(container: &ContainerStatus) -> Option<PodExit> {
    let terminated = |state: &Option<ContainerState>| state.as_ref().and_then(|state| state.terminated.clone());
    let ended: ContainerStateTerminated = terminated(&container.state).or_else(|| terminated(&container.last_state))?;
    (ended.exit_code != 0).then(|| PodExit {
        code: ended.exit_code,
        reason: ended.reason.unwrap_or_default(),
        message: last_line(&ended.message.unwrap_or_default()),
        at: ended.finished_at.map(|time| time.0),
    })
}

/// A log's end may be long; a status is read in a terminal.
fn last_line(text: &str) -> String {
    const MOST: usize = 400;
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    line.chars().take(MOST).collect()
}

fn stuck(container: &ContainerStatus) -> Option<PodTrouble> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    STUCK
        .contains(&reason.as_str())
        .then(|| PodTrouble { reason, message: waiting.message.clone().unwrap_or_default() })
}

/// A sidecar that does not start keeps the role's container from being started.
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
