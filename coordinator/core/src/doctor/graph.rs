//! The wait-for graph: an arrow from each process that waits to whom it waits for (Holt, "Some Deadlock Properties of
//! Computer Systems", ACM Computing Surveys 1972).
//!
//! A member that is silent has no arrows: what it reported last is old.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zagros_protocol::control::{LongWait, WaitKind};

use crate::doctor::finding::{count_noun, join_list, time};
use crate::doctor::observation::{Observation, ObservedMember, wait_age};
use crate::{MemberSlot, Role};

/// Shorter waits are how it should be.
pub(crate) const LONG: Duration = Duration::from_secs(3);
/// A member that is silent for so long has missed three heartbeats.
pub(crate) const SILENT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WaitNode {
    Coordinator,
    Member(MemberSlot),
    Data(MemberSlot),
    Disk(MemberSlot),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WaitArrow {
    pub(crate) from: MemberSlot,
    pub(crate) to: WaitNode,
    /// For what, in words that follow "waits": `in the all-reduce of step 812 for`.
    pub(crate) how: String,
    pub(crate) age: Duration,
    /// When the member gives up, as far as it is known.
    pub(crate) left: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct WaitGraph {
    pub(crate) arrows: Vec<WaitArrow>,
    /// By node: every node that its arrows lead to, however far.
    reach: BTreeMap<WaitNode, BTreeSet<WaitNode>>,
}

impl WaitGraph {
    pub(crate) fn new(observation: &Observation) -> Self {
        let heard = observation.members.iter().filter(|member| is_heard(member));
        let arrows: Vec<WaitArrow> = heard.flat_map(|member| arrows(observation, member)).collect();
        let mut next: BTreeMap<WaitNode, BTreeSet<WaitNode>> = BTreeMap::new();
        for arrow in &arrows {
            next.entry(WaitNode::Member(arrow.from)).or_default().insert(arrow.to);
        }
        let reach = next.keys().map(|node| (*node, reachable(&next, *node))).collect();
        Self { arrows, reach }
    }

    /// Ends of arrows that no arrow leaves.
    pub(crate) fn roots(&self) -> BTreeSet<WaitNode> {
        self.arrows.iter().map(|arrow| arrow.to).filter(|node| !self.reach.contains_key(node)).collect()
    }

    /// Groups of members that wait for each other and for nothing else.
    pub(crate) fn circles(&self) -> BTreeSet<BTreeSet<WaitNode>> {
        let leads_back =
            |reached: &BTreeSet<WaitNode>, node: &WaitNode| reached.iter().all(|other| self.reaches(*other, *node));
        let closed = self.reach.iter().filter(|(node, reached)| leads_back(reached, node));
        closed.map(|(_, reached)| reached.clone()).collect()
    }

    pub(crate) fn reaches(&self, from: WaitNode, to: WaitNode) -> bool {
        self.reach.get(&from).is_some_and(|reached| reached.contains(&to))
    }

    /// The arrows that lead to a node, those that end at it first.
    pub(crate) fn leading_to(&self, node: WaitNode) -> Vec<&WaitArrow> {
        let leads = |arrow: &&WaitArrow| arrow.to == node || self.reaches(arrow.to, node);
        let mut leading: Vec<&WaitArrow> = self.arrows.iter().filter(leads).collect();
        leading.sort_by_key(|arrow| (arrow.to != node, arrow.to, arrow.from));
        leading
    }
}

/// Whether a member's reports are of now.
pub(crate) fn is_heard(member: &ObservedMember) -> bool {
    member.state == "alive" && member.silent < SILENT
}

fn reachable(next: &BTreeMap<WaitNode, BTreeSet<WaitNode>>, from: WaitNode) -> BTreeSet<WaitNode> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(node) = open.pop() {
        for to in next.get(&node).into_iter().flatten() {
            if found.insert(*to) {
                open.push(*to);
            }
        }
    }
    found
}

/// Whom a member waits for. Its own work is no wait.
fn arrows(observation: &Observation, member: &ObservedMember) -> Vec<WaitArrow> {
    let from = member.slot;
    let is_full = member.waits.iter().any(|wait| wait.kind() == WaitKind::Window);
    let aged = member.requests.iter().map(|requests| (requests, Duration::from_millis(requests.oldest_ms)));
    let requests = aged.filter(|(_, age)| *age >= LONG).map(|(requests, age)| {
        let counts = [(requests.lookups, "lookup", "lookups"), (requests.pushes, "push", "pushes")];
        let counts = counts.iter().filter(|of| of.0 > 0).map(|of| count_noun(of.0, of.1, of.2));
        let pending: Vec<String> = counts.chain(is_full.then(|| "a full window".to_owned())).collect();
        WaitArrow {
            from,
            to: WaitNode::Member(MemberSlot::server(requests.server)),
            how: format!("with {} for", join_list(&pending)),
            age,
            left: observation.timeout.checked_sub(age),
        }
    });
    let waits = member.waits.iter().filter(|wait| wait_age(wait) >= LONG && is_innermost(member, wait));
    let others = waits.flat_map(|wait| {
        let (how, age, left) = (how(wait), wait_age(wait), wait.left_ms.map(Duration::from_millis));
        targets(observation, member, wait).into_iter().map(move |to| WaitArrow {
            from,
            to,
            how: how.clone(),
            age,
            left,
        })
    });
    requests.chain(others).collect()
}

/// A part that waits within a longer wait waits for whom the shorter one names.
fn is_innermost(member: &ObservedMember, wait: &LongWait) -> bool {
    !member.waits.iter().any(|other| other.part == wait.part && other.age_ms < wait.age_ms)
}

fn how(wait: &LongWait) -> String {
    match wait.kind() {
        WaitKind::Workers => format!("in {} for", wait.what),
        WaitKind::Members => format!("for {}, and so for", wait.what),
        _ => format!("for {} from", wait.what),
    }
}

fn targets(observation: &Observation, member: &ObservedMember, wait: &LongWait) -> Vec<WaitNode> {
    match wait.kind() {
        WaitKind::Servers => wait.indices.iter().map(|index| WaitNode::Member(MemberSlot::server(*index))).collect(),
        WaitKind::Coordinator => vec![WaitNode::Coordinator],
        WaitKind::Data => vec![WaitNode::Data(member.slot)],
        WaitKind::Disk => vec![WaitNode::Disk(member.slot)],
        WaitKind::Workers => elsewhere(observation, member, wait).collect(),
        WaitKind::Members => {
            let missing: Vec<WaitNode> = observation.missing_slots().into_iter().map(WaitNode::Member).collect();
            if missing.is_empty() { elsewhere(observation, member, wait).collect() } else { missing }
        }
        WaitKind::Window | WaitKind::Work | WaitKind::Unspecified => Vec::new(),
    }
}

/// The workers of the group that are not in the same call as this one.
fn elsewhere<'a>(
    observation: &'a Observation,
    member: &'a ObservedMember,
    wait: &'a LongWait,
) -> impl Iterator<Item = WaitNode> + 'a {
    let is_in_group = |slot: MemberSlot| observation.group.is_empty() || observation.group.contains(&slot.index);
    let is_over = |other: &ObservedMember| matches!(other.state.as_str(), "left" | "given up");
    let is_there = |other: &ObservedMember| {
        let same = |theirs: &LongWait| theirs.kind == wait.kind && theirs.what == wait.what;
        is_heard(other) && other.waits.iter().any(same)
    };
    let others = observation.members.iter().filter(move |other| {
        other.slot.role == Role::DenseWorker && other.slot != member.slot && is_in_group(other.slot) && !is_over(other)
    });
    others.filter(move |other| !is_there(other)).map(|other| WaitNode::Member(other.slot))
}

/// `waits 14 s`, for the age of one arrow or of several.
pub(crate) fn for_how_long(ages: &[Duration]) -> String {
    let longest = time(ages.iter().max().copied().unwrap_or_default());
    if ages.len() > 1 { format!("for up to {longest}") } else { format!("for {longest}") }
}
