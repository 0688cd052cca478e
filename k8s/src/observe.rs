//! What there is, as values: from Kubernetes' objects to the few facts that decisions are made on.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

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
pub struct Observed {
    /// The coordinator's Job.
    pub coordinator: Option<JobState>,
    /// The workers' Job.
    pub workers: Option<JobState>,
    /// Ready servers of those there are to be, if the StatefulSet exists.
    pub servers: Option<i32>,
    /// Pods of the attempt.
    pub pods: Vec<PodState>,
    /// Workers of other attempts that have not ended.
    pub lingering: Vec<Lingering>,
    /// Whether objects of other attempts are left.
    pub has_leftovers: bool,
    /// Whether anything of any attempt exists.
    pub has_any: bool,
}

/// A worker of another attempt, which may still have the run folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lingering {
    /// Name of its pod.
    pub name: String,
    /// When the kubelet kills it, once it was told to go.
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
    /// How it ended, if it has.
    pub end: Option<JobEnd>,
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
    pub trouble: Option<Trouble>,
    /// Since when its container is being made: what it mounts may be missing, of which the kubelet tells nothing here.
    pub creating: Option<Timestamp>,
    /// The node that it is lost with, or being removed from.
    pub leaving: Option<String>,
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
pub struct Trouble {
    /// Kubernetes' word: `ImagePullBackOff`, `Unschedulable`.
    pub reason: String,
    /// In Kubernetes' words.
    pub message: String,
}

impl Observed {
    /// Sorts what was listed by the job's label.
    #[must_use]
    pub fn new(attempt: i32, jobs: &[Job], sets: &[StatefulSet], pods: &[Pod]) -> Self {
        let current = |labels: &std::collections::BTreeMap<String, String>| {
            labels.get(ATTEMPT_LABEL).is_some_and(|label| *label == attempt.to_string())
        };
        let job = |role: Role| {
            let of_role = |job: &&Job| current(job.labels()) && job.name_any().ends_with(&format!("-{}", role.word()));
            jobs.iter().find(of_role).map(JobState::of)
        };
        let all = || jobs.iter().map(ResourceExt::labels).chain(sets.iter().map(ResourceExt::labels));
        Self {
            coordinator: job(Role::Coordinator),
            workers: job(Role::Worker),
            servers: sets.iter().find(|set| current(set.labels())).map(ready_replicas),
            pods: pods.iter().filter(|pod| current(pod.labels())).filter_map(PodState::of).collect(),
            lingering: pods.iter().filter(|pod| !current(pod.labels())).filter_map(Lingering::of).collect(),
            has_leftovers: all().any(|labels| !current(labels)),
            has_any: all().next().is_some(),
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

fn ready_replicas(set: &StatefulSet) -> i32 {
    set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
}

impl JobState {
    fn of(job: &Job) -> Self {
        let Some(status) = &job.status else { return Self::default() };
        let condition = |type_: &str| {
            let conditions = status.conditions.iter().flatten();
            conditions.into_iter().find(|condition| condition.type_ == type_ && condition.status == "True")
        };
        let at = |condition: &JobCondition| {
            condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
        };
        let complete = condition("Complete").map(|complete| JobEnd::Complete { at: at(complete) });
        let end = complete.or_else(|| {
            let failed = condition("Failed")?;
            let parts = [failed.reason.as_deref(), failed.message.as_deref()];
            let message = parts.into_iter().flatten().collect::<Vec<_>>().join(": ");
            Some(JobEnd::Failed { at: at(failed), reason: failed.reason.clone().unwrap_or_default(), message })
        });
        let count = |pods: Option<i32>| pods.unwrap_or(0);
        // `0,2-4`, in ascending order.
        let done = status.completed_indexes.as_deref().unwrap_or_default();
        Self {
            ready: count(status.ready),
            succeeded: count(status.succeeded),
            failed: count(status.failed),
            first_is_done: done.split([',', '-']).next() == Some("0"),
            end,
        }
    }
}

impl Lingering {
    fn of(pod: &Pod) -> Option<Self> {
        let is_worker = pod.labels().get(ROLE_LABEL).and_then(|word| Role::from_word(word)) == Some(Role::Worker);
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        let until = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        (is_worker && !has_ended).then(|| Self { name: pod.name_any(), until })
    }
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
        let unscheduled = unschedulable.map(|condition| Trouble {
            reason: condition.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned()),
            message: condition.message.clone().unwrap_or_default(),
        });
        let scheduled = conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "True");
        let placed = scheduled.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| "no node".to_owned());
        let is_lost = status.reason.as_deref() == Some("NodeLost") || status.phase.as_deref() == Some("Unknown");
        Some(Self {
            name: pod.name_any(),
            role,
            is_ready,
            exit: container.and_then(exit),
            trouble: container.and_then(stuck).or_else(|| others.clone().find_map(stuck_beside)).or(unscheduled),
            creating: container.filter(|container| is_creating(container)).and(placed),
            leaving: (is_lost || pod.metadata.deletion_timestamp.is_some()).then_some(node),
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

fn stuck(container: &ContainerStatus) -> Option<Trouble> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    STUCK.contains(&reason.as_str()).then(|| Trouble { reason, message: waiting.message.clone().unwrap_or_default() })
}

/// A sidecar that does not start keeps the role's container from being started.
fn stuck_beside(container: &ContainerStatus) -> Option<Trouble> {
    let trouble = stuck(container)?;
    Some(Trouble { message: format!("container {}: {}", container.name, trouble.message), ..trouble })
}

fn is_creating(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("ContainerCreating"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> PodState {
        let labels = json!({"zagros.dev/job": "ctr", "zagros.dev/attempt": "1", "zagros.dev/role": "worker"});
        let metadata = json!({"name": "ctr-1-worker-0-abcde", "labels": labels});
        let object = json!({"metadata": metadata, "spec": {"containers": [], "nodeName": "n7"}, "status": status});
        let pods = [serde_json::from_value(object).unwrap()];
        Observed::new(1, &[], &[], &pods).pods.remove(0)
    }

    fn container(state: Value, last: Value) -> Value {
        let (image, none) = ("zagros:1", "");
        json!({"containerStatuses": [{
            "name": "worker", "image": image, "imageID": none, "ready": false, "restartCount": 0,
            "state": state, "lastState": last,
        }]})
    }

    #[test]
    fn an_end_is_a_code_and_the_last_line_of_the_log() {
        let ended = json!({"terminated": {
            "exitCode": 3, "reason": "Error", "message": "a\n  no such file /data/train.txt\n\n", "finishedAt": "2026-01-01T00:00:00Z",
        }});
        let exit = pod(container(ended, json!({}))).exit.unwrap();
        assert_eq!((exit.code, exit.message.as_str()), (3, "no such file /data/train.txt"));
        assert_eq!(exit.at, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        let good = json!({"terminated": {"exitCode": 0}});
        assert_eq!(pod(container(good, json!({}))).exit, None);
        let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let restarted = pod(container(json!({"running": {}}), killed));
        assert_eq!(restarted.exit.unwrap().reason, "OOMKilled");
    }

    #[test]
    fn what_keeps_a_pod_from_starting_is_told_in_the_kubelets_words() {
        let waiting =
            |reason: &str| container(json!({"waiting": {"reason": reason, "message": "no such image"}}), json!({}));
        let trouble = pod(waiting("ImagePullBackOff")).trouble.unwrap();
        assert_eq!((trouble.reason.as_str(), trouble.message.as_str()), ("ImagePullBackOff", "no such image"));
        assert_eq!(pod(waiting("ContainerCreating")).trouble, None);
        let unscheduled = json!({"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "persistentvolumeclaim \"criteo\" not found",
        }]});
        assert!(pod(unscheduled).trouble.unwrap().message.contains("criteo"));
    }

    /// Sidecars that a mesh puts into a pod are listed too, first or last, and end for reasons of their own.
    #[test]
    fn an_end_is_that_of_the_roles_container() {
        let beside = |name: &str, code: i32| {
            let ended = json!({"terminated": {"exitCode": code, "reason": "Error"}});
            let mut of = container(ended, json!({}))["containerStatuses"][0].clone();
            of["name"] = json!(name);
            of
        };
        for (order, code) in [
            (vec![beside("istio-proxy", 2), beside("worker", 137)], Some(137)),
            (vec![beside("worker", 137), beside("istio-proxy", 2)], Some(137)),
            (vec![beside("istio-proxy", 2), beside("worker", 0)], None),
            (vec![beside("istio-proxy", 2)], None),
        ] {
            let exit = pod(json!({"containerStatuses": order})).exit;
            assert_eq!(exit.map(|exit| exit.code), code);
        }
    }

    #[test]
    fn a_sidecar_that_does_not_start_is_named() {
        let mut waiting =
            container(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}), json!({}));
        waiting["containerStatuses"][0]["name"] = json!("shipper");
        let of_worker = container(json!({"waiting": {"reason": "PodInitializing"}}), json!({}));
        let status = json!({
            "initContainerStatuses": waiting["containerStatuses"], "containerStatuses": of_worker["containerStatuses"],
        });
        let trouble = pod(status).trouble.unwrap();
        assert_eq!(
            (trouble.reason.as_str(), trouble.message.as_str()),
            ("ErrImagePull", "container shipper: no such image")
        );
    }

