//! Plans, by value.

use super::*;
use crate::build::ObjectManifest;
use crate::crd::ConditionStatus;
use crate::fixture::{JOB_TEXT, hybrid_job, owned, pod, timestamp};
use crate::observe::{JobEnd, JobState, OwnedKind, PodExit, PodState, ServerSet};
use crate::step::ObjectDeletion;
use crate::validate::{JobText, validate_job};

/// A job whose status goes from plan to plan, as in the operator. Its mode is `sync`, and its servers have no log.
struct PlanCase {
    job: HybridJob,
    run: ObservedObjects,
    report: Option<RunProgress>,
    now: i64,
}

impl PlanCase {
    fn new() -> Self {
        let mut job = hybrid_job();
        let text = format!("{JOB_TEXT}mode = \"sync\"\n[cluster]\ndurability = \"checkpoint\"\n");
        job.spec.job.inline = Some(text);
        Self { job, run: ObservedObjects::default(), report: None, now: 1_000 }
    }

    /// In mode `hybrid`, with a log.
    fn hybrid() -> Self {
        let mut case = Self::new();
        case.job.spec.job.inline = Some(JOB_TEXT.to_owned());
        case
    }

    fn running(mut self) -> Self {
        assert!(waited(&self.plan()).is_none(), "an attempt is recorded first");
        self.run = run(3, 2);
        self.plan();
        assert_eq!(self.status().phase, Some(RunPhase::Running));
        self
    }

    /// The status as the plan leaves it.
    fn plan(&mut self) -> Vec<PlanStep> {
        let (attempt, text) = (RunAttempt::recorded(&self.job), self.job.spec.job.inline.clone().unwrap());
        // The attempt keeps the numbers with which it started.
        let mut started = self.job.clone();
        (started.spec.embedding_servers.replicas, started.spec.dense_workers.replicas) = (3, 2);
        let first = validate_job(&started, &JobText::OfSpec(text), &attempt).unwrap();
        let valid = validate_job(&self.job, &JobText::OfAttempt(first.rendered), &attempt);
        let seen = ObservedJob {
            valid,
            run: self.run.clone(),
            objects: JobObjects::default(),
            report: self.report.clone(),
            next_ask: GLANCE,
            scale_refusal: None,
            requests: KnownRequests::default(),
            is_namespace_deleted: false,
            now: timestamp(self.now),
        };
        let steps = plan_steps(&self.job, &seen);
        for step in &steps {
            if let PlanStep::SetStatus(status) = step {
                self.job.status = Some((**status).clone());
            }
        }
        steps
    }

    fn status(&self) -> HybridJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    /// The coordinator's Job fails, because a pod ended with this code.
    fn fails(&mut self, code: i32) -> Vec<PlanStep> {
        let failed = JobEnd::Failed {
            at: timestamp(self.now),
            reason: String::new(),
            message: "BackoffLimitExceeded".to_owned(),
        };
        let ended = || Some(JobState { end: Some(failed.clone()), ..JobState::default() });
        let pods = vec![exited("ctr-1-worker-0-x", code, self.now)];
        self.run = ObservedObjects { coordinator: ended(), workers: ended(), pods, ..ObservedObjects::default() };
        self.plan()
    }

    fn condition(&self, type_: &str) -> (bool, String) {
        let found = self.status().condition(type_).cloned().unwrap();
        (found.status == ConditionStatus::True, found.reason)
    }
}

/// The objects of an attempt with so many servers and workers, all ready.
fn run(servers: i32, workers: i32) -> ObservedObjects {
    let ready = |name: String, role: PodRole| PodState { is_ready: true, ..pod(&name, role) };
    let coordinator = ready("ctr-1-coord-0".to_owned(), PodRole::Coordinator);
    let servers = (0..servers).map(|index| ready(format!("ctr-1-server-{index}"), PodRole::Server));
    let workers = (0..workers).map(|index| ready(format!("ctr-1-worker-{index}-x"), PodRole::Worker));
    let pods: Vec<PodState> = std::iter::once(coordinator).chain(servers).chain(workers).collect();
    ObservedObjects {
        coordinator: Some(JobState::default()),
        workers: pods.last().filter(|pod| pod.role == PodRole::Worker).map(|_| JobState::default()),
        servers: Some(ServerSet::default()),
        remaining: pods.clone(),
        pods,
        ..ObservedObjects::default()
    }
}

