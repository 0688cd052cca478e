//! Executes plans, step by step. The first step that fails ends a plan; the next one is made from what is then observed. Reports to
//! people, by the status and by Events.

use std::time::Duration;

use futures::future::join_all;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event as KubeEvent, EventType};
use serde_json::json;
use tracing::{debug, info, warn};
use zagros_protocol::control::ScaleRequest;
use zagros_protocol::{Refusal, RefusalKind};

use crate::context::JobReconciliation;
use crate::crd::{HybridJob, HybridJobStatus, JobCondition, RECONCILED, RunPhase, VALID};
use crate::error::Error;
use crate::names::RunAttempt;
use crate::observe::RemovalScope;
use crate::step::{EventNote, NO_CONTENT, ObjectDeletion, PlanStep, SECRET_TITLE, SOON};

/// `job` is then as the steps have left it. `None` when the next plan is due at once.
pub(crate) async fn execute_plan(
    look: &JobReconciliation<'_>,
    job: &mut HybridJob,
    attempt: &RunAttempt,
    plan: Vec<PlanStep>,
) -> Result<Option<Action>, Error> {
    let cluster = &look.cluster;
    for step in plan {
        match step {
            PlanStep::SetStatus(status) => set_status(look, job, *status).await?,
            PlanStep::Publish(event) => publish_event(look, job, attempt.number, &event).await,
            PlanStep::Hold(is_held) => hold(look, job, is_held).await?,
            PlanStep::MakeSecret => {
                let secret = async {
                    let access = cluster.run_secret(job).await?;
                    look.with_memory(job, |memory| memory.access = Some(access));
                    Ok(None)
                };
                request(look, job, SECRET_TITLE.to_owned(), NO_CONTENT, secret).await?;
            }
            PlanStep::Apply(manifests) => {
                let applied = manifests.iter().map(|manifest| {
                    request(look, job, manifest.title(), manifest.content_hash(), cluster.apply(manifest))
                });
                join_all(applied).await.into_iter().collect::<Result<(), Error>>()?;
            }
            PlanStep::ConfirmNoWorkers(scope) => {
                if cluster.has_workers(scope, look.now()).await? {
                    return Ok(Some(Action::requeue(SOON)));
                }
            }
            PlanStep::Suspend(name) => {
                let suspended = async { cluster.suspend(&name).await.map(|()| None) };
                request(look, job, format!("suspension of {name}"), NO_CONTENT, suspended).await?;
            }
            PlanStep::Delete(deletion) => {
                let deleted = async { cluster.delete(&deletion).await.map(|()| None) };
                request(look, job, deletion.title(&attempt.job), NO_CONTENT, deleted).await?;
                if matches!(deletion, ObjectDeletion::Attempts(RemovalScope::All, _)) {
                    look.with_memory(job, |memory| memory.forget_applied());
                }
            }
            PlanStep::GiveUp(pod) => cluster.give_up(&pod).await?,
            PlanStep::Scale(wanted, admitted) => ask_for_numbers(look, job, attempt, wanted, &admitted).await,
            PlanStep::DeleteJob => cluster.delete_job(job).await?,
            PlanStep::Wait(why, pause) => {
                debug!(job = attempt.job, why, pause = ?pause, "waits");
                return Ok(Some(pause.map_or_else(Action::await_change, Action::requeue)));
            }
        }
    }
    Ok(None)
}

/// Makes a request, unless it was refused a short time ago. What becomes of it is remembered.
async fn request(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    title: String,
    hash: u64,
    answer: impl Future<Output = Result<Option<i64>, Error>>,
) -> Result<(), Error> {
    let now = look.now();
    if let Some(error) = look.with_memory(job, |memory| memory.requests.refusal(&title, hash, now)) {
        return Err(error);
    }
    let answer = answer.await;
    look.with_memory(job, |memory| memory.requests.note(&title, hash, &answer, now));
    answer.map(drop)
}

async fn set_status(look: &JobReconciliation<'_>, job: &mut HybridJob, status: HybridJobStatus) -> Result<(), Error> {
    let recorded = job.status.as_ref().and_then(|status| status.last_failure.as_ref());
    let is_failure = status.last_failure.as_ref() != recorded;
    let object = HybridJob { status: Some(status), ..job.clone() };
    match look.cluster.record_status(&object).await {
        Ok(recorded) => *job = recorded,
        // The end of a deleted job does not depend on what its status says.
        Err(error) if job.metadata.deletion_timestamp.is_some() => {
            debug!(job = look.key.name, %error, "the status of a deleted job was not recorded");
        }
        Err(error) => return Err(error),
    }
    look.context.metrics.failed_attempts.inc_by(u64::from(is_failure));
    Ok(())
}

