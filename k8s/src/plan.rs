//! What the operator does next for a HybridJob: a pure function of its object and of what is observed of its run.
//!
//! An attempt is recorded in the status before any of its objects is made, so an operator that ends half-way, or takes
//! over, finds in the status which attempt was started. A plan that does not end with a wait only records, and another
//! follows at once:
//!
//! ```text
//!  new ──► record attempt 1 ──► Service, job file, servers ──► workers ──► wait
//!  attempt 1 fails ──► record attempt 2 ──► workers of 1 end ──► servers of 1 ──► services of 1 ──► pause ──► as above
//! ```

mod numbers;
mod objects;
mod readiness;
mod removal;
mod verdict;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::build::BuildStage;
use crate::cache::JobObjects;
use crate::crd::{
    AttemptFailure, COMPLETE, FAILED, HybridJob, HybridJobSpec, HybridJobStatus, JobCondition, LastCheckpoint, READY,
    RECONCILED, RowsRecovery, RunPhase, RunProgress, SCALED, SUSPENDED, VALID,
};
use crate::memory::{FIRST_PAUSE, KnownRequests, elapsed_time};
use crate::names::{PodRole, RunAttempt, label_selector};
use crate::observe::{ObservedObjects, RemovalScope};
use crate::step::{EventNote, PlanStep};
use crate::validate::{SpecProblem, ValidJob};
use numbers::{MemberCounts, RunNumbers, ScaleStep, admission_note};
use readiness::{COORDINATOR_LOST, JOB_SUSPENDED, PodReadiness, SERVER_LOST, WorkerFleet, role_counts};
use removal::RemovalProgress;
use verdict::{AttemptVerdict, judge_attempt};

/// The pause before the second attempt. It doubles for each further one.
const BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(360);
/// How often a running job is looked at, because its progress changes without an event.
const GLANCE: Duration = Duration::from_secs(15);

/// What is observed of a HybridJob beside its own object.
#[derive(Debug)]
pub struct ObservedJob {
    /// The job that can be built, or what is wrong with its spec. Of a deleted job nothing is built.
    pub valid: Result<ValidJob, Vec<SpecProblem>>,
    pub run: ObservedObjects,
    /// The objects from which `run` was read, for a comparison with what was applied.
    pub objects: JobObjects,
    /// The coordinator's report, if it answered just now, or has left one at its end.
    pub report: Option<RunProgress>,
    /// When the coordinator is asked next.
    pub next_ask: Duration,
    /// Why the coordinator refuses the numbers of this spec.
    pub scale_refusal: Option<String>,
    pub requests: KnownRequests,
    pub is_namespace_deleted: bool,
    pub now: Timestamp,
}

/// The steps, in order. At rest there is none but the wait for a change.
pub fn plan_steps(job: &HybridJob, seen: &ObservedJob) -> Vec<PlanStep> {
    let planner = Planner::new(job, seen);
    let is_over = planner.recorded.phase.is_some_and(RunPhase::is_final);
    match &seen.valid {
        _ if job.metadata.deletion_timestamp.is_some() => planner.end_deleted_job(),
        _ if seen.is_namespace_deleted => planner.vacate_namespace(),
        Err(problems) if !is_over => planner.refuse_spec(problems),
        _ => planner.plan_run(),
    }
}

struct Planner<'a> {
    job: &'a HybridJob,
    seen: &'a ObservedJob,
    attempt: RunAttempt,
    recorded: HybridJobStatus,
    /// With as many members as there should be pods.
    valid: Option<ValidJob>,
    numbers: RunNumbers,
    /// The spec with as many members as stay in the run: another number that it says is not reached yet.
    present: HybridJobSpec,
    /// What is observed of the run without the members that leave.
    staying: ObservedObjects,
    /// The status that is recorded before all other work.
    status: HybridJobStatus,
    event: Option<EventNote>,
    work: Vec<PlanStep>,
}

