//! Reports for people: the status, and Events.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event as KubeEvent, EventType};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tracing::{debug, warn};

use crate::conditions::{RECONCILED, StatusConditions, VALID};
use crate::context::{JobReconciliation, recorded_status};
use crate::crd::{ConditionStatus, HybridJob, HybridJobStatus, RunPhase};
use crate::decide::EventNote;
use crate::error::Error;

/// The objects that the spec of a waiting job names may appear without an event.
pub(crate) const USER_INTERVAL: Duration = Duration::from_secs(15);

/// Writes the status if it changed. Returns the job as it is then. A refusal stays in the message until the work is done.
pub(crate) async fn record_status(
    look: &JobReconciliation<'_>,
    job: &HybridJob,
    mut next: HybridJobStatus,
) -> Result<HybridJob, Error> {
    if let Some(refusal) = refusal_message(&next) {
        next.message = Some(refusal.to_owned());
    }
    if job.status.as_ref() == Some(&next) {
        return Ok(job.clone());
    }
    let mut object = job.clone();
    object.status = Some(next);
    look.cluster.record_status(&object).await
}

pub(crate) fn refusal_message(status: &HybridJobStatus) -> Option<&str> {
    let is_refusal = |one: &&crate::crd::JobCondition| one.type_ == RECONCILED && one.status == ConditionStatus::False;
    status.conditions.iter().find(is_refusal).map(|one| one.message.as_str())
}

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
    status.message = Some(message.clone());
    StatusConditions::new(&mut status, object.metadata.generation, look.now()).set(
        VALID,
        false,
        "InvalidSpec",
        message,
    );
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
    let Ok(Some(job)) = look.cluster.read_job().await else { return Err(error) };
    let mut next = recorded_status(&job);
    let is_news = !next.conditions.iter().any(|one| one.type_ == RECONCILED && one.message == message);
    StatusConditions::new(&mut next, job.meta().generation, look.now()).set(RECONCILED, false, reason, message.clone());
    let number = next.attempt;
    // Without the permission to write a status, the log is the only place.
    if record_status(look, &job, next).await.is_err() {
        return Err(error);
    }
    if is_news {
        warn!(job = job.name_any(), reason, error = message, "a person has to act");
        publish_event(look, &job, number, &EventNote { is_warning: true, reason, note: message }).await;
    }
    let again = look.with_memory(&job, |memory| memory.next_retry(look.now()));
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
