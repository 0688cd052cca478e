//! From a spec, a status and the observed objects to the next status and the next work.
//!
//! Pure: the time is an argument. An attempt is recorded in the status before any of its objects is made, so an
//! operator that ends half-way, or takes over, finds in the status which attempt was started.

mod decision;
mod fleet;
mod scaling;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::build::BuildStage;
use crate::conditions::{COMPLETE, FAILED, READY, RECONCILED, SUSPENDED, StatusConditions, VALID};
use crate::crd::{AttemptFailure, HybridJobStatus, LastCheckpoint, RowsRecovery, RunPhase};
use crate::judge::{AttemptVerdict, elapsed_time, judge_attempt};
use crate::names::{PodRole, RunAttempt, label_selector};
use crate::observe::{ObservedObjects, PodState};
use crate::readiness;
use crate::removal_order::{RemovalScope, RemovalStep, is_overdue};
use crate::scale::ScaleStep;
use crate::spec_hash::SpecHash;
pub use decision::{DecisionFacts, EventNote, JobDecision, OperatorWork};
use fleet::{WorkerFleet, worker_restarts, workers_back};
pub(crate) use scaling::REFUSED as SCALE_REFUSED;

/// The pause before the second attempt. It doubles for each further one.
const BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(360);
/// How often a running job is looked at, because its progress changes without an event.
const GLANCE: Duration = Duration::from_secs(15);
/// How long a worker's pod may outlive its deadline before the operator gives it up.
const GIVE_UP: SignedDuration = SignedDuration::from_secs(60);
/// Records this step before the next.
const AT_ONCE: Duration = Duration::ZERO;

#[must_use]
pub fn decide(facts: &DecisionFacts<'_>) -> JobDecision {
    let policy = &facts.spec.run_policy;
    if facts.status.phase.is_some_and(RunPhase::is_final) {
        return clean_up(facts);
    }
    if policy.suspend {
        return suspend(facts);
    }
    if let Some(decision) = deadline(facts) {
        return decision;
    }
    if let Some(reason) = reason_to_begin(facts) {
        return begin(facts, reason);
    }
    if let Some(wait) = backoff(facts) {
        let again = Some(wait.min(GLANCE));
        return JobDecision { work: OperatorWork::Clear, again, ..record(facts, |_, _| ()) };
    }
    if let Some(worker) = held_up_by(facts) {
        return drain(facts, &worker);
    }
    let observed = facts
        .observed
        .without_replaced(workers_back(facts))
        .without_members_from(facts.servers.staying_count(), facts.workers.pod_count());
    match judge_attempt(facts.status.attempt, &observed, &policy.exit_codes, facts.now) {
        AttemptVerdict::Going => going(facts, None),
        AttemptVerdict::Settling(left) => going(facts, Some(left)),
        AttemptVerdict::Succeeded => {
            let (attempt, output) = (facts.status.attempt, facts.status.output.as_deref().unwrap_or_default());
            let note = format!("trained to the end in attempt {attempt}; the run folder is below {output}");
            end(facts, RunPhase::Succeeded, "Succeeded", note)
        }
        AttemptVerdict::Exhausted { cause } => {
            let limit = policy.backoff_limit;
            let why = format!("it was restarted {limit} times, which is the limit (runPolicy.backoffLimit)");
            end_failed(facts, cause, "BackoffLimitExceeded", &why)
        }
        AttemptVerdict::Failed { cause, retryable } => failed(facts, cause, retryable),
    }
}

fn record(facts: &DecisionFacts<'_>, change: impl FnOnce(&mut HybridJobStatus, &DecisionFacts<'_>)) -> JobDecision {
    let mut status = facts.status.clone();
    status.observed_generation = facts.generation;
    // Only `act` knows whether the work succeeded, and says so afterwards.
    let is_first = !status.conditions.iter().any(|one| one.type_ == RECONCILED);
    let mut conditions = StatusConditions::new(&mut status, facts.generation, facts.now);
    conditions.set(VALID, true, "Accepted", "the spec can be carried out");
    if is_first {
        conditions.set(RECONCILED, true, "Done", "");
    }
    change(&mut status, facts);
    let (work, again) = (OperatorWork::Record, Some(AT_ONCE));
    JobDecision { status, work, again, news: None, asks_for: None, given_up: Vec::new() }
}