impl<'a> Planner<'a> {
    fn new(job: &'a HybridJob, seen: &'a ObservedJob) -> Self {
        let recorded = job.status.clone().unwrap_or_default();
        let valid = seen.valid.as_ref().ok();
        let started = valid.map(ValidJob::started_numbers).map(|(servers, workers)| MemberCounts { servers, workers });
        let numbers = RunNumbers::new(&job.spec, started, seen.report.as_ref().or(recorded.progress.as_ref()));
        let (pods, staying) = (numbers.pods(), numbers.staying());
        Self {
            job,
            seen,
            attempt: RunAttempt::recorded(job),
            valid: valid.map(|valid| valid.clone().with_numbers(pods.servers, pods.workers)),
            present: job.spec.clone().with_numbers(staying.servers, staying.workers),
            staying: seen.run.clone().without_members_from(staying.servers, staying.workers),
            status: recorded.clone(),
            recorded,
            numbers,
            event: None,
            work: Vec::new(),
        }
    }

    fn plan_run(mut self) -> Vec<PlanStep> {
        let job = self.job;
        let policy = &job.spec.run_policy;
        self.status.observed_generation = self.job.metadata.generation;
        self.set(VALID, true, "Accepted", "the spec can be carried out");
        // Whether the work succeeds is known when it is done.
        if self.status.condition(RECONCILED).is_none() {
            self.set(RECONCILED, true, "Done", "");
        }
        if self.recorded.phase.is_some_and(RunPhase::is_final) {
            return self.clean_up();
        }
        if policy.suspend {
            return self.suspend();
        }
        if self.deadline().is_some_and(|deadline| deadline <= self.seen.now) {
            let seconds = policy.active_deadline_seconds.unwrap_or_default();
            let note = format!("not done within runPolicy.activeDeadlineSeconds ({seconds} s)");
            return self.end(RunPhase::Failed, "DeadlineExceeded", note);
        }
        if let Some(reason) = self.reason_to_begin() {
            return self.begin(reason);
        }
        if let Some(pause) = self.pause_left() {
            self.take_steps(self.removal(RemovalScope::All));
            return self.finish("the next attempt starts after a pause", Some(pause.min(GLANCE)));
        }
        if let Some(worker) = self.earlier_worker() {
            return self.wait_for_earlier(&worker);
        }
        let judged = self.staying.clone().without_replaced(self.workers_back());
        match judge_attempt(self.recorded.attempt, &judged, &policy.exit_codes, self.seen.now) {
            AttemptVerdict::Going => self.go_on(GLANCE),
            AttemptVerdict::Settling(left) => self.go_on(left),
            AttemptVerdict::Succeeded => {
                let (attempt, output) = (self.recorded.attempt, self.recorded.output.as_deref().unwrap_or_default());
                let note = format!("trained to the end in attempt {attempt}; the run folder is below {output}");
                self.end(RunPhase::Succeeded, "Succeeded", note)
            }
            AttemptVerdict::Exhausted { cause } => {
                let limit = policy.backoff_limit;
                let why = format!("it was restarted {limit} times, which is the limit (runPolicy.backoffLimit)");
                self.end_failed(cause, "BackoffLimitExceeded", &why)
            }
            AttemptVerdict::Failed { cause, retryable: false } => {
                let why = "another attempt would fail alike: docs/exit-codes.md says what to do";
                self.end_failed(cause, "PermanentFailure", why)
            }
            AttemptVerdict::Failed { cause, .. } if self.recorded.restarts >= policy.backoff_limit => {
                let why = format!("no attempt is left (runPolicy.backoffLimit = {})", policy.backoff_limit);
                self.end_failed(cause, "BackoffLimitExceeded", &why)
            }
            AttemptVerdict::Failed { cause, .. } => self.begin_after(cause),
        }
    }

    fn set(&mut self, type_: &str, holds: bool, reason: &str, message: &str) {
        let generation = self.job.metadata.generation;
        self.status.set_condition(JobCondition::new(type_, holds, reason, message, generation, self.seen.now));
    }

    fn unready(&mut self, reason: &str, message: String) {
        self.set(READY, false, reason, &message);
        self.status.message = Some(message);
    }

