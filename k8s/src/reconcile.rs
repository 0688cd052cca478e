//! One look at one job: dereference → validate → observe → decide → record or act → clean up. Each step can be repeated
//! without harm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use tracing::warn;

use crate::act::carry_out_decision;
use crate::build::JOB_KEY;
use crate::cache::JobKey;
use crate::cluster::JobClient;
use crate::conditions::{READY, StatusConditions, VALID};
use crate::context::{JobReconciliation, OperatorContext, recorded_status};
use crate::crd::{HybridJob, RowsRecovery, RunPhase, RunProgress};
use crate::decide::{DecisionFacts, EventNote, decide};
use crate::error::{Error, ErrorRemedy};
use crate::host_access::refuse_host_access;
use crate::memory::{CheckedSpec, JobMemory};
use crate::names::RunAttempt;
use crate::observe::ObservedObjects;
use crate::removal::{end_deleted_job, release_finalizer, take_step, vacate_namespace};
use crate::removal_order::RemovalScope;
use crate::reporting::{USER_INTERVAL, publish_event, record_status, report_error, report_unreadable};
use crate::scale::{ServerScale, WorkerScale};
use crate::spec_hash::SpecHash;
use crate::validate::{JobText, SpecProblem, ValidJob, problem, validate_job};

/// The most steps of one look. After a recorded status the next step follows at once.
const MOST_STEPS: usize = 4;

/// A problem that the user must solve is not an error: the status reports it.
pub async fn reconcile(
    guarded: Arc<DeserializeGuard<HybridJob>>,
    context: Arc<OperatorContext>,
) -> Result<Action, Error> {
    let started = Instant::now();
    let (Some(name), Some(namespace)) = (guarded.meta().name.clone(), guarded.meta().namespace.clone()) else {
        return Err(Error::Unnamed);
    };
    let cluster = JobClient::new(context.client.clone(), &namespace, &name);
    let look = JobReconciliation { key: JobKey { namespace, name }, cluster, context: &context };
    if let Some(left) = look.with_memory_of_name(|memory| memory.pause_left(look.now())) {
        return Ok(Action::requeue(left));
    }
    let result = match &guarded.0 {
        Ok(_) => look_at(&look).await,
        Err(invalid) => report_unreadable(&look, &invalid.error).await,
    };
    context.metrics.seconds.observe(started.elapsed().as_secs_f64());
    let (outcome, result) = match result {
        Ok(action) => ("done", Ok(action)),
        Err(error) => match error.remedy() {
            ErrorRemedy::Again => {
                ("retried", Ok(Action::requeue(look.with_memory_of_name(|memory| memory.note_failure(look.now())))))
            }
            ErrorRemedy::Later => ("retried", Err(error)),
            ErrorRemedy::Report(reason) => ("reported", report_error(&look, reason, error).await),
        },
    };
    context.metrics.reconciles.with_label_values(&[outcome]).inc();
    if result.is_ok() && outcome != "retried" {
        look.with_memory_of_name(JobMemory::note_success);
    }
    result
}

#[must_use]
pub fn error_policy(guarded: Arc<DeserializeGuard<HybridJob>>, error: &Error, context: Arc<OperatorContext>) -> Action {
    let key = JobKey { namespace: guarded.namespace().unwrap_or_default(), name: guarded.name_any() };
    let pause = context.memory.with_job(&key, None, |memory| memory.note_failure((context.clock)()));
    warn!(job = format!("{}/{}", key.namespace, key.name), %error, again_in = ?pause, "reconciling failed");
    Action::requeue(pause)
}

