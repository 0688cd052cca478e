//! Runs that go on, slower than they could: stragglers, slow reading, disks that fill, and a scale request that waits for servers or
//! workers.

use zagros_protocol::control::{ScaleStatus, StageSeconds};

use crate::Role;
use crate::doctor::finding::{Finding, FindingKind, Severity, join_list};
use crate::doctor::graph::is_heard;
use crate::doctor::observation::{Observation, ObservedMember};

/// Before so many steps, the start of a run counts too much.
const WARMED_UP: u64 = 200;
/// A worker is a straggler if its own part of a step takes so many times as long as that of the quickest, as in
/// monitoring/rules.
const STRAGGLES: f64 = 1.5;
/// The least share of its time that the quickest worker waits for the others. Below it no worker is delayed.
const DELAYED: f64 = 0.2;
/// A worker starves if it waits for batches for more than this share of its time.
const STARVES: f64 = 0.5;
/// A disk is nearly full below this share of free bytes, as in monitoring/rules.
const FREE: f64 = 0.1;

pub(crate) fn pace_findings(observation: &Observation) -> Vec<Finding> {
    let workers =
        || observation.members.iter().filter(|member| member.slot.role == Role::DenseWorker && is_heard(member));
    let mut found: Vec<Finding> = move_finding(observation).into_iter().chain(missing_workers(observation)).collect();
    found.extend(stragglers(&workers().collect::<Vec<_>>()));
    found.extend(workers().filter_map(starving));
    found.extend(observation.members.iter().filter_map(disk));
    found
}

/// Seconds of a worker's own part of its steps.
fn own_seconds(stages: &StageSeconds) -> f64 {
    stages.gather + stages.dense + stages.scatter
}

fn step_seconds(stages: &StageSeconds) -> f64 {
    (own_seconds(stages) + stages.waiting + stages.reduce).max(1e-9)
}

/// Seconds of its own that a worker needs for a step.
fn own(member: &ObservedMember) -> Option<f64> {
    let stages = member.stages.filter(|_| member.step >= WARMED_UP)?;
    Some(own_seconds(&stages) / member.step as f64)
}

fn stragglers(workers: &[&ObservedMember]) -> Vec<Finding> {
    let quickest = workers.iter().copied().filter_map(|member| Some((own(member)?, member)));
    let Some((least, quickest)) = quickest.min_by(|one, other| one.0.total_cmp(&other.0)) else { return Vec::new() };
    let delay = quickest.stages.map_or(0.0, |stages| stages.reduce / step_seconds(&stages));
    let slow = workers.iter().filter(|_| delay >= DELAYED).filter_map(|member| Some((own(member)?, *member)));
    let slow = slow.filter(|(own, _)| *own > STRAGGLES * least);
    let finding = |(own, member): (f64, &ObservedMember)| {
        let (slot, other) = (member.slot, quickest.slot);
        let what = format!("{slot} needs {:.1} times as long for its part of a step as {other}", own / least);
        let why = vec![
            format!("its own part takes {:.1} ms, that of {other} {:.1} ms", own * 1e3, least * 1e3),
            format!("{other} waits for the others for {:.0} % of its time", delay * 100.0),
        ];
        let next = "give it as many cores as the others have (`train.threads`), or another machine";
        slow_finding(FindingKind::Straggler, slot.to_string(), what, why, next)
    };
    slow.map(finding).collect()
}

/// A worker that mostly waits for batches, while reading takes longer than looking up.
fn starving(member: &ObservedMember) -> Option<Finding> {
    let stages = member.stages.filter(|_| member.step >= WARMED_UP)?;
    let share = stages.waiting / step_seconds(&stages);
    // Processor time of reading, and of finding unique ids.
    let reading = stages.parse + stages.dedup;
    let (slot, percent) = (member.slot, share * 100.0);
    let what = format!("{slot} waits for batches for {percent:.0} % of its time: reading is slower than training");
    let why = format!("reading and parsing took {reading:.0} s of processor time, lookups {:.0} s", stages.lookup);
    let next = "give reading more threads (`data.threads`), or put the data on a faster disk";
    (share > STARVES && reading > stages.lookup)
        .then(|| slow_finding(FindingKind::DataSource, slot.to_string(), what, vec![why], next))
}

fn disk(member: &ObservedMember) -> Option<Finding> {
    let (free, size) = member.disk?;
    let is_full = member.state == "alive" && size > 0 && (free as f64) < FREE * size as f64;
    let what = format!("the disk that {} writes to is nearly full: {} MiB are free", member.slot, free >> 20);
    let next = "make room before it is full: then checkpoints fail and acknowledgements stop";
    is_full.then(|| slow_finding(FindingKind::DiskFull, member.slot.to_string(), what, Vec::new(), next))
}

fn missing_workers(observation: &Observation) -> Option<Finding> {
    let missing: Vec<String> = observation.missing_workers().iter().map(ToString::to_string).collect();
    let first = missing.first().filter(|_| !observation.group.is_empty())?;
    let what = format!("the run trains without {}, which it is to have", join_list(&missing));
    let (wanted, steps) = (observation.workers, observation.group.len());
    let why = vec![format!("{wanted} dense workers are wanted, and {steps} make steps")];
    let next = "start what is missing (`zagros up` does so by itself), or ask for fewer with `zagros scale workers=N`";
    Some(slow_finding(FindingKind::WorkerWanted, first.clone(), what, why, next))
}

/// A move that waits for servers, or that was given up and is tried again. A move that goes on is no finding.
fn move_finding(observation: &Observation) -> Option<Finding> {
    let moving = observation.moving.as_ref()?;
    let missing: Vec<String> = observation.missing_servers().iter().map(ToString::to_string).collect();
    if missing.is_empty() && moving.last_failure.is_empty() {
        return None;
    }
    let ScaleStatus { servers_wanted, buckets_left, doing, last_failure, .. } = moving;
    let mut why =
        vec![format!("{servers_wanted} embedding servers are wanted, and {buckets_left} buckets still have to move")];
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
    Some(slow_finding(FindingKind::MoveWaits, subject, what, why, next))
}

fn slow_finding(kind: FindingKind, subject: String, what: String, why: Vec<String>, next: &str) -> Finding {
    Finding { kind, severity: Severity::Slow, subject, what, since_seconds: None, why, next: next.to_owned() }
}