    /// The spec cannot be carried out. The status says why, and the operator waits. A running run goes on.
    fn refuse_spec(mut self, problems: &[SpecProblem]) -> Vec<PlanStep> {
        let message = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let is_news = self.recorded.condition(VALID).is_none_or(|one| one.message != message);
        self.event = is_news.then(|| EventNote::warning_note("InvalidSpec", message.clone()));
        self.status.observed_generation = self.job.metadata.generation;
        self.set(VALID, false, "InvalidSpec", &message);
        self.set(READY, false, "InvalidSpec", "the spec cannot be carried out");
        self.status.message = Some(message);
        if self.seen.run.coordinator.is_none() {
            self.status.phase = Some(RunPhase::Invalid);
            self.take_steps(self.removal(RemovalScope::Others(self.recorded.attempt)));
        }
        // What the spec names may appear without an event.
        self.finish("the spec is invalid", Some(GLANCE))
    }

    fn suspend(mut self) -> Vec<PlanStep> {
        let removal = self.removal(RemovalScope::All);
        let message = match &removal {
            RemovalProgress::Wait(pod) => format!("waits: runPolicy.suspend is true; {pod} has not ended yet"),
            RemovalProgress::Due(_) | RemovalProgress::Done => "waits: runPolicy.suspend is true".to_owned(),
        };
        let is_news = self.recorded.phase != Some(RunPhase::Suspended);
        self.event =
            is_news.then(|| EventNote::normal_note("Suspended", "all pods go until runPolicy.suspend is false"));
        self.status.phase = Some(RunPhase::Suspended);
        self.status.start_time = None;
        self.forget_run();
        self.set(SUSPENDED, true, "Suspended", &message);
        self.unready("Suspended", message);
        let at_most = (removal != RemovalProgress::Done).then_some(GLANCE);
        self.take_steps(removal);
        self.finish("runPolicy.suspend is true", at_most)
    }

