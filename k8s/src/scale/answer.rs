//! What the coordinator answers when it is asked for the number of the spec, and what the status says of it.

use kube::Resource;
use tracing::{debug, info};
use zagros_protocol::{Refusal, RefusalKind};

use crate::conditions::{Conditions, SCALED};
use crate::context::Reconciliation;
use crate::crd::{HybridJob, HybridJobStatus};
use crate::decide::{EventNote, SCALE_REFUSED};
use crate::error::Error;
use crate::names::Attempt;
use crate::reporting::{publish, record};

/// Asks for the number of the spec. A refusal stands in the status until the spec changes. Everything else is asked again with
/// the next report of the coordinator.
pub(crate) async fn ask_for_servers(
    look: &Reconciliation<'_>,
    job: &mut HybridJob,
    attempt: &Attempt,
    mut next: HybridJobStatus,
) -> Result<HybridJobStatus, Error> {
    let wanted = job.spec.embedding_servers.replicas;
    let credentials = look.memory(job, |memory| memory.access()).map(|access| access.credentials).unwrap_or_default();
    let asked = (look.context.scaler)(attempt.clone(), credentials, wanted.unsigned_abs()).await;
    match asked {
        Ok(()) => {
            info!(
                job = attempt.job,
                servers = wanted,
                "the coordinator is to have another number of embedding servers"
            );
            look.memory(job, |memory| memory.ask_again());
            let note = format!(
                "spec.embeddingServers.replicas is {wanted}: rows move between the servers, and the run goes on"
            );
            publish(look, job, attempt.number, &EventNote { is_warning: false, reason: "Scaling", note }).await;
        }
        Err(refusal) if needs_a_person(&refusal) => {
            let message = format!(
                "the coordinator does not admit {wanted} embedding servers: {}; correct spec.embeddingServers.replicas",
                refusal.message
            );
            let is_news = !next.conditions.iter().any(|one| one.type_ == SCALED && one.message == message);
            let generation = job.meta().generation;
            Conditions::new(&mut next, generation, look.now()).set(SCALED, false, SCALE_REFUSED, message.clone());
            *job = record(look, job, next.clone()).await?;
            if is_news {
                let note = EventNote { is_warning: true, reason: SCALE_REFUSED, note: message };
                publish(look, job, attempt.number, &note).await;
            }
        }
        Err(refusal) => {
            debug!(job = attempt.job, %refusal, "the coordinator was not asked for another number of servers")
        }
    }
    Ok(next)
}

/// Whether asking again would be answered alike.
fn needs_a_person(refusal: &Refusal) -> bool {
    matches!(refusal.kind, RefusalKind::Invalid | RefusalKind::Forbidden | RefusalKind::Unauthenticated)
}
