//! A spec that cannot be carried out.

use kube::Resource;
use kube::runtime::controller::Action;

use crate::act::{carry_out, release_finalizer};
use crate::conditions::{READY, StatusConditions, VALID};
use crate::context::{JobReconciliation, recorded_status};
use crate::crd::{HybridJob, RunPhase};
use crate::decide::EventNote;
use crate::error::Error;
use crate::observe::ObservedObjects;
use crate::removal::RemovalScope;
use crate::reporting::{USER_INTERVAL, publish_event, record_status};
use crate::validate::SpecProblem;

/// The spec cannot be carried out. The status says why, and the operator waits. A running run goes on.
pub(crate) async fn refuse_spec(
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
        carry_out(look, job, observed.removal_step(scope, look.now()), scope).await?;
    }
    if is_news {
        publish_event(look, job, number, &EventNote { is_warning: true, reason: "InvalidSpec", note: message }).await;
    }
    release_finalizer(look, job, observed).await?;
    Ok(Action::requeue(USER_INTERVAL))
}