fn exited(name: &str, code: i32, seconds: i64) -> PodState {
    let (reason, message) = ("Error".to_owned(), "why".to_owned());
    let exit = Some(PodExit { code, reason, message, at: Some(timestamp(seconds)) });
    PodState { exit, ..pod(name, PodRole::Worker) }
}

fn waited(steps: &[PlanStep]) -> Option<Option<Duration>> {
    let waits = steps.iter().find_map(|step| if let PlanStep::Wait(_, at_most) = step { Some(*at_most) } else { None });
    assert_eq!(waits.is_some(), matches!(steps.last(), Some(PlanStep::Wait(..))), "a wait ends a plan: {steps:?}");
    waits
}

fn published(steps: &[PlanStep]) -> Option<&'static str> {
    steps.iter().find_map(|step| if let PlanStep::Publish(event) = step { Some(event.reason) } else { None })
}

/// Names of what is applied, in order.
fn applied(steps: &[PlanStep]) -> Vec<String> {
    let groups = steps.iter().filter_map(|step| if let PlanStep::Apply(group) = step { Some(group) } else { None });
    groups.flatten().map(ObjectManifest::title).collect()
}

#[test]
fn workers_come_when_servers_and_coordinator_are_ready() {
    let mut case = PlanCase::new();
    case.plan();
    let makes_workers = |case: &mut PlanCase| applied(&case.plan()).contains(&"Job ctr-1-worker".to_owned());
    case.run = run(2, 0);
    assert!(!makes_workers(&mut case));
    case.run = run(3, 0);
    assert!(makes_workers(&mut case));
    // A server that is unready for a moment removes no workers.
    case.run = run(2, 2);
    assert!(makes_workers(&mut case));
    // A gang without its workers would never be scheduled.
    let mut gang = PlanCase::new();
    gang.job.spec.scheduling.gang = serde_json::from_value(serde_json::json!({"scheduler": "Volcano"})).unwrap();
    gang.plan();
    assert!(makes_workers(&mut gang));
}

#[test]
fn a_failed_attempt_is_followed_by_another_after_a_pause() {
    let mut case = PlanCase::new().running();
    let failed = case.fails(4);
    let status = case.status();
    assert_eq!((status.attempt, status.restarts, published(&failed)), (2, 1, Some("AttemptFailed")));
    let last = status.last_failure.unwrap();
    assert_eq!((last.attempt, last.exit_code, last.pod.as_deref()), (1, Some(4), Some("ctr-1-worker-0-x")));
    case.run = ObservedObjects { owned: vec![owned(OwnedKind::Servers, 1)], ..ObservedObjects::default() };
    let pausing = case.plan();
    let servers = ObjectDeletion::Workload(OwnedKind::Servers, "ctr-1-Servers".to_owned());
    assert!(pausing.contains(&PlanStep::Delete(servers)) && applied(&pausing).is_empty(), "{pausing:?}");
    assert_eq!(waited(&pausing), Some(Some(Duration::from_secs(10))));
    case.now += 10;
    assert!(!applied(&case.plan()).is_empty());
    let pauses: Vec<u64> = [1, 2, 3, 6, 7, 1000].into_iter().map(|restarts| pause(restarts).as_secs()).collect();
    assert_eq!(pauses, [10, 20, 40, 320, 360, 360]);
}

#[test]
fn attempts_end_with_the_limit() {
    let mut case = PlanCase::new();
    case.job.spec.run_policy.backoff_limit = 1;
    let mut case = case.running();
    case.fails(4);
    case.now += 10;
    case.fails(4);
    assert_eq!(case.condition("Failed"), (true, "BackoffLimitExceeded".to_owned()));
    assert_eq!((case.status().restarts, case.status().last_failure.map(|last| last.attempt)), (1, Some(2)));
}

#[test]
fn a_wrong_job_file_is_not_tried_again() {
    for code in [2, 3, 5, 127] {
        let mut case = PlanCase::new().running();
        case.fails(code);
        assert_eq!(case.condition("Failed"), (true, "PermanentFailure".to_owned()), "{code}");
        assert_eq!(case.status().restarts, 0);
    }
    let mut case = PlanCase::new();
    case.job.spec.run_policy.exit_codes.retryable = vec![5];
    let mut case = case.running();
    case.fails(5);
    assert_eq!(case.status().phase, Some(RunPhase::Restarting));
}