async fn look_at(look: &JobReconciliation<'_>) -> Result<Action, Error> {
    let Some(mut job) = look.cluster.read_job().await? else {
        look.context.memory.forget_job(&look.key);
        return Ok(Action::await_change());
    };
    let gang = job.spec.scheduling.gang.as_ref().map(|gang| gang.scheduler);
    let look =
        JobReconciliation { key: look.key.clone(), cluster: look.cluster.with_gang(gang), context: look.context };
    if job.meta().deletion_timestamp.is_some() {
        return end_deleted_job(&look, &job).await;
    }
    look.context.caches.wait_until_listed().await?;
    for _ in 0..MOST_STEPS {
        if let Some(action) = step(&look, &mut job).await? {
            return Ok(action);
        }
    }
    Ok(Action::requeue(Duration::ZERO))
}

/// Takes one step; `None` when the next is due at once.
async fn step(look: &JobReconciliation<'_>, job: &mut HybridJob) -> Result<Option<Action>, Error> {
    let attempt = attempt(job)?;
    let mut observed = ObservedObjects::new(attempt.number, &look.context.caches.objects_of_job(&look.key));
    if observed.has_leaving_workers() && look.cluster.is_namespace_deleted().await? {
        return vacate_namespace(look, job, &observed).await.map(Some);
    }
    let valid = match text(look, job, &attempt).await? {
        Some(text) => checked(look, job, text, &attempt),
        None => Err(vec![missing_config(job)]),
    };
    let is_over = recorded_status(job).phase.is_some_and(RunPhase::is_final);
    let valid = match valid {
        Err(problems) if !is_over => return refuse_spec(look, job, &observed, &problems).await.map(Some),
        valid => valid.ok(),
    };
    let report = progress(look, job, valid.as_ref(), &attempt, &observed).await;
    let report = observed.end_report.clone().or(report);
    let (servers, workers) = scales(job, valid.as_ref(), report.as_ref());
    let valid = valid.map(|valid| valid.with_numbers(servers.pod_count(), workers.pod_count()));
    let is_durable = valid.as_ref().is_some_and(ValidJob::is_durable);
    let decision = decide(&DecisionFacts {
        attempt: &attempt,
        spec: &job.spec,
        present: &job.spec.clone().with_numbers(servers.staying_count(), workers.pod_count()),
        servers: &servers,
        workers: &workers,
        generation: job.meta().generation,
        status: &recorded_status(job),
        next: &SpecHash::new(&job.spec),
        running: &SpecHash::during_attempt(&job.spec, servers.started, workers.started),
        recovery: if is_durable { RowsRecovery::Log } else { RowsRecovery::Checkpoint },
        observed: &observed,
        rejoins: valid.as_ref().is_some_and(ValidJob::workers_rejoin),
        progress: report.clone(),
        now: look.now(),
    });
    observed.server_facts.alive = report.map(|report| report.servers);
    let action = carry_out_decision(look, job, &attempt, valid.as_ref(), &observed, decision).await?;
    if action.is_some() {
        release_finalizer(look, job, &observed).await?;
    }
    Ok(action)
}

/// Checks a spec. One generation has the same problems with the same job file at each look, so it is checked once.
fn checked(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    text: JobText,
    attempt: &RunAttempt,
) -> Result<ValidJob, Vec<SpecProblem>> {
    let key = CheckedSpec { generation: job.meta().generation, attempt: attempt.number, text };
    if let Some(known) = look.with_memory(job, |memory| memory.known_check(&key)) {
        return known;
    }
    look.context.metrics.checks.inc();
    let valid = validate_job(job, &key.text, attempt);
    let valid = refuse_host_access(&job.spec, look.context.allows_host_access, valid);
    look.with_memory(job, |memory| memory.checked = Some((key, valid.clone())));
    valid
}

/// That of the attempt once it has started, before that the one that the spec names. `None` when it is missing.
async fn text(look: &JobReconciliation<'_>, job: &HybridJob, attempt: &RunAttempt) -> Result<Option<JobText>, Error> {
    if let Some(text) = look.with_memory(job, |memory| memory.known_config(attempt.number)) {
        return Ok(Some(JobText::OfAttempt(text)));
    }
    if let Some(text) = look.cluster.read_config(&attempt.config_name(), JOB_KEY).await? {
        look.with_memory(job, |memory| memory.keep_config(attempt.number, &text));
        return Ok(Some(JobText::OfAttempt(text)));
    }
    let text = match (&job.spec.job.inline, &job.spec.job.config_map) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(place)) => look.cluster.read_config(&place.name, &place.key).await?,
        (None, None) => Some(String::new()),
    };
    Ok(text.map(JobText::OfSpec))
}

