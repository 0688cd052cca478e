//! One look at one job: read it, observe its run, plan, and execute the plan. Each step can be repeated without harm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use tracing::warn;

use crate::act::{execute_plan, report_error, report_unreadable};
use crate::build::JOB_KEY;
use crate::cache::JobKey;
use crate::cluster::JobClient;
use crate::context::{JobReconciliation, OperatorContext};
use crate::crd::{HybridJob, RunProgress};
use crate::error::{Error, ErrorRemedy};
use crate::memory::{CheckedSpec, JobMemory, elapsed_time};
use crate::names::{PodRole, RunAttempt, is_held};
use crate::observe::ObservedObjects;
use crate::plan::{ObservedJob, plan_steps};
use crate::step::{LATE, PlanStep};
use crate::validate::{JobText, SpecProblem, ValidJob, problem, refuse_host_access, validate_job};

/// The most plans of one look. After a recorded status the next one follows at once.
const MOST_PLANS: usize = 4;

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
    let deleted = job.meta().deletion_timestamp.as_ref().map(|time| time.0);
    if deleted.is_some() && !is_held(&job) {
        return Ok(Action::await_change());
    }
    for _ in 0..MOST_PLANS {
        let attempt = RunAttempt::recorded(&job);
        let plan = observe(look, &job, &attempt).await.map(|seen| plan_steps(&job, &seen));
        let executed = match plan {
            Ok(plan) => execute_plan(look, &mut job, &attempt, plan).await,
            Err(error) => Err(error),
        };
        let is_late = deleted.is_some_and(|deleted| elapsed_time(deleted, look.now()) >= LATE);
        match executed {
            Ok(Some(action)) => return Ok(action),
            Ok(None) => {}
            // A right that the operator lost does not hold a deleted job.
            Err(error)
                if deleted.is_some()
                    && (error.needs_a_person() || is_late && matches!(error, Error::Unlisted { .. })) =>
            {
                warn!(job = look.key.name, %error, "job is deleted; Kubernetes ends what is left, in any order");
                let release = vec![PlanStep::Hold(false), PlanStep::Wait("the HybridJob is deleted", None)];
                let released = execute_plan(look, &mut job, &attempt, release).await?;
                return Ok(released.unwrap_or_else(Action::await_change));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Action::requeue(Duration::ZERO))
}

/// Reads what the caches do not have: the job file, the coordinator's report, whether the namespace is being deleted.
async fn observe(look: &JobReconciliation<'_>, job: &HybridJob, attempt: &RunAttempt) -> Result<ObservedJob, Error> {
    look.context.caches.wait_until_listed().await?;
    let objects = look.context.caches.objects_of_job(&look.key);
    let run = ObservedObjects::new(attempt.number, &objects);
    let is_deleted = job.meta().deletion_timestamp.is_some();
    let is_namespace_deleted = !is_deleted && run.has_leaving_workers() && look.cluster.is_namespace_deleted().await?;
    let valid = if is_deleted || is_namespace_deleted {
        Err(Vec::new())
    } else {
        match read_text(look, job, attempt).await? {
            Some(text) => check_spec(look, job, text, attempt),
            None => Err(vec![missing_config(job)]),
        }
    };
    let report = match (&run.end_report, &valid) {
        (Some(report), _) => Some(report.clone()),
        (None, Ok(valid)) => ask_progress(look, job, valid, attempt, &run).await,
        (None, Err(_)) => None,
    };
    let now = look.now();
    Ok(look.with_memory(job, |memory| {
        let refusal = memory.scale_refusal.as_ref().filter(|(generation, _)| *generation == job.metadata.generation);
        let scale_refusal = refusal.map(|(_, words)| words.clone());
        let (next_ask, requests) = (memory.next_ask(now), memory.requests.clone());
        ObservedJob { valid, run, objects, report, next_ask, scale_refusal, requests, is_namespace_deleted, now }
    }))
}

/// Checks a spec. One generation has the same problems with the same job file at each look, so it is checked once.
fn check_spec(
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
async fn read_text(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    attempt: &RunAttempt,
) -> Result<Option<JobText>, Error> {
    if let Some(text) = look.with_memory(job, |memory| memory.known_text(attempt.number)) {
        return Ok(Some(text));
    }
    if let Some(text) = look.cluster.read_config(&attempt.config_name(), JOB_KEY).await? {
        return Ok(Some(JobText::OfAttempt(text)));
    }
    let text = match (&job.spec.job.inline, &job.spec.job.config_map) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(place)) => look.cluster.read_config(&place.name, &place.key).await?,
        (None, None) => Some(String::new()),
    };
    Ok(text.map(JobText::OfSpec))
}

/// The coordinator's report, at intervals: progress changes all the time, and each report is a write of the status.
async fn ask_progress(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    valid: &ValidJob,
    attempt: &RunAttempt,
    run: &ObservedObjects,
) -> Option<RunProgress> {
    let has_ended = run.coordinator.as_ref().is_none_or(|coordinator| coordinator.end.is_some());
    let is_up = !has_ended && run.ready_count(PodRole::Coordinator) > 0;
    let has_started = job.status.as_ref().is_some_and(|status| status.attempt > 0);
    let token = look.with_memory(job, |memory| memory.access.clone()).and_then(|access| access.token);
    // A new operator reads the token when it applies the objects of the run.
    let may_ask = is_up && has_started && (token.is_some() || !valid.asks_for_proof());
    if may_ask && look.with_memory(job, |memory| memory.take_turn_to_ask(attempt.number, look.now())) {
        return (look.context.asker)(attempt.clone(), token).await;
    }
    None
}

fn missing_config(job: &HybridJob) -> SpecProblem {
    let place = job.spec.job.config_map.as_ref();
    let (name, key) = place.map_or(("", ""), |place| (place.name.as_str(), place.key.as_str()));
    let namespace = job.namespace().unwrap_or_default();
    let message = format!("no ConfigMap {name} with key {key} in namespace {namespace}: make it, or correct the name");
    problem("spec.job.configMap", message)
}