    fn forget_run(&mut self) {
        self.status.progress = None;
        self.status.workers = 0;
        self.status.roles = Some(role_counts(&self.job.spec, &ObservedObjects::default()));
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.job.spec.run_policy.active_deadline_seconds?;
        let started = self.recorded.start_time.as_ref()?.0;
        Some(started.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX))
    }

    /// Why an attempt starts although none failed. While one runs, the definition admits no edit that it could not apply (`crd`).
    fn reason_to_begin(&self) -> Option<&'static str> {
        match self.recorded.phase {
            _ if self.recorded.attempt == 0 => Some("Started"),
            Some(RunPhase::Suspended) => Some("Resumed"),
            Some(RunPhase::Invalid) => Some("Corrected"),
            _ => None,
        }
    }

    fn recovery(&self) -> RowsRecovery {
        let is_durable = self.valid.as_ref().is_some_and(ValidJob::is_durable);
        if is_durable { RowsRecovery::Log } else { RowsRecovery::Checkpoint }
    }

    fn begin(mut self, reason: &'static str) -> Vec<PlanStep> {
        let number = self.recorded.attempt + 1;
        let note = format!("attempt {number} starts");
        self.event = Some(EventNote::normal_note(reason, note.clone()));
        self.status.start_time = self.status.start_time.take().or(Some(Time(self.seen.now)));
        self.enter(number, RunPhase::Starting, note);
        self.set(SUSPENDED, false, reason, "");
        self.assemble()
    }

    fn begin_after(mut self, cause: AttemptFailure) -> Vec<PlanStep> {
        let note = format!("attempt {} failed: {}", cause.attempt, cause.message);
        let (restarts, number) = (self.recorded.restarts + 1, self.recorded.attempt + 1);
        let message = format!("{note}; attempt {number} starts {} s later", pause(restarts).as_secs());
        self.event = Some(EventNote::warning_note("AttemptFailed", note));
        self.status.restarts = restarts;
        self.status.last_failure = Some(AttemptFailure { at: Some(Time(self.seen.now)), ..cause });
        self.enter(number, RunPhase::Restarting, message);
        self.assemble()
    }

    fn enter(&mut self, number: i32, phase: RunPhase, message: String) {
        let attempt = RunAttempt { number, ..self.attempt.clone() };
        self.forget_run();
        self.status.recovery = Some(self.recovery());
        let status = &mut self.status;
        status.attempt = number;
        status.phase = Some(phase);
        status.worker_restarts = 0;
        status.workers_lost = None;
        status.workers_back = None;
        status.output = Some(attempt.output_folder());
        status.selector = Some(label_selector(&attempt.role_labels(PodRole::Worker)));
        // An attempt starts with the numbers of the spec.
        status.conditions.retain(|one| one.type_ != SCALED);
        self.unready("Starting", message);
    }

    fn pause_left(&self) -> Option<Duration> {
        if self.recorded.phase != Some(RunPhase::Restarting) {
            return None;
        }
        let failed = self.recorded.last_failure.as_ref()?.at.as_ref()?.0;
        let left = pause(self.recorded.restarts).saturating_sub(elapsed_time(failed, self.seen.now));
        (!left.is_zero()).then_some(left)
    }

    /// Makes nothing of the attempt while a worker of another attempt runs.
    fn wait_for_earlier(mut self, worker: &str) -> Vec<PlanStep> {
        let number = self.recorded.attempt;
        self.status.phase = Some(RunPhase::Starting);
        self.status.roles = Some(role_counts(&self.present, &self.seen.run));
        self.unready("Starting", format!("attempt {number} starts once {worker} of an earlier attempt has ended"));
        self.take_steps(self.removal(RemovalScope::Others(number)));
        self.finish("a worker of an earlier attempt ends", Some(GLANCE))
    }

    fn go_on(mut self, at_most: Duration) -> Vec<PlanStep> {
        let stage = self.stage();
        let state = readiness::assess(&self.present, &self.staying, stage, self.seen.now);
        let fleet = self.worker_fleet(state.is_ready);
        let state = state.waiting_for(fleet.loss());
        self.event = self.what_happened(&fleet, &state);
        let (step, news) = self.record_scale();
        self.event = news.or(self.event.take());
        self.status.recovery = Some(self.recovery());
        let is_up = state.is_ready || self.recorded.phase == Some(RunPhase::Running);
        self.status.phase = Some(if is_up { RunPhase::Running } else { RunPhase::Starting });
        self.status.workers = self.staying.ready_count(PodRole::Worker);
        self.record_progress();
        self.record_fleet(&fleet);
        self.set(READY, state.is_ready, &state.reason, &state.message);
        self.set(SUSPENDED, false, "Running", "");
        self.status.message = Some(state.message);
        self.apply_objects(stage);
        self.give_up_pods();
        let mut at_most = at_most.min(self.seen.next_ask);
        if let ScaleStep::Ask(request) = step {
            self.work.push(PlanStep::Scale(request, admission_note(request)));
            // The coordinator is asked at the next look, because its answer has changed.
            at_most = at_most.min(FIRST_PAUSE);
        }
        if let Some(deadline) = self.deadline() {
            at_most = at_most.min(elapsed_time(self.seen.now, deadline).max(FIRST_PAUSE));
        }
        self.finish("the run goes on", Some(at_most))
    }

    fn record_progress(&mut self) {
        self.status.roles = Some(role_counts(&self.present, &self.seen.run));
        self.status.progress = self.seen.report.clone().or(self.status.progress.take());
        // The status keeps the newest checkpoint, because the next attempt continues from it.
        let step = self.seen.report.as_ref().map_or(0, |report| report.checkpoint_step);
        if step > 0 && self.status.last_checkpoint.as_ref().is_none_or(|known| known.step != step) {
            self.status.last_checkpoint = Some(LastCheckpoint { step, seen: Time(self.seen.now) });
        }
    }

    fn what_happened(&self, fleet: &WorkerFleet, state: &PodReadiness) -> Option<EventNote> {
        let last_reason = self.recorded.condition(READY).map_or("", |one| one.reason.as_str());
        let reported = [JOB_SUSPENDED, SERVER_LOST, COORDINATOR_LOST];
        if let Some(reason) = reported.into_iter().find(|reason| *reason == state.reason) {
            return (last_reason != reason).then(|| EventNote::warning_note(reason, state.message.clone()));
        }
        match (last_reason, fleet) {
            (SERVER_LOST, _) if state.is_ready => {
                Some(EventNote::normal_note("ServerBack", "the server is back with its rows"))
            }
            (COORDINATOR_LOST, _) if state.is_ready => {
                Some(EventNote::normal_note("CoordinatorBack", "the coordinator is back and continues the run"))
            }
            (_, WorkerFleet::Lost(how, _)) => {
                let limit = self.job.spec.run_policy.backoff_limit;
                let note = format!("{how}; it restarts and the others wait for it (at most {limit} times each)");
                Some(EventNote::warning_note("WorkerLost", note))
            }
            (_, WorkerFleet::Back) => {
                Some(EventNote::normal_note("WorkerBack", "all workers are back and continue together"))
            }
            (_, WorkerFleet::Whole | WorkerFleet::Waiting(_)) => {
                let is_new = self.recorded.phase != Some(RunPhase::Running) && state.is_ready;
                is_new.then(|| EventNote::normal_note("Running", "every role is ready"))
            }
        }
    }

    /// Workers start once coordinator and servers are ready. A gang is scheduled whole, so its workers start at once.
    fn stage(&self) -> BuildStage {
        let run = &self.seen.run;
        let servers = run.ready_count(PodRole::Server) >= self.present.embedding_servers.replicas;
        let is_ready = servers && run.ready_count(PodRole::Coordinator) > 0;
        let is_gang = self.job.spec.scheduling.gang.is_some();
        if is_gang || is_ready || run.workers.is_some() { BuildStage::Everything } else { BuildStage::Servers }
    }

    /// Ends the job after a failure: another attempt would start with the same worker, fail alike, or is one too many.
    fn end_failed(mut self, cause: AttemptFailure, reason: &'static str, why: &str) -> Vec<PlanStep> {
        let note = format!("attempt {} failed: {}; {why}", cause.attempt, cause.message);
        self.status.last_failure = Some(AttemptFailure { at: Some(Time(self.seen.now)), ..cause });
        self.end(RunPhase::Failed, reason, note)
    }

    fn end(mut self, phase: RunPhase, reason: &'static str, note: String) -> Vec<PlanStep> {
        let is_success = phase == RunPhase::Succeeded;
        self.event = Some(EventNote { is_warning: !is_success, reason, note: note.clone() });
        self.status.phase = Some(phase);
        self.status.completion_time = Some(Time(self.seen.now));
        self.record_progress();
        self.set(if is_success { COMPLETE } else { FAILED }, true, reason, &note);
        self.unready(reason, note);
        self.assemble()
    }

    /// Ends the plan with a wait. If the work before it succeeds, nothing is refused any more.
    fn finish(mut self, why: &'static str, at_most: Option<Duration>) -> Vec<PlanStep> {
        if self.status.refusal().is_some() {
            let mut settled = self.status.clone();
            let (generation, now) = (self.job.metadata.generation, self.seen.now);
            settled.set_condition(JobCondition::new(RECONCILED, true, "Done", "", generation, now));
            self.work.push(PlanStep::SetStatus(Box::new(settled)));
        }
        if self.may_release() {
            self.work.push(PlanStep::Hold(false));
        }
        self.work.push(PlanStep::Wait(why, at_most));
        self.assemble()
    }

    /// The status first. A refusal stays in its message until the work is done.
    fn assemble(self) -> Vec<PlanStep> {
        let mut status = self.status;
        if let Some(refusal) = status.refusal().map(str::to_owned) {
            status.message = Some(refusal);
        }
        let is_new = self.job.status.as_ref() != Some(&status);
        let status = is_new.then(|| PlanStep::SetStatus(Box::new(status)));
        status.into_iter().chain(self.event.map(PlanStep::Publish)).chain(self.work).collect()
    }
}

fn pause(restarts: i32) -> Duration {
    let doublings = u32::try_from(restarts.saturating_sub(1)).unwrap_or_default().min(16);
    BACKOFF.saturating_mul(1 << doublings).min(LONGEST_BACKOFF)
}

#[cfg(test)]
mod tests;
