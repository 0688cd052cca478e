//! Decisions, by value.

use super::*;
use crate::crd::{ExitCodes, HybridJobSpec, RunProgress};
use crate::fixture::{attempt, hybrid_job, owned, pod};
use crate::observe::{JobEnd, JobState, OwnedKind, PodExit, PodState};
use crate::scale::{ServerScale, WorkerScale};

mod workers;

/// A job whose status goes from decision to decision, as in the operator.
struct DecisionCase {
    spec: HybridJobSpec,
    status: HybridJobStatus,
    observed: ObservedObjects,
    template: String,
    fixed: String,
    recovery: RowsRecovery,
    rejoins: bool,
    progress: Option<RunProgress>,
    servers: ServerScale,
    workers: WorkerScale,
    now: i64,
}

impl DecisionCase {
    fn new() -> Self {
        Self {
            spec: hybrid_job().spec,
            status: HybridJobStatus::default(),
            observed: ObservedObjects::default(),
            template: "t1".to_owned(),
            fixed: "f1".to_owned(),
            recovery: RowsRecovery::Checkpoint,
            rejoins: false,
            progress: None,
            servers: ServerScale { wanted: 3, started: 3, known: None },
            workers: WorkerScale { wanted: 2, started: 2, known: None },
            now: 1_000,
        }
    }

    fn running() -> Self {
        let mut case = Self::new();
        assert_eq!(case.step().work, OperatorWork::Record);
        (case.observed.coordinator, case.observed.workers) = (job(1, None), job(2, None));
        case.observed.servers = Some(3);
        assert_eq!(case.step().status.phase, Some(RunPhase::Running));
        case
    }

    fn hash(&self) -> SpecHash {
        SpecHash { template: self.template.clone(), fixed: self.fixed.clone() }
    }

    fn step(&mut self) -> JobDecision {
        let decision = decide(&DecisionFacts {
            attempt: &attempt(self.status.attempt),
            spec: &self.spec,
            present: &self.spec.clone().with_numbers(self.servers.staying_count(), self.workers.pod_count()),
            servers: &self.servers,
            workers: &self.workers,
            generation: Some(4),
            status: &self.status,
            next: &self.hash(),
            running: &self.hash(),
            recovery: self.recovery,
            observed: &self.observed,
            rejoins: self.rejoins,
            progress: self.progress.clone(),
            now: Timestamp::from_second(self.now).unwrap(),
        });
        self.status = decision.status.clone();
        decision
    }

    /// The coordinator's Job fails, because a pod ended with this code.
    fn fails(&mut self, code: i32) -> JobDecision {
        self.ends(code);
        self.step()
    }

    fn ends(&mut self, code: i32) {
        let end_time = Timestamp::from_second(self.now).unwrap();
        let failed =
            || Some(JobEnd::Failed { at: end_time, reason: String::new(), message: "BackoffLimitExceeded".to_owned() });
        let exit = PodExit { code, reason: "Error".to_owned(), message: "why".to_owned(), at: Some(end_time) };
        let pods = vec![PodState { exit: Some(exit), ..pod("ctr-1-worker-0", PodRole::Worker) }];
        let (coordinator, workers) = (job(0, failed()), job(0, failed()));
        self.observed = ObservedObjects { coordinator, workers, pods, ..ObservedObjects::default() };
    }

    fn condition(&self, type_: &str) -> (bool, String) {
        let found = self.status.conditions.iter().find(|one| one.type_ == type_).unwrap();
        (found.status == crate::crd::ConditionStatus::True, found.reason.clone())
    }
}

fn job(ready: i32, end: Option<JobEnd>) -> Option<JobState> {
    Some(JobState { ready, end, ..JobState::default() })
}

/// The second decision equals the first: an operator that restarts half-way does no harm.
#[test]
fn an_attempt_is_recorded_before_anything_of_it_is_made() {
    let mut case = DecisionCase::new();
    let first = case.step();
    assert_eq!((first.work, first.status.attempt, first.again), (OperatorWork::Record, 1, Some(AT_ONCE)));
    assert_eq!(first.status.output.as_deref(), Some("/output/ctr"));
    let second = case.step();
    assert_eq!((second.work, second.status.attempt), (OperatorWork::Run(BuildStage::Servers), 1));
    assert_eq!(case.step(), second);
}

