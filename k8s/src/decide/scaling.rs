//! What a change of the numbers of embedding servers and dense workers asks for, and what the status says about it.

use zagros_protocol::control::ScaleRequest;

use super::{DecisionFacts, EventNote};
use crate::conditions::{SCALED, StatusConditions};
use crate::crd::{ConditionStatus, HybridJobStatus, JobCondition};
use crate::scale::ScaleStep;

const DONE: &str = "Done";
const SCALING: &str = "Scaling";
/// Reason of a run whose coordinator refuses the wanted number.
pub(crate) const REFUSED: &str = "ScaleRefused";

pub(super) fn step(facts: &DecisionFacts<'_>) -> ScaleStep {
    let heard = facts.progress.as_ref();
    facts.servers.next_step(heard).combine(facts.workers.next_step(heard))
}

/// What the coordinator is asked for: only numbers that it does not want already.
pub(super) fn request(facts: &DecisionFacts<'_>) -> ScaleRequest {
    let heard = facts.progress.as_ref();
    let asks = |step: ScaleStep, wanted: i32| if step == ScaleStep::Ask { wanted.unsigned_abs() } else { 0 };
    let servers = asks(facts.servers.next_step(heard), facts.servers.wanted);
    ScaleRequest { servers, workers: asks(facts.workers.next_step(heard), facts.workers.wanted) }
}

fn numbers(facts: &DecisionFacts<'_>) -> String {
    format!("{} embedding servers and {} dense workers", facts.servers.wanted, facts.workers.wanted)
}

fn condition(status: &HybridJobStatus) -> Option<&JobCondition> {
    status.conditions.iter().find(|one| one.type_ == SCALED)
}

/// An attempt starts with the number of the spec.
pub(super) fn forget(status: &mut HybridJobStatus) {
    status.conditions.retain(|one| one.type_ != SCALED);
}

/// Records how far a change is. A run whose number does not change has no such condition.
pub(super) fn record(status: &mut HybridJobStatus, facts: &DecisionFacts<'_>, step: &ScaleStep) {
    let previous = condition(status);
    // The refusal of this spec stays until the coordinator admits the number.
    let is_refused = previous.is_some_and(|one| one.reason == REFUSED && one.observed_generation == facts.generation);
    let (holds, reason, message) = match step {
        ScaleStep::Settled if previous.is_none() => return,
        ScaleStep::Ask | ScaleStep::Wait if is_refused => return,
        ScaleStep::Settled => (true, DONE, format!("the run has {}", numbers(facts))),
        ScaleStep::Ask | ScaleStep::Wait => {
            (false, SCALING, format!("the coordinator is asked for {} once the run trains", numbers(facts)))
        }
        ScaleStep::Moving(text) => (false, SCALING, text.clone()),
    };
    StatusConditions::new(status, facts.generation, facts.now).set(SCALED, holds, reason, message);
}

pub(super) fn news(facts: &DecisionFacts<'_>, step: &ScaleStep) -> Option<EventNote> {
    let was_open = condition(facts.status).is_some_and(|one| one.status == ConditionStatus::False);
    let text = facts.servers.known.as_ref().map_or("", |known| known.text.as_str());
    let note = format!("the run has the wanted number: {text}");
    (was_open && *step == ScaleStep::Settled).then_some(EventNote { is_warning: false, reason: "Scaled", note })
}