fn clean_up(facts: &DecisionFacts<'_>) -> JobDecision {
    let policy = &facts.spec.run_policy;
    let ended = facts.status.completion_time.as_ref().map_or(facts.now, |time| time.0);
    let left = policy.ttl_seconds_after_finished.map(|seconds| {
        let ttl = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        ttl.saturating_sub(elapsed_time(ended, facts.now))
    });
    let work =
        if left == Some(Duration::ZERO) { OperatorWork::Delete } else { OperatorWork::Tidy(policy.clean_pod_policy) };
    let tidying = facts.observed.tidying_step(facts.status.attempt, policy.clean_pod_policy, facts.now);
    let again = if tidying == RemovalStep::Done { left } else { Some(left.unwrap_or(GLANCE).min(GLANCE)) };
    JobDecision { work, again, ..record(facts, |_, _| ()) }
}

fn suspend(facts: &DecisionFacts<'_>) -> JobDecision {
    let removal = facts.observed.removal_step(RemovalScope::All, facts.now);
    let mut decision =
        record(facts, |status, facts| {
            let note = match &removal {
                RemovalStep::Wait(pod) => format!("waits: runPolicy.suspend is true; {pod} has not ended yet"),
                _ => "waits: runPolicy.suspend is true".to_owned(),
            };
            status.phase = Some(RunPhase::Suspended);
            status.message = Some(note.clone());
            status.start_time = None;
            status.progress = None;
            status.roles = Some(readiness::role_counts(facts.spec, &ObservedObjects::default()));
            status.workers = 0;
            StatusConditions::new(status, facts.generation, facts.now)
                .set(SUSPENDED, true, "Suspended", note.clone())
                .set(READY, false, "Suspended", note);
        });
    let is_news = facts.status.phase != Some(RunPhase::Suspended);
    decision.news = is_news.then(|| news(false, "Suspended", "all pods go until runPolicy.suspend is false"));
    let again = (removal != RemovalStep::Done).then_some(GLANCE);
    JobDecision { work: OperatorWork::Clear, again, ..decision }
}

fn deadline(facts: &DecisionFacts<'_>) -> Option<JobDecision> {
    let seconds = facts.spec.run_policy.active_deadline_seconds?;
    let started = facts.status.start_time.as_ref()?.0;
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    (elapsed_time(started, facts.now) >= limit).then(|| {
        let note = format!("not done within runPolicy.activeDeadlineSeconds ({seconds} s)");
        end(facts, RunPhase::Failed, "DeadlineExceeded", note)
    })
}