/// Servers with a log are restarted one by one. Servers without one would lose their rows.
#[test]
fn an_edit_of_the_servers_pods_alone_is_applied_while_the_run_trains() {
    for (recovery, fixed, attempt) in
        [(RowsRecovery::Log, "f1", 1), (RowsRecovery::Log, "f2", 2), (RowsRecovery::Checkpoint, "f1", 2)]
    {
        let mut case = DecisionCase::running();
        case.recovery = recovery;
        case.step();
        (case.template, case.fixed) = ("t2".to_owned(), fixed.to_owned());
        let decision = case.step();
        assert_eq!(decision.status.attempt, attempt, "{recovery:?} {fixed}");
        let news = decision.news.map(|news| news.reason);
        assert_eq!(news, Some(if attempt == 1 { "ServersUpdate" } else { "SpecChanged" }));
        assert_ne!(case.step().news.map(|news| news.reason), Some("ServersUpdate"), "it is reported once");
    }
}

#[test]
fn workers_come_when_servers_and_coordinator_are_ready() {
    let mut case = DecisionCase::new();
    case.step();
    case.observed = ObservedObjects { coordinator: job(1, None), servers: Some(2), ..ObservedObjects::default() };
    assert_eq!(case.step().work, OperatorWork::Run(BuildStage::Servers));
    case.observed.servers = Some(3);
    assert_eq!(case.step().work, OperatorWork::Run(BuildStage::Everything));
    // A server that is unready for a moment removes no workers.
    case.observed.workers = job(2, None);
    case.observed.servers = Some(2);
    assert_eq!(case.step().work, OperatorWork::Run(BuildStage::Everything));
    // A gang without its workers would never be scheduled.
    let mut gang = DecisionCase::new();
    gang.spec.scheduling.gang = serde_json::from_value(serde_json::json!({"scheduler": "Volcano"})).unwrap();
    gang.step();
    assert_eq!(gang.step().work, OperatorWork::Run(BuildStage::Everything));
}

#[test]
fn a_failed_attempt_is_followed_by_another_after_a_pause() {
    let mut case = DecisionCase::running();
    let failed = case.fails(4);
    assert_eq!((failed.status.attempt, failed.status.restarts, failed.work), (2, 1, OperatorWork::Record));
    assert_eq!(failed.news.as_ref().map(|news| news.reason), Some("AttemptFailed"));
    let last = failed.status.last_failure.unwrap();
    assert_eq!((last.attempt, last.exit_code, last.pod.as_deref()), (1, Some(4), Some("ctr-1-worker-0")));
    case.observed = ObservedObjects { owned: vec![owned(OwnedKind::Servers, 1)], ..ObservedObjects::default() };
    let pausing = case.step();
    assert_eq!((pausing.work, pausing.again), (OperatorWork::Clear, Some(Duration::from_secs(10))));
    case.now += 10;
    assert_eq!(case.step().work, OperatorWork::Run(BuildStage::Servers));
}

#[test]
fn pauses_double_up_to_a_limit() {
    let pauses: Vec<u64> = [1, 2, 3, 6, 7, 1000].into_iter().map(|restarts| pause(restarts).as_secs()).collect();
    assert_eq!(pauses, [10, 20, 40, 320, 360, 360]);
}

#[test]
fn a_wrong_job_file_is_not_tried_again() {
    for code in [2, 3, 5, 127] {
        let mut case = DecisionCase::running();
        case.fails(code);
        assert_eq!(case.condition("Failed"), (true, "PermanentFailure".to_owned()), "{code}");
        assert_eq!(case.status.restarts, 0);
    }
    let mut case = DecisionCase::running();
    case.spec.run_policy.exit_codes = ExitCodes { retryable: vec![5] };
    assert_eq!(case.fails(5).status.phase, Some(RunPhase::Restarting));
}

