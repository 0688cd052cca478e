//! A run that is over: which process ended first, and why.

use crate::finding::{Finding, FindingKind, Severity};
use crate::observation::{Observation, ObservedProcess};

/// What ended the run, unless it ended as it should. Processes that were asked to end followed another one.
pub(crate) fn end_findings(observation: &Observation) -> Vec<Finding> {
    let ends = observation.processes.iter().filter_map(|process| Some((process, process.end.as_ref()?)));
    let mut bad: Vec<_> = ends.filter(|(_, end)| !end.well && !end.asked).collect();
    bad.sort_by_key(|(_, end)| end.order);
    let others: Vec<String> =
        bad.iter().skip(1).map(|(process, end)| format!("then {} {}", process.party, end.how)).collect();
    let first = bad.first().map(|(process, end)| {
        let error = end.last_error.iter().map(|error| format!("its last error: {error}"));
        finding(
            process,
            format!("{} {}", process.party, end.how),
            error.chain(others).chain(reason(observation)).collect(),
        )
    });
    let failed = (observation.state == "failed").then(|| Finding {
        kind: FindingKind::RunFailed,
        severity: Severity::Trouble,
        subject: "run".to_owned(),
        what: format!("the run has failed: {}", observation.reason),
        since_seconds: None,
        why: Vec::new(),
        next: next(),
    });
    first.or(failed).or_else(|| vanished(observation)).into_iter().collect()
}

fn vanished(observation: &Observation) -> Option<Finding> {
    let is_known = observation.processes.iter().any(|process| process.end.is_some());
    (observation.is_live() && !is_known).then(|| Finding {
        kind: FindingKind::RunFailed,
        severity: Severity::Trouble,
        subject: "run".to_owned(),
        what: "no process of the run is left, and none has said why".to_owned(),
        since_seconds: None,
        why: vec![
            "they were killed together: the machine went down, or something ended `zagros up` with SIGKILL".to_owned(),
        ],
        next: next(),
    })
}

fn finding(process: &ObservedProcess, what: String, why: Vec<String>) -> Finding {
    Finding {
        kind: FindingKind::RunFailed,
        severity: Severity::Trouble,
        subject: process.party.to_string(),
        what: format!("the run ended because {what}"),
        since_seconds: None,
        why,
        next: next(),
    }
}

fn reason(observation: &Observation) -> Option<String> {
    let is_known = observation.state == "failed" && !observation.reason.is_empty();
    is_known.then(|| format!("the coordinator's account: {}", observation.reason))
}

fn next() -> String {
    "remove the cause (docs/exit-codes.md, `zagros logs RUN --level warn`), then give the same command again: it goes on from the \
     newest checkpoint"
        .to_owned()
}
