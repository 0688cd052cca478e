//! Readiness of the pods, in numbers and in words. The workers of a run that goes on without a lost one, or waits for it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::Planner;
use super::verdict::end_of;
use crate::build::BuildStage;
use crate::crd::{HybridJobSpec, RoleCount, RoleCounts, RunPhase};
use crate::memory::elapsed_time;
use crate::names::PodRole;
use crate::observe::{JobState, ObservedObjects, OwnedKind, PodState};
use crate::validate::ValidJob;

/// How long the kubelet may take to create a container before a person should look.
const SLOW: Duration = Duration::from_secs(120);
/// The pods are not ready, and no fault is known.
const NOT_READY: &str = "PodsNotReady";
const MISSING: &str = "PodsMissing";
/// A server's process ended, and is started again.
pub(super) const SERVER_LOST: &str = "ServerLost";
/// The coordinator's process ended, and is started again.
pub(super) const COORDINATOR_LOST: &str = "CoordinatorLost";
pub(super) const JOB_SUSPENDED: &str = "JobSuspended";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodReadiness {
    pub(super) is_ready: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl PodReadiness {
    /// The readiness of a run whose workers wait for one that was lost and restarts.
    pub(super) fn waiting_for(self, loss: Option<&str>) -> Self {
        let Some(how) = loss.filter(|_| [NOT_READY, MISSING].contains(&self.reason.as_str())) else { return self };
        let message = format!("{}; {how}; it restarts", self.message);
        Self { reason: "WorkerLost".to_owned(), message, ..self }
    }
}

pub(super) fn role_counts(spec: &HybridJobSpec, observed: &ObservedObjects) -> RoleCounts {
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
pub(super) fn assess(spec: &HybridJobSpec, run: &ObservedObjects, stage: BuildStage, now: Timestamp) -> PodReadiness {
    let counts = PodRole::ALL.into_iter().map(|role| (role, run.ready_count(role), role.replicas(spec)));
    let missing = counts.filter(|(_, ready, desired)| ready < desired);
    let missing: Vec<String> = missing.map(|(role, ready, desired)| format!("{role} {ready}/{desired}")).collect();
    if missing.is_empty() {
        return PodReadiness { is_ready: true, reason: "Ready".to_owned(), message: "every role is ready".to_owned() };
    }
    let fault = suspended_job(run).or_else(|| trouble(run)).or_else(|| restarting(run));
    let fault = fault.or_else(|| slow(spec, run, now)).or_else(|| departing(run)).or_else(|| unmade(spec, run, stage));
    let (reason, how) = match fault {
        Some((reason, how)) => (reason, format!("; {how}")),
        None if stage == BuildStage::Everything => (NOT_READY, String::new()),
        None => (NOT_READY, "; workers start once coordinator and servers are ready".to_owned()),
    };
    PodReadiness { is_ready: false, reason: reason.to_owned(), message: format!("ready: {}{how}", missing.join(", ")) }
}

/// The reason of a condition, and the fault in words.
type PodFault<'a> = (&'a str, String);

fn suspended_job(run: &ObservedObjects) -> Option<PodFault<'_>> {
    run.workers.as_ref().filter(|job| job.is_suspended && job.end.is_none())?;
    let job = &run.owned.iter().find(|one| one.kind == OwnedKind::Workers && !one.is_active)?.name;
    let how = format!(
        "Job {job} is suspended, but not by the operator: `kubectl patch job {job} --type=merge -p \
         '{{\"spec\":{{\"suspend\":false}}}}'` lets it go on; `runPolicy.suspend` of the HybridJob makes a run wait"
    );
    Some((JOB_SUSPENDED, how))
}

fn trouble(run: &ObservedObjects) -> Option<PodFault<'_>> {
    let unready = run.pods.iter().filter(|pod| !pod.is_ready);
    let mut troubles = unready.filter_map(|pod| Some((pod, pod.trouble.as_ref()?)));
    let (pod, trouble) = troubles.next()?;
    let others = troubles.count();
    let more = if others > 0 { format!(", and {others} more") } else { String::new() };
    Some((&trouble.reason, format!("{}: {}: {}{more}", pod.name, trouble.reason, trouble.message)))
}

/// A coordinator or server that ended alone.
fn restarting(run: &ObservedObjects) -> Option<PodFault<'_>> {
    let is_waited_for = |pod: &&PodState| pod.role != PodRole::Worker && !pod.is_ready && pod.exit.is_some();
    let pod = run.pods.iter().find(is_waited_for)?;
    let reason = if pod.role == PodRole::Coordinator { COORDINATOR_LOST } else { SERVER_LOST };
    Some((reason, format!("{}; it starts again in its pod, and the run waits for it", end_of(pod))))
}

/// The kubelet reports a volume that cannot be mounted by Events only, and the operator has no right to read Events.
fn slow<'a>(spec: &HybridJobSpec, run: &'a ObservedObjects, now: Timestamp) -> Option<PodFault<'a>> {
    let is_slow = |pod: &&PodState| pod.creating.is_some_and(|since| elapsed_time(since, now) >= SLOW);
    let pod = &run.pods.iter().find(is_slow)?.name;
    let output = spec.output.iter().map(|output| format!("claim {}", output.claim_name));
    let volumes = spec.volumes.iter().filter_map(|volume| volume.source.object_name());
    let (mounted, minutes) = (output.chain(volumes).collect::<Vec<_>>().join(", "), SLOW.as_secs() / 60);
    let how = format!(
        "{pod}: its container is not created after {minutes} min: the image is still pulled, or a volume is missing: {mounted}; \
         `kubectl describe pod {pod}` says which"
    );
    Some(("ContainerCreating", how))
}

