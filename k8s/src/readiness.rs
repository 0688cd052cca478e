//! Readiness of the pods, in numbers and in words.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::build::BuildStage;
use crate::crd::{HybridJobSpec, RoleCount, RoleCounts};
use crate::judge::{elapsed_time, end_of};
use crate::names::PodRole;
use crate::observe::{ObservedObjects, OwnedKind, PodState, count_pods};

/// How long the kubelet may take to create a container before a person should look.
const SLOW: Duration = Duration::from_secs(120);
/// The pods are not ready, and no fault is known.
const NOT_READY: &str = "PodsNotReady";
const MISSING: &str = "PodsMissing";
/// A server's process ended, and is started again.
pub const SERVER_LOST: &str = "ServerLost";
/// The coordinator's process ended, and is started again.
pub const COORDINATOR_LOST: &str = "CoordinatorLost";
pub const JOB_SUSPENDED: &str = "JobSuspended";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReadiness {
    pub is_ready: bool,
    pub reason: String,
    pub message: String,
}

impl PodReadiness {
    /// The readiness of a run whose workers wait for one that was lost and restarts.
    #[must_use]
    pub fn waiting_for(self, loss: Option<&str>) -> Self {
        let Some(how) = loss.filter(|_| [NOT_READY, MISSING].contains(&self.reason.as_str())) else { return self };
        let message = format!("{}; {how}; it restarts", self.message);
        Self { reason: "WorkerLost".to_owned(), message, ..self }
    }
}

#[must_use]
pub fn role_counts(spec: &HybridJobSpec, observed: &ObservedObjects) -> RoleCounts {
    let count = |role: PodRole| {
        let (desired, ready) = (role.replicas(spec), observed.ready_count(role));
        RoleCount { desired, ready, summary: format!("{ready}/{desired}") }
    };
    RoleCounts {
        coordinator: count(PodRole::Coordinator),
        embedding_servers: count(PodRole::Server),
        dense_workers: count(PodRole::Worker),
    }
}

/// What keeps the run from being ready. A pod in trouble is named before one that is slow.
#[must_use]
pub fn assess(spec: &HybridJobSpec, observed: &ObservedObjects, stage: BuildStage, now: Timestamp) -> PodReadiness {
    let missing: Vec<String> = PodRole::ALL
        .into_iter()
        .map(|role| (role, observed.ready_count(role), role.replicas(spec)))
        .filter(|(_, ready, desired)| ready < desired)
        .map(|(role, ready, desired)| format!("{role} {ready}/{desired}"))
        .collect();
    if missing.is_empty() {
        return PodReadiness { is_ready: true, reason: "Ready".to_owned(), message: "every role is ready".to_owned() };
    }
    let waiting = format!("ready: {}", missing.join(", "));
    let unready = |reason: &str, message: String| PodReadiness { is_ready: false, reason: reason.to_owned(), message };
    if let Some(job) = suspended_job(observed) {
        let message = format!(
            "{waiting}; Job {job} is suspended, but not by the operator: `kubectl patch job {job} --type=merge -p \
             '{{\"spec\":{{\"suspend\":false}}}}'` lets it go on; `runPolicy.suspend` of the HybridJob makes a run wait"
        );
        return unready(JOB_SUSPENDED, message);
    }
    let mut troubles =
        observed.pods.iter().filter(|pod| !pod.is_ready).filter_map(|pod| Some((pod, pod.trouble.as_ref()?)));
    if let Some((pod, trouble)) = troubles.next() {
        let others = troubles.count();
        let more = if others > 0 { format!(", and {others} more") } else { String::new() };
        let message = format!("{waiting}; {}: {}: {}{more}", pod.name, trouble.reason, trouble.message);
        return unready(&trouble.reason, message);
    }
    if let Some((reason, how)) = restarting(observed) {
        return unready(reason, format!("{waiting}; {how}"));
    }
    let is_slow = |pod: &&PodState| pod.creating.is_some_and(|since| elapsed_time(since, now) >= SLOW);
    if let Some(pod) = observed.pods.iter().find(is_slow) {
        return unready("ContainerCreating", format!("{waiting}; {}: {}", pod.name, slow(spec, &pod.name)));
    }
    if let Some((pod, node)) = observed.pods.iter().find_map(|pod| Some((pod, pod.departure.as_ref()?))) {
        let message = format!("{waiting}; {} is being removed from {node}, or is lost together with {node}", pod.name);
        return unready("PodLost", message);
    }
    if let Some(message) = unmade(spec, observed, stage) {
        return unready(MISSING, format!("{waiting}; {message}"));
    }
    let later =
        if stage == BuildStage::Servers { "; workers start once coordinator and servers are ready" } else { "" };
    unready(NOT_READY, format!("{waiting}{later}"))
}

fn suspended_job(observed: &ObservedObjects) -> Option<&str> {
    observed.workers.as_ref().filter(|job| job.is_suspended && job.end.is_none())?;
    let job = observed.owned.iter().find(|one| one.kind == OwnedKind::Workers && !one.is_active);
    job.map(|one| one.name.as_str())
}

/// A coordinator or server that ended alone: what the run waits for, as a reason and in words.
fn restarting(observed: &ObservedObjects) -> Option<(&'static str, String)> {
    let is_waited_for = |pod: &&PodState| pod.role != PodRole::Worker && !pod.is_ready && pod.exit.is_some();
    let pod = observed.pods.iter().find(is_waited_for)?;
    let reason = if pod.role == PodRole::Coordinator { COORDINATOR_LOST } else { SERVER_LOST };
    Some((reason, format!("{}; it starts again in its pod, and the run waits for it", end_of(pod))))
}

/// The kubelet reports a volume that cannot be mounted by Events only, and the operator has no right to read Events.
fn slow(spec: &HybridJobSpec, pod: &str) -> String {
    let output = spec.output.iter().map(|output| format!("claim {}", output.claim_name));
    let volumes = spec.volumes.iter().filter_map(|volume| volume.source.object_name());
    let mounted: Vec<String> = output.chain(volumes).collect();
    format!(
        "its container is not created after {} min: the image is still pulled, or a volume is missing: {}; `kubectl describe pod {pod}` says which",
        SLOW.as_secs() / 60,
        mounted.join(", ")
    )
}

/// A role of which Kubernetes has made too few pods.
fn unmade(spec: &HybridJobSpec, observed: &ObservedObjects, stage: BuildStage) -> Option<String> {
    let owners = [
        (PodRole::Coordinator, observed.coordinator.as_ref().is_some_and(|job| job.end.is_none()), "statefulset"),
        (PodRole::Server, observed.servers.is_some(), "statefulset"),
        (
            PodRole::Worker,
            stage == BuildStage::Everything && observed.workers.as_ref().is_some_and(|job| job.end.is_none()),
            "job",
        ),
    ];
    let (role, made, kind) = owners.into_iter().filter(|(_, exists, _)| *exists).find_map(|(role, _, kind)| {
        let made = count_pods(&observed.pods, |pod| pod.role == role);
        (made < role.replicas(spec)).then_some((role, made, kind))
    })?;
    let wanted = role.replicas(spec);
    Some(format!(
        "{made} of {wanted} pods of the {role} exist; if it stays so, `kubectl describe {kind}` says why (a quota, a policy)"
    ))
}
