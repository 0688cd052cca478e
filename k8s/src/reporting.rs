//! Reports for people: the status, and Events.

use std::time::Duration;

use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event as KubeEvent, EventType};
use serde_json::json;
use tracing::{debug, warn};

use crate::conditions::{RECONCILED, VALID};
use crate::context::JobReconciliation;
use crate::crd::{HybridJob, HybridJobStatus, JobCondition, RunPhase};
use crate::error::Error;
use crate::step::EventNote;

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
