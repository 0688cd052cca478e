//! What the coordinator answers when it is asked for the numbers of the spec, and what the status says of it.

use kube::Resource;
use tracing::{debug, info};
use zagros_protocol::control::ScaleRequest;
use zagros_protocol::{Refusal, RefusalKind};

use crate::conditions::{SCALED, StatusConditions};
use crate::context::JobReconciliation;
use crate::crd::{HybridJob, HybridJobStatus};
use crate::decide::{EventNote, SCALE_REFUSED};
use crate::error::Error;
use crate::names::RunAttempt;
use crate::reporting::{publish_event, record_status};

/// Asks for the numbers of `wanted` that are not 0. A refusal stands in the status until the spec changes. Everything
/// else is asked again with the next report of the coordinator.
pub(crate) async fn ask_for_numbers(
    look: &JobReconciliation<'_>,
    job: &mut HybridJob,
    attempt: &RunAttempt,
    wanted: ScaleRequest,
    mut next: HybridJobStatus,
) -> Result<HybridJobStatus, Error> {
    let credentials =
        look.with_memory(job, |memory| memory.access.clone()).map(|access| access.credentials).unwrap_or_default();
    let asked = (look.context.scaler)(attempt.clone(), credentials, wanted).await;
    match asked {
        Ok(()) => {
            let ScaleRequest { servers, workers } = wanted;
            info!(job = attempt.job, servers, workers, "the coordinator is to have other numbers; 0 is unchanged");
            look.with_memory(job, |memory| memory.ask_again());
            let changes =
                asked_numbers(&wanted).map(|(_, field, number, effect)| format!("{field} is {number}: {effect}"));
            let note = format!("{}, and the run goes on", changes.collect::<Vec<_>>().join("; "));
            publish_event(look, job, attempt.number, &EventNote { is_warning: false, reason: "Scaling", note }).await;
        }
        Err(refusal) if needs_a_person(&refusal) => {
            let numbers = asked_numbers(&wanted).map(|(members, _, number, _)| format!("{number} {members}"));
            let fields = asked_numbers(&wanted).map(|(_, field, ..)| field);
            let message = format!(
                "the coordinator does not admit {}: {}; correct {}",
                numbers.collect::<Vec<_>>().join(" and "),
                refusal.message,
                fields.collect::<Vec<_>>().join(" or ")
            );
            let is_news = !next.conditions.iter().any(|one| one.type_ == SCALED && one.message == message);
            let generation = job.meta().generation;
            StatusConditions::new(&mut next, generation, look.now()).set(SCALED, false, SCALE_REFUSED, message.clone());
            *job = record_status(look, job, next.clone()).await?;
            if is_news {
                let note = EventNote { is_warning: true, reason: SCALE_REFUSED, note: message };
                publish_event(look, job, attempt.number, &note).await;
            }
        }
        Err(refusal) => {
            debug!(job = attempt.job, %refusal, "the coordinator was not asked for other numbers")
        }
    }
    Ok(next)
}

/// Of each role whose number the request names: its members, its field of the spec, the number, and what follows.
fn asked_numbers(wanted: &ScaleRequest) -> impl Iterator<Item = (&'static str, &'static str, u32, &'static str)> {
    let (servers, moves) = ("spec.embeddingServers.replicas", "rows move between the servers");
    let (workers, joins) = ("spec.denseWorkers.replicas", "workers join or leave between two steps");
    let all =
        [("embedding servers", servers, wanted.servers, moves), ("dense workers", workers, wanted.workers, joins)];
    all.into_iter().filter(|(_, _, number, _)| *number > 0)
}

/// Whether asking again would be answered alike.
fn needs_a_person(refusal: &Refusal) -> bool {
    matches!(refusal.kind, RefusalKind::Invalid | RefusalKind::Forbidden | RefusalKind::Unauthenticated)
}