async fn hold(look: &JobReconciliation<'_>, job: &mut HybridJob, is_held: bool) -> Result<(), Error> {
    match look.cluster.set_finalizer(job, is_held).await {
        Ok(changed) => *job = changed,
        Err(error) if error.is_missing() && !is_held => {}
        Err(error) => return Err(error),
    }
    if !is_held && job.metadata.deletion_timestamp.is_some() {
        info!(job = look.key.name, "job is deleted; its workers are not waited for any more");
        look.context.memory.forget_job(&look.key);
    }
    Ok(())
}

/// Asks for the numbers of `wanted` that are not 0. A refusal stands until the spec changes. Everything else is asked again
/// with the next report of the coordinator.
async fn ask_for_numbers(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    attempt: &RunAttempt,
    wanted: ScaleRequest,
    admitted: &EventNote,
) {
    let access = look.with_memory(job, |memory| memory.access.clone()).unwrap_or_default();
    match (look.context.scaler)(attempt.clone(), access.credentials, wanted).await {
        Ok(()) => {
            look.with_memory(job, |memory| {
                memory.scale_refusal = None;
                memory.ask_again();
            });
            publish_event(look, job, attempt.number, admitted).await;
        }
        Err(refusal) if needs_a_person(&refusal) => {
            let refused = (job.metadata.generation, refusal.message);
            look.with_memory(job, |memory| memory.scale_refusal = Some(refused));
        }
        Err(refusal) => debug!(job = attempt.job, %refusal, "the coordinator was not asked for other numbers"),
    }
}

/// Whether asking again would be answered alike.
fn needs_a_person(refusal: &Refusal) -> bool {
    matches!(refusal.kind, RefusalKind::Invalid | RefusalKind::Forbidden | RefusalKind::Unauthenticated)
}

/// The objects that the spec of a waiting job names may appear without an event.
const USER_INTERVAL: Duration = Duration::from_secs(15);

/// The object cannot be read: an older definition admitted it, or it was written past the definition.
pub(crate) async fn report_unreadable(look: &JobReconciliation<'_>, error: &str) -> Result<Action, Error> {
    let (name, jobs) = (&look.key.name, look.cluster.untyped_jobs());
    let read = jobs.get_opt(name).await.map_err(Error::failed_to(format!("read HybridJob {name}")))?;
    let Some(object) = read else { return Ok(Action::await_change()) };
    let mut status: HybridJobStatus = serde_json::from_value(object.data["status"].clone()).unwrap_or_default();
    let message = format!("the object cannot be read: {error}; correct it, or apply k8s/crd again");
    if status.message.as_ref() == Some(&message) {
        return Ok(Action::requeue(USER_INTERVAL));
    }
    warn!(job = name, error, "job cannot be read");
    status.phase = Some(RunPhase::Invalid);
    let generation = object.metadata.generation;
    status.set_condition(JobCondition::new(VALID, false, "InvalidSpec", &message, generation, look.now()));
    status.message = Some(message);
    let patch = Patch::Merge(json!({ "status": status }));
    let patched = jobs.patch_status(name, &PatchParams::default(), &patch).await;
    patched.map_err(Error::failed_to(format!("record the status of HybridJob {name}")))?;
    Ok(Action::requeue(USER_INTERVAL))
}

/// A person has to act. The status reports the error once. The operator tries again after a pause that grows.
pub(crate) async fn report_error(
    look: &JobReconciliation<'_>,
    reason: &'static str,
    error: Error,
) -> Result<Action, Error> {
    let message = error.to_string();
    let Ok(Some(mut job)) = look.cluster.read_job().await else { return Err(error) };
    let recorded = job.status.clone().unwrap_or_default();
    let is_news = recorded.condition(RECONCILED).is_none_or(|one| one.message != message);
    let mut status = recorded.clone();
    let generation = job.metadata.generation;
    status.set_condition(JobCondition::new(RECONCILED, false, reason, &message, generation, look.now()));
    status.message = Some(message.clone());
    if status != recorded {
        job.status = Some(status);
        // Without the permission to write a status, the log is the only place.
        job = look.cluster.record_status(&job).await.map_err(|_| error)?;
    }
    if is_news {
        warn!(job = look.key.name, reason, error = message, "a person has to act");
        publish_event(look, &job, recorded.attempt, &EventNote::warning_note(reason, message)).await;
    }
    let again = look.with_memory(&job, |memory| memory.requests.next_retry(look.now()));
    Ok(Action::requeue(again.unwrap_or(USER_INTERVAL)))
}

/// Publishes an Event. A failure is only logged: the status says the same.
pub(crate) async fn publish_event(look: &JobReconciliation<'_>, job: &HybridJob, attempt: i32, news: &EventNote) {
    const LONGEST: usize = 1000;
    let event = KubeEvent {
        type_: if news.is_warning { EventType::Warning } else { EventType::Normal },
        reason: news.reason.to_owned(),
        note: Some(news.note.chars().take(LONGEST).collect()),
        action: format!("Attempt{attempt}"),
        secondary: None,
    };
    if let Err(error) = look.context.recorder.publish(&event, &job.object_ref(&())).await {
        debug!(%error, reason = news.reason, "event was not published");
    }
}