fn departing(run: &ObservedObjects) -> Option<PodFault<'_>> {
    let (pod, node) = run.pods.iter().find_map(|pod| Some((pod, pod.departure.as_ref()?)))?;
    Some(("PodLost", format!("{} is being removed from {node}, or is lost together with {node}", pod.name)))
}

/// A role of which Kubernetes has made too few pods.
fn unmade(spec: &HybridJobSpec, run: &ObservedObjects, stage: BuildStage) -> Option<PodFault<'static>> {
    let runs = |job: &Option<JobState>| job.as_ref().is_some_and(|job| job.end.is_none());
    let has_workers = stage == BuildStage::Everything && runs(&run.workers);
    let made = |role: PodRole| run.count_pods(|pod| pod.role == role);
    let (role, kind) = [
        (PodRole::Coordinator, runs(&run.coordinator), "statefulset"),
        (PodRole::Server, run.servers.is_some(), "statefulset"),
        (PodRole::Worker, has_workers, "job"),
    ]
    .into_iter()
    .find_map(|(role, exists, kind)| (exists && made(role) < role.replicas(spec)).then_some((role, kind)))?;
    let how = format!(
        "{} of {} pods of the {role} exist; if it stays so, `kubectl describe {kind}` says why (a quota, a policy)",
        made(role),
        role.replicas(spec)
    );
    Some((MISSING, how))
}

/// The workers of a run in which the others wait for a lost one.
#[derive(Debug)]
pub(super) enum WorkerFleet {
    Whole,
    Lost(String, Option<Timestamp>),
    /// A worker was lost before, and the others wait.
    Waiting(String),
    Back,
}

impl WorkerFleet {
    pub(super) fn loss(&self) -> Option<&str> {
        match self {
            Self::Whole | Self::Back => None,
            Self::Lost(how, _) | Self::Waiting(how) => Some(how),
        }
    }
}

impl Planner<'_> {
    pub(super) fn workers_back(&self) -> Option<Timestamp> {
        self.recorded.workers_back.as_ref().map(|time| time.0)
    }

    pub(super) fn worker_fleet(&self, is_ready: bool) -> WorkerFleet {
        if !self.workers_rejoin() {
            return WorkerFleet::Whole;
        }
        let ended = self.staying.lost_worker(self.workers_back());
        let end_time = ended.and_then(|pod| pod.exit.as_ref()?.at);
        let how = || ended.map_or_else(|| "a worker's pod was deleted or its node was lost".to_owned(), end_of);
        match self.recorded.workers_lost.as_ref().map(|time| time.0) {
            Some(_) if is_ready && self.every_worker_is_ready() => WorkerFleet::Back,
            Some(reported) if end_time > Some(reported) => WorkerFleet::Lost(how(), end_time),
            Some(_) => WorkerFleet::Waiting(how()),
            None if ended.is_some() || self.is_worker_gone() => WorkerFleet::Lost(how(), end_time),
            None => WorkerFleet::Whole,
        }
    }

    pub(super) fn record_fleet(&mut self, fleet: &WorkerFleet) {
        let now = self.seen.now;
        match fleet {
            WorkerFleet::Whole | WorkerFleet::Waiting(_) => {}
            WorkerFleet::Lost(_, ended) => {
                self.status.workers_lost = Some(Time(ended.map_or(now, |ended| ended.max(now))));
            }
            WorkerFleet::Back => {
                self.status.workers_lost = None;
                self.status.workers_back = Some(Time(now));
            }
        }
        self.status.worker_restarts = self.worker_restarts();
    }

    /// Whether the other workers wait for a lost one, which Kubernetes then restarts.
    pub(super) fn workers_rejoin(&self) -> bool {
        self.valid.as_ref().is_some_and(ValidJob::workers_rejoin)
    }

    /// It was deleted, or evicted, which its Job does not even count.
    fn is_worker_gone(&self) -> bool {
        let is_present = |pod: &PodState| pod.role == PodRole::Worker && pod.exit.is_none() && pod.departure.is_none();
        let is_missing = self.staying.count_pods(is_present) < self.numbers.joined_workers();
        let is_up = self.recorded.phase == Some(RunPhase::Running);
        is_up && (is_missing || self.worker_restarts() > self.recorded.worker_restarts)
    }

    /// Counts the pods themselves, because a Job counts a pod as ready for a moment after it has ended.
    fn every_worker_is_ready(&self) -> bool {
        self.staying.ready_count(PodRole::Worker) >= self.present.dense_workers.replicas
    }

    /// The last failure may be the end of the attempt, but then the operator does not use this number.
    fn worker_restarts(&self) -> i32 {
        let failed = self.seen.run.workers.as_ref().map_or(0, |workers| workers.failed);
        if self.workers_rejoin() { failed } else { 0 }
    }
}