/// The numbers of embedding servers and of dense workers. `report` is newer than the one that the status keeps.
fn scales(job: &HybridJob, valid: Option<&ValidJob>, report: Option<&RunProgress>) -> (ServerScale, WorkerScale) {
    let (servers, workers) = (job.spec.embedding_servers.replicas, job.spec.dense_workers.replicas);
    let recorded = recorded_status(job).progress;
    let known = report.or(recorded.as_ref()).and_then(|progress| progress.scaling.clone());
    let started = valid.map_or((servers, workers), ValidJob::started_numbers);
    let scale = ServerScale { wanted: servers, started: started.0, known: known.clone() };
    (scale, WorkerScale { wanted: workers, started: started.1, known })
}

fn attempt(job: &HybridJob) -> Result<RunAttempt, Error> {
    let namespace = job.namespace().ok_or(Error::Unnamed)?;
    Ok(RunAttempt { job: job.name_any(), namespace, number: recorded_status(job).attempt.max(1) })
}

/// The coordinator's report, at intervals: progress changes all the time, and each report is a write of the status.
async fn progress(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    valid: Option<&ValidJob>,
    attempt: &RunAttempt,
    observed: &ObservedObjects,
) -> Option<RunProgress> {
    let is_up = observed.coordinator.as_ref().is_some_and(|one| one.ready > 0) && recorded_status(job).attempt > 0;
    let token = look.with_memory(job, |memory| memory.access.clone()).and_then(|access| access.token);
    // A new operator reads the token when it applies the objects of the run.
    let may_ask = token.is_some() || valid.is_some_and(|valid| !valid.asks_for_proof());
    let asks = is_up && may_ask && look.with_memory(job, |memory| memory.take_turn_to_ask(attempt.number, look.now()));
    if asks { (look.context.asker)(attempt.clone(), token).await } else { None }
}

fn missing_config(job: &HybridJob) -> SpecProblem {
    let place = job.spec.job.config_map.as_ref();
    let (name, key) = place.map_or(("", ""), |place| (place.name.as_str(), place.key.as_str()));
    let namespace = job.namespace().unwrap_or_default();
    let message = format!("no ConfigMap {name} with key {key} in namespace {namespace}: make it, or correct the name");
    problem("spec.job.configMap", message)
}

/// The spec cannot be carried out. The status says why, and the operator waits. A running run goes on.
async fn refuse_spec(
    look: &JobReconciliation<'_>,
    job: &mut HybridJob,
    observed: &ObservedObjects,
    problems: &[SpecProblem],
) -> Result<Action, Error> {
    let message = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let mut next = recorded_status(job);
    let is_news = !next.conditions.iter().any(|one| one.type_ == VALID && one.message == message);
    next.observed_generation = job.meta().generation;
    next.message = Some(message.clone());
    if observed.coordinator.is_none() {
        next.phase = Some(RunPhase::Invalid);
    }
    StatusConditions::new(&mut next, job.meta().generation, look.now())
        .set(VALID, false, "InvalidSpec", message.clone())
        .set(READY, false, "InvalidSpec", "the spec cannot be carried out");
    let number = next.attempt;
    *job = record_status(look, job, next).await?;
    if observed.coordinator.is_none() {
        let scope = RemovalScope::Others(number);
        take_step(look, job, observed.removal_step(scope, look.now()), scope).await?;
    }
    if is_news {
        publish_event(look, job, number, &EventNote { is_warning: true, reason: "InvalidSpec", note: message }).await;
    }
    release_finalizer(look, job, observed).await?;
    Ok(Action::requeue(USER_INTERVAL))
}
