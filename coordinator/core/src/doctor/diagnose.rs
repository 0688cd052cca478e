//! From an observation to findings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zagros_protocol::control::WaitKind;

use crate::doctor::finding::{Diagnosis, Finding, FindingKind, Severity, join_list, name_members, time, verb_ending};
use crate::doctor::graph::{LONG, WaitArrow, WaitGraph, WaitNode, for_how_long, is_heard};
use crate::doctor::observation::{CoordinatorSign, Observation, Party, ProcessState, wait_age};
use crate::doctor::pace::pace_findings;
use crate::doctor::roots::{disk_cause, root_cause, silent_cause};
use crate::{MemberSlot, Role};

/// Lines of evidence of one finding. More hide the first.
const MOST_LINES: usize = 6;

pub fn diagnose_run(observation: &Observation) -> Diagnosis {
    let mut findings = if observation.is_live() && !has_ended(observation) {
        let graph = WaitGraph::new(observation);
        let circles = graph.circles();
        let mut found: Vec<Finding> = circles.iter().map(|circle| of_circle(&graph, circle)).collect();
        found.extend(roots(observation, &graph));
        found.extend(pace_findings(observation));
        found
    } else {
        end_findings(observation)
    };
    findings.sort_by_key(|finding| finding.severity);
    let healthy = findings.iter().all(|finding| finding.severity != Severity::Trouble);
    let verdict = verdict(observation, &findings);
    Diagnosis { healthy, verdict, findings }
}

/// Whether all processes are gone. The last report of the run need not say so.
fn has_ended(observation: &Observation) -> bool {
    let are_gone = observation.processes.iter().all(|process| process.state == ProcessState::Gone);
    observation.coordinator == CoordinatorSign::Ended && are_gone
}

fn verdict(observation: &Observation, findings: &[Finding]) -> String {
    match findings {
        [] if !observation.is_live() && observation.reason.is_empty() => {
            let state = observation.state.as_str();
            format!("the run has {}", if state == "interrupted" { "been interrupted" } else { state })
        }
        [] if !observation.is_live() => format!("the run was {}: {}", observation.state, observation.reason),
        [] => format!("nothing hangs: no wait is longer than {} (step {})", time(LONG), observation.step),
        [first, ..] => first.what.clone(),
    }
}

fn of_circle(graph: &WaitGraph, circle: &BTreeSet<WaitNode>) -> Finding {
    let inside: Vec<&WaitArrow> = graph
        .arrows
        .iter()
        .filter(|arrow| circle.contains(&WaitNode::Member(arrow.from)) && circle.contains(&arrow.to))
        .collect();
    // Others wait for the circle without being part of it.
    let leads = |arrow: &&WaitArrow| circle.iter().any(|node| arrow.to == *node || graph.reaches(arrow.to, *node));
    let outside = graph.arrows.iter().filter(leads).filter(|arrow| !circle.contains(&WaitNode::Member(arrow.from)));
    let all: Vec<&WaitArrow> = inside.iter().copied().chain(outside).collect();
    let names: Vec<String> = circle.iter().map(|node| name(*node)).collect();
    let left = inside.iter().filter_map(|arrow| arrow.left).min();
    let give_up =
        left.map(|left| format!("the first of them gives up in {}, and the group then forms anew", time(left)));
    Finding {
        kind: FindingKind::Circle,
        severity: Severity::Trouble,
        subject: String::new(),
        what: format!("{} wait for each other in a circle", join_list(&names)),
        since_seconds: inside.iter().map(|arrow| arrow.age.as_secs_f64()).reduce(f64::min),
        why: lines(&all).into_iter().chain(give_up).collect(),
        next: "this is a bug: save the logs and this output (`--json`), and report it; ending one of these processes lets the \
               others go on"
            .to_owned(),
    }
}

/// Every root that a member waits for, and every process that is in trouble although no member waits for it yet.
fn roots(observation: &Observation, graph: &WaitGraph) -> Vec<Finding> {
    let mut nodes = graph.roots();
    if observation.coordinator != CoordinatorSign::Answers {
        nodes.insert(WaitNode::Coordinator);
    }
    let troubled = observation.members.iter().filter(|member| silent_cause(observation, member).is_some());
    nodes.extend(troubled.map(|member| WaitNode::Member(member.slot)));
    nodes.extend(observation.missing_slots().into_iter().map(WaitNode::Member));
    let found = nodes.into_iter().map(|node| finding(observation, graph, node));
    let mut found = merged(observation, found.collect());
    found.extend(stopped_disks(observation, graph));
    // What was waited for the longest comes first. An unknown age is the longest: it was always so.
    let age = |finding: &Finding| finding.since_seconds.unwrap_or(f64::MAX);
    found.sort_by(|one, other| age(other).total_cmp(&age(one)));
    found
}

fn finding(observation: &Observation, graph: &WaitGraph, node: WaitNode) -> Finding {
    let leading = graph.leading_to(node);
    let waited = leading.iter().map(|arrow| arrow.age).max().unwrap_or_default();
    let mut finding = root_cause(observation, node, waited);
    finding.why.extend(lines(&leading));
    let first = leading.iter().filter_map(|arrow| Some((arrow.left?, arrow.from))).min();
    finding
        .why
        .extend(first.map(|(left, slot)| format!("{slot} gives up in {} (cluster.timeout_seconds)", time(left))));
    finding
}