    #[test]
    fn a_pod_of_a_lost_node_is_leaving() {
        assert_eq!(pod(json!({"reason": "NodeLost"})).leaving, Some("n7".to_owned()));
        assert_eq!(pod(json!({"phase": "Running"})).leaving, None);
    }

    #[test]
    fn jobs_and_sets_are_those_of_the_attempt() {
        let job = |attempt: &str, role: &str, conditions: Value| -> Job {
            let metadata = json!({"name": format!("ctr-{attempt}-{role}"), "labels": {"zagros.dev/attempt": attempt}});
            let done = if attempt == "2" { "0,2-4" } else { "1-3" };
            let status = json!({"ready": 1, "succeeded": 1, "completedIndexes": done, "conditions": conditions});
            serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
        };
        let failed = json!([{
            "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let jobs = [job("1", "worker", json!([])), job("2", "worker", failed), job("2", "coordinator", json!([]))];
        let seen = Observed::new(2, &jobs, &[], &[]);
        assert!(seen.has_leftovers && seen.has_any);
        assert_eq!(seen.ready(Role::Worker), 2);
        assert!(seen.workers.as_ref().unwrap().first_is_done);
        assert!(!Observed::new(1, &jobs, &[], &[]).workers.unwrap().first_is_done);
        assert_eq!(seen.coordinator.as_ref().and_then(|job| job.end.clone()), None);
        let Some(JobEnd::Failed { message, .. }) = seen.workers.and_then(|job| job.end) else { panic!("failed") };
        assert_eq!(message, "BackoffLimitExceeded: too often");
        assert!(!Observed::new(2, &jobs[1..], &[], &[]).has_leftovers);
        assert_eq!(Observed::new(2, &[], &[], &[]), Observed::default());
    }
}
