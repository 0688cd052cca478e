//! Findings about a scale request: the wanted servers or workers, and what the run waits for. Training goes on meanwhile.

use crate::finding::{Finding, FindingKind, Severity};
use crate::observation::{Observation, ObservedMoves};
use crate::words::join_list;

pub(crate) fn missing_workers(observation: &Observation) -> Option<Finding> {
    let missing: Vec<String> = observation.missing_workers().iter().map(ToString::to_string).collect();
    let first = missing.first().filter(|_| !observation.group.is_empty())?;
    let wanted = observation.workers;
    Some(Finding {
        kind: FindingKind::WorkerWanted,
        severity: Severity::Slow,
        subject: first.clone(),
        what: format!("the run trains without {}, which it is to have", join_list(&missing)),
        since_seconds: None,
        why: vec![format!("{wanted} dense workers are wanted, and {} make steps", observation.group.len())],
        next: "start what is missing (`zagros up` does so by itself), or ask for fewer with `zagros scale workers=N`"
            .to_owned(),
    })
}

/// A move that waits for servers, or that was given up and is tried again. A move that goes on is no finding.
pub(crate) fn move_finding(observation: &Observation) -> Option<Finding> {
    let moving = observation.moving.as_ref()?;
    let missing: Vec<String> = observation.missing_servers().iter().map(ToString::to_string).collect();
    if missing.is_empty() && moving.last_failure.is_empty() {
        return None;
    }
    let ObservedMoves { wanted, buckets_left, doing, last_failure } = moving;
    let mut why = vec![format!("{wanted} embedding servers are wanted, and {buckets_left} buckets still have to move")];
    why.extend((!doing.is_empty()).then(|| format!("now: {doing}")));
    why.extend((!last_failure.is_empty()).then(|| format!("a move was given up: {last_failure}")));
    let (what, next) = if missing.is_empty() {
        let what = "a move of buckets was given up, and is tried again".to_owned();
        (what, "look at the logs of the servers that it names; their buckets stay where they are meanwhile")
    } else {
        let what = format!("a move of buckets waits for {} to join", join_list(&missing));
        (what, "start what is missing (`zagros up` does so by itself), or ask for fewer with `zagros scale servers=N`")
    };
    let subject = missing.first().cloned().unwrap_or_default();
    Some(Finding {
        kind: FindingKind::MoveWaits,
        severity: Severity::Slow,
        subject,
        what,
        since_seconds: None,
        why,
        next: next.to_owned(),
    })
}