/// All members that have not joined are one finding: `2 of 4 workers have joined`.
fn merged(observation: &Observation, found: Vec<Finding>) -> Vec<Finding> {
    let (missing, mut others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|finding| finding.kind == FindingKind::MemberMissing);
    let Some(first) = missing.first() else { return others };
    let (servers, workers) = (joined(observation, Role::EmbeddingServer), joined(observation, Role::DenseWorker));
    let all: Vec<String> = missing.iter().map(|finding| finding.subject.clone()).collect();
    let mut why: Vec<String> = missing.iter().flat_map(|finding| finding.why.clone()).collect();
    why.dedup();
    why.truncate(MOST_LINES);
    others.push(Finding {
        subject: first.subject.clone(),
        what: format!(
            "the run waits for its members: {servers} of {} servers and {workers} of {} workers have joined; {} {} missing",
            observation.servers,
            observation.workers,
            join_list(&all),
            if all.len() == 1 { "is" } else { "are" }
        ),
        why,
        ..first.clone()
    });
    others
}

fn joined(observation: &Observation, role: Role) -> usize {
    observation.members.iter().filter(|member| member.slot.role == role).count()
}

/// Disks that a member waits for, and that are no roots yet.
fn stopped_disks(observation: &Observation, graph: &WaitGraph) -> Vec<Finding> {
    let roots = graph.roots();
    let heard = observation.members.iter().filter(|member| is_heard(member));
    let waits = heard.flat_map(|member| member.waits.iter().map(|wait| (member.slot, wait)));
    let young = waits.filter(|(slot, wait)| wait.kind() == WaitKind::Disk && !roots.contains(&WaitNode::Disk(*slot)));
    young.map(|(slot, wait)| disk_cause(observation, slot, wait_age(wait))).collect()
}

/// Arrows in words. Those of several members to the same node for the same reason are one line.
fn lines(arrows: &[&WaitArrow]) -> Vec<String> {
    let mut order: Vec<(WaitNode, &str)> = Vec::new();
    let mut groups: BTreeMap<(WaitNode, &str), Vec<&WaitArrow>> = BTreeMap::new();
    for arrow in arrows {
        let key = (arrow.to, arrow.how.as_str());
        if !groups.contains_key(&key) {
            order.push(key);
        }
        groups.entry(key).or_default().push(arrow);
    }
    let line = |(to, how): &(WaitNode, &str)| {
        let group = &groups[&(*to, *how)];
        let ages: Vec<Duration> = group.iter().map(|arrow| arrow.age).collect();
        let from: Vec<MemberSlot> = group.iter().map(|arrow| arrow.from).collect();
        format!("{} wait{} {how} {}, {}", of_one_role(&from), verb_ending(from.len()), name(*to), for_how_long(&ages))
    };
    let mut lines: Vec<String> = order.iter().take(MOST_LINES).map(line).collect();
    if order.len() > MOST_LINES {
        lines.push(format!("and {} more waits", order.len() - MOST_LINES));
    }
    lines
}

fn of_one_role(slots: &[MemberSlot]) -> String {
    let indices =
        |role: Role| slots.iter().filter(|slot| slot.role == role).map(|slot| slot.index).collect::<Vec<u32>>();
    let named = [Role::EmbeddingServer, Role::DenseWorker].map(|role| (role, indices(role)));
    let named: Vec<String> = named
        .iter()
        .filter(|(_, indices)| !indices.is_empty())
        .map(|(role, indices)| name_members(&role.to_string(), indices))
        .collect();
    join_list(&named)
}

fn name(node: WaitNode) -> String {
    match node {
        WaitNode::Coordinator => format!("the {}", Party::Coordinator),
        WaitNode::Member(slot) => slot.to_string(),
        WaitNode::Data(slot) => format!("the data source of {slot}"),
        WaitNode::Disk(slot) => format!("the disk of {slot}"),
    }
}

/// What ended the run, unless it ended as it should. Processes that were asked to end followed another one.
fn end_findings(observation: &Observation) -> Vec<Finding> {
    let ends = observation.processes.iter().filter_map(|process| Some((process, process.end.as_ref()?)));
    let mut bad: Vec<_> = ends.filter(|(_, end)| !end.well && !end.asked).collect();
    bad.sort_by_key(|(_, end)| end.order);
    let others = bad.iter().skip(1).map(|(process, end)| format!("then {} {}", process.party, end.how));
    let first = bad.first().map(|(process, end)| {
        let error = end.last_error.iter().map(|error| format!("its last error: {error}"));
        let what = format!("the run ended because {} {}", process.party, end.how);
        run_failed(process.party.to_string(), what, error.chain(others).chain(reason(observation)).collect())
    });
    let failed = (observation.state == "failed")
        .then(|| run_failed("run".to_owned(), format!("the run has failed: {}", observation.reason), Vec::new()));
    first.or(failed).or_else(|| vanished(observation)).into_iter().collect()
}

fn vanished(observation: &Observation) -> Option<Finding> {
    let is_known = observation.processes.iter().any(|process| process.end.is_some());
    let what = "no process of the run is left, and none has said why".to_owned();
    let why =
        "they were killed together: the machine went down, or something ended `zagros up` with SIGKILL".to_owned();
    (observation.is_live() && !is_known).then(|| run_failed("run".to_owned(), what, vec![why]))
}

fn reason(observation: &Observation) -> Option<String> {
    let is_known = observation.state == "failed" && !observation.reason.is_empty();
    is_known.then(|| format!("the coordinator's account: {}", observation.reason))
}

fn run_failed(subject: String, what: String, why: Vec<String>) -> Finding {
    let next = "remove the cause (docs/exit-codes.md, `logs/` of the run folder), then give the same command again: it goes \
                on from the newest checkpoint";
    Finding { why, ..Finding::trouble(FindingKind::RunFailed, subject, what, next.to_owned()) }
}