#[test]
fn the_deadline_counts_all_attempts() {
    let mut case = PlanCase::new();
    case.job.spec.run_policy.active_deadline_seconds = Some(100);
    let mut case = case.running();
    case.now += 95;
    assert_eq!(waited(&case.plan()), Some(Some(Duration::from_secs(5))));
    case.fails(4);
    case.now += 5;
    case.plan();
    assert_eq!(case.condition("Failed"), (true, "DeadlineExceeded".to_owned()));
}

#[test]
fn a_job_that_is_over_stays_over() {
    let mut case = PlanCase::new().running();
    case.fails(3);
    let earlier = case.status();
    case.job.spec.image = "zagros:2".to_owned();
    case.job.spec.run_policy.suspend = true;
    case.run = ObservedObjects::default();
    case.now += 1_000_000;
    let steps = case.plan();
    // The model is not saved: a user may want to look at what is there.
    assert!(!steps.contains(&PlanStep::Delete(ObjectDeletion::Claims)), "{steps:?}");
    assert_eq!((case.status().phase, case.status().completion_time), (Some(RunPhase::Failed), earlier.completion_time));
}

/// In mode `hybrid` the others wait, and Kubernetes restarts the lost one.
#[test]
fn a_lost_worker_is_back_once_its_pod_is_ready_whatever_its_job_counts() {
    let mut case = PlanCase::hybrid().running();
    let restarted = PodState { is_ready: false, ..case.run.pods[5].clone() };
    case.run.pods[5] = exited("ctr-1-worker-1-a", 137, case.now);
    case.run.pods.push(restarted);
    case.run.workers = Some(JobState { failed: 1, ..JobState::default() });
    assert_eq!(published(&case.plan()), Some("WorkerLost"));
    assert_eq!((published(&case.plan()), case.status().workers_back), (None, None));
    case.now += 20;
    case.run.pods[6].is_ready = true;
    assert_eq!(published(&case.plan()), Some("WorkerBack"));
    assert_eq!(case.status().workers_back.map(|time| time.0.as_second()), Some(case.now));
    assert_eq!(published(&case.plan()), None);
}

#[test]
fn the_newest_checkpoint_is_reported_with_its_time_and_stays_for_the_next_attempt() {
    let mut case = PlanCase::new().running();
    for (seconds, step, seen) in [(0, 0, None), (10, 300, Some(1_010)), (10, 300, Some(1_010)), (10, 600, Some(1_030))]
    {
        case.now += seconds;
        case.report = Some(RunProgress { step: step + 5, checkpoint_step: step, ..RunProgress::default() });
        case.plan();
        let last = case.status().last_checkpoint.map(|last| (last.step, last.seen.0.as_second()));
        assert_eq!(last, seen.map(|seen| (step, seen)));
    }
    // The coordinator is gone. The status keeps what is known.
    case.report = None;
    case.fails(4);
    assert_eq!((case.status().attempt, case.status().last_checkpoint.map(|last| last.step)), (2, Some(600)));
}

#[test]
fn other_attempts_are_removed_in_order() {
    let mut case = PlanCase::new().running();
    let stale = |case: &mut PlanCase| {
        let steps = case.plan();
        let place = |wanted: &PlanStep| steps.iter().position(|step| step == wanted);
        let servers = PlanStep::Delete(ObjectDeletion::Workload(OwnedKind::Servers, "ctr-7-Servers".to_owned()));
        place(&PlanStep::ConfirmNoWorkers(RemovalScope::Others(1)))
            .is_some_and(|first| place(&servers) == Some(first + 1))
    };
    case.run.owned = vec![owned(OwnedKind::Servers, 7), owned(OwnedKind::Service, 7)];
    assert!(stale(&mut case));
    // A user changed the label.
    case.run.owned[0].attempt = None;
    assert!(stale(&mut case));
    // An object whose deletion was requested is not deleted again.
    case.run.owned[0].is_deleting = true;
    assert!(case.plan().contains(&PlanStep::Delete(ObjectDeletion::Attempts(RemovalScope::Others(1), None))));
}
