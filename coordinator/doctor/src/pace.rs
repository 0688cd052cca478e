//! Runs that go on, slower than they could: stragglers, slow reading, disks that fill.

use zagros_coordinator_core::Role;

use crate::finding::{Finding, FindingKind, Severity};
use crate::graph::is_heard;
use crate::observation::{Observation, ObservedMember};

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
    let mut found: Vec<Finding> = stragglers(&workers().collect::<Vec<_>>());
    found.extend(workers().filter_map(starving));
    found.extend(observation.members.iter().filter_map(disk));
    found
}

/// Seconds of its own that a worker needs for a step.
fn own(member: &ObservedMember) -> Option<f64> {
    let stages = member.stages.filter(|_| member.step >= WARMED_UP)?;
    Some(stages.own / member.step as f64)
}

fn stragglers(workers: &[&ObservedMember]) -> Vec<Finding> {
    let quickest = workers.iter().copied().filter_map(|member| Some((own(member)?, member)));
    let Some((least, quickest)) = quickest.min_by(|one, other| one.0.total_cmp(&other.0)) else { return Vec::new() };
    let delay =
        quickest.stages.map_or(0.0, |stages| stages.reduce / (stages.own + stages.waiting + stages.reduce).max(1e-9));
    let slow = workers.iter().filter(|_| delay >= DELAYED).filter_map(|member| Some((own(member)?, *member)));
    let slow = slow.filter(|(own, _)| *own > STRAGGLES * least);
    slow.map(|(own, member)| Finding {
        kind: FindingKind::Straggler,
        severity: Severity::Slow,
        subject: member.slot.to_string(),
        what: format!(
            "{} needs {:.1} times as long for its part of a step as {}",
            member.slot,
            own / least,
            quickest.slot
        ),
        since_seconds: None,
        why: vec![
            format!("its own part takes {:.1} ms, that of {} {:.1} ms", own * 1e3, quickest.slot, least * 1e3),
            format!("{} waits for the others for {:.0} % of its time", quickest.slot, delay * 100.0),
        ],
        next: "give it as many cores as the others have (`train.threads`), or another machine".to_owned(),
    })
    .collect()
}

/// A worker that mostly waits for batches, while reading takes longer than looking up.
fn starving(member: &ObservedMember) -> Option<Finding> {
    let stages = member.stages.filter(|_| member.step >= WARMED_UP)?;
    let share = stages.waiting / (stages.own + stages.waiting + stages.reduce).max(1e-9);
    let by_reading = stages.reading > stages.lookup;
    (share > STARVES && by_reading).then(|| Finding {
        kind: FindingKind::DataSource,
        severity: Severity::Slow,
        subject: member.slot.to_string(),
        what: format!(
            "{} waits for batches for {:.0} % of its time: reading is slower than training",
            member.slot,
            share * 100.0
        ),
        since_seconds: None,
        why: vec![format!(
            "reading and parsing took {:.0} s of processor time, lookups {:.0} s",
            stages.reading, stages.lookup
        )],
        next: "give reading more threads (`data.threads`), or put the data on a faster disk".to_owned(),
    })
}

fn disk(member: &ObservedMember) -> Option<Finding> {
    let (free, size) = member.disk?;
    let is_full = member.state == "alive" && size > 0 && (free as f64) < FREE * size as f64;
    is_full.then(|| Finding {
        kind: FindingKind::DiskFull,
        severity: Severity::Slow,
        subject: member.slot.to_string(),
        what: format!("the disk that {} writes to is nearly full: {} MiB are free", member.slot, free >> 20),
        since_seconds: None,
        why: Vec::new(),
        next: "make room before it is full: then checkpoints fail and acknowledgements stop".to_owned(),
    })
}
