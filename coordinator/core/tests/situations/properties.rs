//! What holds of every observation, however odd.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use zagros_coordinator_core::MemberSlot;
use zagros_coordinator_core::doctor::{FindingKind, Observation, ObservedMember, Severity, diagnose_run};
use zagros_protocol::control::{LongWait, ServerWait, WaitKind};
use zagros_zip::number_from;

const SERVERS: u32 = 3;
const WORKERS: u32 = 4;

fn wait() -> impl Strategy<Value = LongWait> {
    let kinds = vec![
        WaitKind::Servers,
        WaitKind::Workers,
        WaitKind::Coordinator,
        WaitKind::Data,
        WaitKind::Disk,
        WaitKind::Window,
        WaitKind::Members,
        WaitKind::Work,
    ];
    let (kind, indices) = (prop::sample::select(kinds), prop::collection::vec(0..SERVERS, 0..3));
    (kind, indices, 0_u64..20, 0_u8..2, 0_u8..3).prop_map(|(kind, indices, age, call, part)| LongWait {
        part: format!("thread {part}"),
        kind: kind.into(),
        indices,
        what: format!("call {call}"),
        age_ms: age * 1000,
        left_ms: Some((60 - age) * 1000),
    })
}

fn member(slot: MemberSlot) -> impl Strategy<Value = ObservedMember> {
    let requests = prop::collection::vec((0..SERVERS, 0_u64..20), 0..2);
    let state = prop::sample::select(vec!["alive", "alive", "alive", "lost", "away", "left", "given up"]);
    (prop::collection::vec(wait(), 0..3), requests, state, 0_u64..8).prop_map(
        move |(waits, requests, state, silent)| {
            let request =
                |(server, age): (u32, u64)| ServerWait { server, lookups: 1, pushes: 0, oldest_ms: age * 1000 };
            ObservedMember {
                state: state.to_owned(),
                silent: Duration::from_secs(silent),
                still: None,
                requests: requests.into_iter().map(request).collect(),
                waits,
                ..super::member(slot)
            }
        },
    )
}

fn observation() -> impl Strategy<Value = Observation> {
    let slots = (0..SERVERS).map(MemberSlot::server).chain((0..WORKERS).map(MemberSlot::worker));
    let members: Vec<_> = slots.map(|slot| prop::option::weighted(0.9, member(slot))).collect();
    members.prop_map(|members| Observation {
        state: "training".to_owned(),
        servers: SERVERS,
        workers: WORKERS,
        timeout: Duration::from_secs(60),
        group: (0..WORKERS).collect(),
        members: members.into_iter().flatten().collect(),
        ..Observation::default()
    })
}

/// A member that is heard and has waited for three seconds or longer for a server, the coordinator, its data or its disk.
fn hangs(member: &ObservedMember) -> bool {
    let is_heard = member.state == "alive" && member.silent < Duration::from_secs(3);
    let names_somebody = |wait: &LongWait| match wait.kind() {
        WaitKind::Servers => !wait.indices.is_empty(),
        WaitKind::Coordinator | WaitKind::Data | WaitKind::Disk => true,
        // Whom these wait for depends on the others.
        WaitKind::Workers | WaitKind::Members | WaitKind::Window | WaitKind::Work | WaitKind::Unspecified => false,
    };
    let is_innermost =
        |wait: &LongWait| !member.waits.iter().any(|other| other.part == wait.part && other.age_ms < wait.age_ms);
    let waits = member.waits.iter().any(|wait| wait.age_ms >= 3000 && names_somebody(wait) && is_innermost(wait));
    is_heard && (waits || member.requests.iter().any(|requests| requests.oldest_ms >= 3000))
}

proptest! {
    /// Every hang has a cause, and every cause is on one screen.
    #[test]
    fn whoever_hangs_is_named_and_nothing_is_endless(observation in observation()) {
        let diagnosis = diagnose_run(&observation);
        let said: Vec<String> =
            diagnosis.findings.iter().flat_map(|finding| finding.why.iter().chain([&finding.what])).cloned().collect();
        for member in observation.members.iter().filter(|member| hangs(member)) {
            let index = member.slot.index.to_string();
            let is_named = |line: &String| {
                line.contains(&member.slot.role.to_string()) && line.split(|c: char| !c.is_ascii_digit()).any(|word| word == index)
            };
            let are_more = |line: &String| line.ends_with("more waits");
            prop_assert!(said.iter().any(|line| is_named(line) || are_more(line)), "{} in {said:#?}", member.slot);
        }
        prop_assert!(diagnosis.findings.len() <= (SERVERS + 2 * WORKERS + 1) as usize + 2, "{diagnosis:#?}");
        prop_assert!(diagnosis.findings.iter().all(|finding| finding.why.len() <= 12 && !finding.next.is_empty()));
        let is_trouble = |severity: Severity| severity == Severity::Trouble;
        prop_assert_eq!(diagnosis.healthy, !diagnosis.findings.iter().any(|finding| is_trouble(finding.severity)));
        prop_assert!(diagnosis.findings.is_sorted_by_key(|finding| finding.severity));
    }

    /// The same processes in another order are the same run.
    #[test]
    fn the_order_of_members_changes_nothing(observation in observation()) {
        let mut turned = observation.clone();
        turned.members.reverse();
        let what = |observation: &Observation| -> BTreeSet<String> {
            diagnose_run(observation).findings.into_iter().map(|finding| finding.what).collect()
        };
        prop_assert_eq!(what(&observation), what(&turned));
    }

    /// Workers that are all in the same call wait for none of themselves.
    #[test]
    fn workers_in_one_call_make_no_circle(ages in prop::collection::vec(3_u64..20, WORKERS as usize)) {
        let member = |(index, age): (u32, &u64)| ObservedMember {
            silent: Duration::ZERO,
            still: None,
            waits: vec![LongWait {
                part: "training".to_owned(),
                kind: WaitKind::Workers.into(),
                what: "the all-reduce of step 1".to_owned(),
                age_ms: *age * 1000,
                ..LongWait::default()
            }],
            ..super::worker(index)
        };
        let members = number_from(0, &ages).map(member).collect();
        let observation = Observation { workers: WORKERS, group: (0..WORKERS).collect(), members, ..Observation::default() };
        let findings = diagnose_run(&observation).findings;
        prop_assert!(findings.iter().all(|finding| finding.kind != FindingKind::Circle), "{findings:?}");
    }

    /// The file of a run's last state is read as it was written.
    #[test]
    fn an_observation_survives_its_file(observation in observation()) {
        let text = serde_json::to_string(&observation).unwrap();
        prop_assert_eq!(serde_json::from_str::<Observation>(&text).unwrap(), observation);
    }
}