/// Pods of a lost node are waited for only so long.
#[test]
fn a_suspended_job_is_looked_at_again_while_a_pod_is_there() {
    let mut case = DecisionCase::running();
    case.spec.run_policy.suspend = true;
    case.observed.remaining = vec![pod("ctr-1-worker-0", PodRole::Worker)];
    let waiting = case.step();
    assert_eq!((waiting.work, waiting.again), (OperatorWork::Clear, Some(GLANCE)));
    case.observed.remaining.clear();
    assert_eq!(case.step().again, None);
}

#[test]
fn the_deadline_counts_all_attempts() {
    let mut case = DecisionCase::running();
    case.spec.run_policy.active_deadline_seconds = Some(100);
    case.now += 95;
    assert_eq!(case.step().again, Some(Duration::from_secs(5)));
    case.fails(4);
    case.now += 5;
    case.step();
    assert_eq!(case.condition("Failed"), (true, "DeadlineExceeded".to_owned()));
}

#[test]
fn a_job_that_is_over_stays_over() {
    let mut case = DecisionCase::running();
    case.fails(3);
    let earlier = case.status.clone();
    case.template = "t2".to_owned();
    case.spec.run_policy.suspend = true;
    case.observed = ObservedObjects::default();
    case.now += 1_000_000;
    assert_eq!(case.step().status.phase, Some(RunPhase::Failed));
    assert_eq!(case.status.completion_time, earlier.completion_time);
}

/// In mode `hybrid` the others wait, and Kubernetes restarts the lost one.
#[test]
fn a_lost_worker_is_back_once_its_pod_is_ready_whatever_its_job_counts() {
    let mut case = DecisionCase::running();
    case.rejoins = true;
    let end_time = Timestamp::from_second(case.now).unwrap();
    let exit = PodExit { code: 137, reason: "Error".to_owned(), message: String::new(), at: Some(end_time) };
    let lost = PodState { exit: Some(exit), ..pod("ctr-1-worker-1-x", PodRole::Worker) };
    let running = PodState { is_ready: true, ..pod("ctr-1-worker-0-x", PodRole::Worker) };
    case.observed.pods = vec![running, pod("ctr-1-worker-1-y", PodRole::Worker), lost];
    case.observed.workers = Some(JobState { ready: 1, failed: 1, ..JobState::default() });
    assert_eq!(case.step().news.map(|news| news.reason), Some("WorkerLost"));
    // The Job's count is older than the pod's end.
    case.observed.workers = Some(JobState { ready: 2, failed: 1, ..JobState::default() });
    let early = case.step();
    assert_eq!((early.news, early.status.workers_back), (None, None));
    case.now += 20;
    case.observed.pods[1].is_ready = true;
    let back = case.step();
    assert_eq!(back.news.map(|news| news.reason), Some("WorkerBack"));
    assert_eq!(back.status.workers_back.map(|time| time.0.as_second()), Some(case.now));
    assert_eq!(case.step().news, None);
}

#[test]
fn the_newest_checkpoint_is_reported_with_its_time_and_stays_for_the_next_attempt() {
    let mut case = DecisionCase::running();
    let seen = |case: &mut DecisionCase, step: i64| {
        case.progress = Some(RunProgress { step: step + 5, checkpoint_step: step, ..RunProgress::default() });
        case.step().status.last_checkpoint.map(|last| (last.step, last.seen.0.as_second()))
    };
    assert_eq!(seen(&mut case, 0), None);
    case.now += 10;
    assert_eq!(seen(&mut case, 300), Some((300, 1_010)));
    case.now += 10;
    assert_eq!(seen(&mut case, 300), Some((300, 1_010)));
    case.now += 10;
    assert_eq!(seen(&mut case, 600), Some((600, 1_030)));
    // The coordinator is gone. The status keeps what is known.
    case.progress = None;
    let next = case.fails(4);
    assert_eq!((next.status.attempt, next.status.last_checkpoint.map(|last| last.step)), (2, Some(600)));
}