/// Why an attempt starts although none failed.
fn reason_to_begin(facts: &DecisionFacts<'_>) -> Option<&'static str> {
    let status = facts.status;
    let is_other = is_edited(facts) && !is_applied_live(facts);
    match status.phase {
        _ if status.attempt == 0 => Some("Started"),
        Some(RunPhase::Suspended) => Some("Resumed"),
        Some(RunPhase::Invalid) => Some("Corrected"),
        _ if is_other => Some("SpecChanged"),
        _ => None,
    }
}

fn is_edited(facts: &DecisionFacts<'_>) -> bool {
    facts.status.template_hash.as_deref() != Some(&facts.running.template)
}

/// Whether the edit concerns the servers' pods alone, and these come back with their rows: they are restarted one by one.
fn is_applied_live(facts: &DecisionFacts<'_>) -> bool {
    facts.recovery == RowsRecovery::Log && facts.status.fixed_hash.as_deref() == Some(&facts.running.fixed)
}

fn begin(facts: &DecisionFacts<'_>, reason: &'static str) -> JobDecision {
    let number = facts.status.attempt + 1;
    let mut decision = record(facts, |status, facts| {
        status.start_time = status.start_time.take().or(Some(Time(facts.now)));
        enter(status, facts, number, RunPhase::Starting, format!("attempt {number} starts"));
        StatusConditions::new(status, facts.generation, facts.now).set(SUSPENDED, false, reason, "");
    });
    decision.news = Some(news(false, reason, &format!("attempt {number} starts")));
    decision
}

/// Notes from which spec the attempt is made, and what an edit of it may change.
fn note_spec(status: &mut HybridJobStatus, facts: &DecisionFacts<'_>, hash: &SpecHash) {
    status.template_hash = Some(hash.template.clone());
    status.fixed_hash = Some(hash.fixed.clone());
    status.recovery = Some(facts.recovery);
}

fn enter(status: &mut HybridJobStatus, facts: &DecisionFacts<'_>, number: i32, phase: RunPhase, message: String) {
    let attempt = RunAttempt { number, ..facts.attempt.clone() };
    note_spec(status, facts, facts.next);
    status.attempt = number;
    status.phase = Some(phase);
    status.progress = None;
    status.worker_restarts = 0;
    status.workers_lost = None;
    status.workers_back = None;
    status.output = Some(attempt.output_folder());
    status.selector = Some(label_selector(&attempt.role_labels(PodRole::Worker)));
    status.workers = 0;
    status.roles = Some(readiness::role_counts(facts.spec, &ObservedObjects::default()));
    scaling::forget(status);
    StatusConditions::new(status, facts.generation, facts.now).set(READY, false, "Starting", message.clone());
    status.message = Some(message);
}

fn backoff(facts: &DecisionFacts<'_>) -> Option<Duration> {
    if facts.status.phase != Some(RunPhase::Restarting) {
        return None;
    }
    let failed = facts.status.last_failure.as_ref()?.at.as_ref()?.0;
    let left = pause(facts.status.restarts).saturating_sub(elapsed_time(failed, facts.now));
    (!left.is_zero()).then_some(left)
}

fn pause(restarts: i32) -> Duration {
    let doublings = u32::try_from(restarts.saturating_sub(1)).unwrap_or_default().min(16);
    BACKOFF.saturating_mul(1 << doublings).min(LONGEST_BACKOFF)
}

/// Makes nothing of the attempt while a worker of another attempt runs.
fn drain(facts: &DecisionFacts<'_>, worker: &str) -> JobDecision {
    let decision = record(facts, |status, facts| {
        let number = status.attempt;
        let message = format!("attempt {number} starts once {worker} of an earlier attempt has ended");
        status.phase = Some(RunPhase::Starting);
        status.roles = Some(readiness::role_counts(facts.present, facts.observed));
        status.message = Some(message.clone());
        StatusConditions::new(status, facts.generation, facts.now).set(READY, false, "Starting", message);
    });
    JobDecision { work: OperatorWork::Drain, again: Some(GLANCE), ..decision }
}

fn going(facts: &DecisionFacts<'_>, settling: Option<Duration>) -> JobDecision {
    let stage = stage(facts);
    let staying = facts.observed.without_members_from(facts.servers.staying_count(), facts.workers.pod_count());
    let state = readiness::assess(facts.present, &staying, stage, facts.now);
    let fleet = WorkerFleet::new(facts, &staying, state.is_ready);
    let step = scaling::step(facts);
    let state = state.waiting_for(fleet.loss_message().as_deref());
    let mut decision = record(facts, |status, facts| {
        let phase = if state.is_ready || status.phase == Some(RunPhase::Running) {
            RunPhase::Running
        } else {
            RunPhase::Starting
        };
        note_spec(status, facts, facts.running);
        status.phase = Some(phase);
        status.message = Some(state.message.clone());
        status.roles = Some(readiness::role_counts(facts.present, facts.observed));
        status.workers = staying.ready_count(PodRole::Worker);
        status.progress = facts.progress.clone().or(status.progress.take());
        status.last_checkpoint = last_checkpoint(facts);
        status.worker_restarts = worker_restarts(facts);
        fleet.record_loss(status, facts.now);
        scaling::record(status, facts, &step);
        StatusConditions::new(status, facts.generation, facts.now)
            .set(READY, state.is_ready, &state.reason, state.message.clone())
            .set(SUSPENDED, false, "Running", "");
    });
    let note =
        "spec.embeddingServers.pod was changed: the servers restart one after another, and the run waits for each";
    let update = is_edited(facts).then(|| news(false, "ServersUpdate", note));
    decision.news = update.or_else(|| scaling::news(facts, &step)).or_else(|| what_happened(facts, &fleet, &state));
    decision.asks_for = (step == ScaleStep::Ask).then(|| scaling::request(facts));
    decision.given_up = given_up(facts);
    let again = settling.unwrap_or(GLANCE).min(due(facts));
    JobDecision { work: OperatorWork::Run(stage), again: Some(again), ..decision }
}

/// Pods that should have gone long ago. Their kubelet does not report, and their Job makes no other pod before they
/// have ended.
fn given_up(facts: &DecisionFacts<'_>) -> Vec<String> {
    let hangs =
        |pod: &&PodState| pod.role == PodRole::Worker && !pod.has_ended && is_overdue(pod.until, GIVE_UP, facts.now);
    let pods = facts.observed.pods.iter().filter(|_| facts.rejoins).filter(hangs);
    pods.map(|pod| pod.name.clone()).collect()
}

/// The newest checkpoint. The status keeps it, because the next attempt continues from it.
fn last_checkpoint(facts: &DecisionFacts<'_>) -> Option<LastCheckpoint> {
    let known = facts.status.last_checkpoint.clone();
    let step = facts.progress.as_ref().map_or(0, |progress| progress.checkpoint_step);
    let is_new = step > 0 && known.as_ref().is_none_or(|known| known.step != step);
    if is_new { Some(LastCheckpoint { step, seen: Time(facts.now) }) } else { known }
}

fn what_happened(
    facts: &DecisionFacts<'_>,
    fleet: &WorkerFleet<'_>,
    state: &readiness::PodReadiness,
) -> Option<EventNote> {
    let last_reason =
        facts.status.conditions.iter().find(|one| one.type_ == READY).map_or("", |one| one.reason.as_str());
    let reported = [readiness::JOB_SUSPENDED, readiness::SERVER_LOST, readiness::COORDINATOR_LOST];
    if let Some(reason) = reported.into_iter().find(|reason| *reason == state.reason) {
        return (last_reason != reason).then(|| news(true, reason, &state.message));
    }
    if state.is_ready && last_reason == readiness::SERVER_LOST {
        return Some(news(false, "ServerBack", "the server is back with its rows"));
    }
    if state.is_ready && last_reason == readiness::COORDINATOR_LOST {
        return Some(news(false, "CoordinatorBack", "the coordinator is back and continues the run"));
    }
    match fleet {
        WorkerFleet::Lost(_) => {
            let (how, limit) = (fleet.loss_message().unwrap_or_default(), facts.spec.run_policy.backoff_limit);
            let note = format!("{how}; it restarts and the others wait for it (at most {limit} times each)");
            Some(news(true, "WorkerLost", &note))
        }
        WorkerFleet::Back => Some(news(false, "WorkerBack", "all workers are back and continue together")),
        WorkerFleet::Whole | WorkerFleet::Waiting(_) => {
            let is_new = facts.status.phase != Some(RunPhase::Running) && state.is_ready;
            is_new.then(|| news(false, "Running", "every role is ready"))
        }
    }
}

fn due(facts: &DecisionFacts<'_>) -> Duration {
    let (Some(seconds), Some(started)) = (facts.spec.run_policy.active_deadline_seconds, &facts.status.start_time)
    else {
        return Duration::MAX;
    };
    let end = started.0.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    elapsed_time(facts.now, end).max(Duration::from_secs(1))
}

/// Workers start once coordinator and servers are ready. A gang is scheduled whole, so its workers start at once.
fn stage(facts: &DecisionFacts<'_>) -> BuildStage {
    let observed = facts.observed;
    let servers = observed.ready_count(PodRole::Server) >= facts.present.embedding_servers.replicas;
    let ready = servers && observed.ready_count(PodRole::Coordinator) > 0;
    let is_gang = facts.spec.scheduling.gang.is_some();
    if is_gang || ready || observed.workers.is_some() { BuildStage::Everything } else { BuildStage::Servers }
}

/// Ends the job after a failure: another attempt would start with the same worker, fail alike, or is one too many.
fn end_failed(facts: &DecisionFacts<'_>, cause: AttemptFailure, reason: &'static str, why: &str) -> JobDecision {
    let note = format!("attempt {} failed: {}; {why}", cause.attempt, cause.message);
    let mut decision = end(facts, RunPhase::Failed, reason, note);
    decision.status.last_failure = Some(AttemptFailure { at: Some(Time(facts.now)), ..cause });
    decision
}

/// A worker of an earlier attempt that may still write to the run folder. Members made now would give up waiting for
/// it.
fn held_up_by(facts: &DecisionFacts<'_>) -> Option<String> {
    let others = RemovalScope::Others(facts.status.attempt);
    match facts.observed.workers_removal(others, facts.now) {
        _ if facts.observed.workers.is_some() => None,
        RemovalStep::Workers(targets) => targets.into_iter().next().map(|target| target.name),
        RemovalStep::Wait(pod) => Some(pod),
        RemovalStep::Members(_) | RemovalStep::Services | RemovalStep::Done => None,
    }
}

fn failed(facts: &DecisionFacts<'_>, cause: AttemptFailure, retryable: bool) -> JobDecision {
    let limit = facts.spec.run_policy.backoff_limit;
    if !retryable {
        let why = "another attempt would fail alike: docs/exit-codes.md says what to do";
        return end_failed(facts, cause, "PermanentFailure", why);
    }
    if facts.status.restarts >= limit {
        let why = format!("no attempt is left (runPolicy.backoffLimit = {limit})");
        return end_failed(facts, cause, "BackoffLimitExceeded", &why);
    }
    let note = format!("attempt {} failed: {}", cause.attempt, cause.message);
    let (restarts, number) = (facts.status.restarts + 1, facts.status.attempt + 1);
    let wait = pause(restarts).as_secs();
    let mut decision = record(facts, |status, facts| {
        status.restarts = restarts;
        status.last_failure = Some(AttemptFailure { at: Some(Time(facts.now)), ..cause });
        let message = format!("{note}; attempt {number} starts {wait} s later");
        enter(status, facts, number, RunPhase::Restarting, message);
    });
    decision.news = Some(news(true, "AttemptFailed", &note));
    decision
}

fn end(facts: &DecisionFacts<'_>, phase: RunPhase, reason: &'static str, note: String) -> JobDecision {
    let succeeded = phase == RunPhase::Succeeded;
    let mut decision = record(facts, |status, facts| {
        status.phase = Some(phase);
        status.completion_time = Some(Time(facts.now));
        status.message = Some(note.clone());
        status.roles = Some(readiness::role_counts(facts.present, facts.observed));
        status.progress = facts.progress.clone().or(status.progress.take());
        status.last_checkpoint = last_checkpoint(facts);
        let type_ = if succeeded { COMPLETE } else { FAILED };
        let mut conditions = StatusConditions::new(status, facts.generation, facts.now);
        conditions.set(type_, true, reason, note.clone()).set(READY, false, reason, note.clone());
    });
    decision.news = Some(news(!succeeded, reason, &note));
    decision
}

fn news(is_warning: bool, reason: &'static str, note: &str) -> EventNote {
    EventNote { is_warning, reason, note: note.to_owned() }
}

#[cfg(test)]
mod tests;
