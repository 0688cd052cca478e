//! Explores every state that a small run can reach. Makes `docs/worker-states.md` from what it finds, and checks that no
//! state refuses a stop, a fence or a lost worker.
//!
//! `UPDATE_DOCS=1 cargo test -p zagros-worker-core --test main states_page` writes the page anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use zagros_worker_core::{
    Action, BarrierDecision, EarlyStopRule, Event, FailureCause, GroupFailure, GroupMember, LoopConfig, LoopCounts,
    LoopEnd, LoopState, MeasuredState, RankProgress, StepAgreement, StepFacts, TrainingLoop, TrainingPolicy,
};

use crate::HYBRID;

const POLICIES: [(&str, TrainingPolicy); 4] = [
    ("one", TrainingPolicy::OneWorker { in_turns: false }),
    ("hybrid", HYBRID),
    ("sync", TrainingPolicy::SynchronousGroup { in_turns: true }),
    ("async", TrainingPolicy::AsynchronousWorkers),
];

/// State, event, next state, actions.
type StateTransition = (String, String, String, String);

fn config(policy: TrainingPolicy) -> LoopConfig {
    LoopConfig {
        max_steps: Some(3),
        evaluate_every: Some(2),
        early_stop: Some(EarlyStopRule { patience: 1, min_delta: 0.0 }),
        resets_rows: !policy.is_asynchronous(),
        checkpoint_every: Some(1),
        ..crate::config(policy)
    }
}

/// Every kind of event, with the values that decisions depend on.
fn events(policy: TrainingPolicy) -> Vec<Event> {
    let facts = |newest_group| StepFacts { checkpoint_by_time: false, newest_group, leaves: false };
    let agreed = |samples, stop, regroup| StepAgreement { samples, stop, checkpoint: false, regroup };
    let trained = RankProgress { has_trained: true, epoch: 0, steps: 1, evaluated: 0, barriers: 0 };
    let group = (!matches!(policy, TrainingPolicy::OneWorker { .. })).then_some(GroupMember { rank: 0, generation: 1 });
    let decided = |decision| Event::BarrierDecided { decision, called: 1, others_steps: 0 };
    let loss = |stop_requested| Event::Lost(GroupFailure { generation: 1, about_others: true, stop_requested });
    let held = |checkpoint_by_time| Event::SplitsHeld { pause: Duration::from_secs(1), checkpoint_by_time };
    let counts = LoopCounts { untouched: true, ..LoopCounts::default() };
    let mut events = vec![
        Event::Formed { group, progress: vec![RankProgress::default(); 2] },
        Event::Ready(counts),
        Event::Ready(LoopCounts { steps: 2, ..counts }),
        Event::Left,
        Event::StreamFound,
        held(false),
        held(true),
        Event::NoSplits,
        Event::WaitOver,
        Event::BatchReady(facts(1)),
        Event::StreamDry(facts(1)),
        Event::StopRequested,
        Event::BatchLate,
        Event::Agreed(agreed(0, false, false)),
        Event::Agreed(agreed(2, false, false)),
        Event::Agreed(agreed(2, true, false)),
        Event::Agreed(agreed(2, false, true)),
        Event::Stepped { ahead: None },
        Event::Drained,
        Event::Evaluated { measured: Some(MeasuredState { value: 0.5, merit: 0.5 }) },
        Event::Evaluated { measured: None },
        Event::CheckpointDone,
        Event::AllHere,
        Event::EpochClosed,
        Event::RowsReset,
        Event::Concluded,
        Event::Saved,
        Event::Interrupted,
        loss(false),
        loss(true),
        Event::Failed,
    ];
    if group.is_some() {
        events.push(Event::Formed { group, progress: vec![trained; 2] });
    }
    if policy == HYBRID {
        events.push(Event::Stepped { ahead: Some(agreed(2, false, false)) });
        events.push(Event::StreamDry(StepFacts { leaves: true, ..facts(1) }));
    }
    if policy.is_asynchronous() {
        events.extend([Event::BarrierDue, Event::GroupDue, Event::LetGo]);
        use BarrierDecision::{Checkpoint, EpochOver, Regroup, Stop};
        events.extend([Checkpoint, EpochOver, Stop, Regroup].map(decided));
    }
    events
}

fn name(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

fn state_name(state: LoopState) -> String {
    match state {
        LoopState::Regrouping(part) => format!("Regrouping · {}", name(&part)),
        LoopState::Training(phase) => format!("Training · {}", name(&phase)),
        LoopState::AtBarrier(point) => format!("AtBarrier · {}", name(&point)),
        LoopState::Draining(drain) => format!("Draining · {}", name(&drain)),
        LoopState::Evaluating(point) => format!("Evaluating · {}", name(&point)),
        LoopState::Checkpointing(point) => format!("Checkpointing · {}", name(&point)),
        LoopState::Finishing(finish) => format!("Finishing · {}", name(&finish)),
        LoopState::Ended(ending) => format!("Ended · {}", name(&ending)),
        state => name(&state),
    }
}

/// Visits every reachable machine once.
fn explore(policy: TrainingPolicy, mut visit: impl FnMut(&TrainingLoop, &Event, &TrainingLoop, &[Action])) -> usize {
    let mut first = TrainingLoop::new(config(policy));
    first.start();
    let (mut seen, mut open) = (BTreeSet::new(), vec![first]);
    while let Some(machine) = open.pop() {
        if matches!(machine.state(), LoopState::Ended(_)) || !seen.insert(format!("{machine:?}")) {
            continue;
        }
        for event in events(policy) {
            let mut next = machine.clone();
            let actions = next.on_event(event.clone());
            visit(&machine, &event, &next, &actions);
            open.push(next);
        }
    }
    seen.len()
}

fn is_unexpected(machine: &TrainingLoop) -> bool {
    machine.state() == LoopState::Ended(LoopEnd::Failed(FailureCause::Unexpected))
}

#[test]
fn no_state_is_stuck() {
    for (label, policy) in POLICIES {
        let machines = explore(policy, |before, event, after, actions| {
            let (last, first) = actions.split_last().expect("actions follow every event");
            assert!(first.iter().all(|action| !action.has_reply()), "{label}: {before:?} {event:?} {actions:?}");
            let has_ended = matches!(after.state(), LoopState::Ended(_));
            assert_eq!(matches!(last, Action::End(_)), has_ended, "{label}: {before:?} {event:?} {actions:?}");
            assert!(last.has_reply() || has_ended, "{label}: {before:?} {event:?} {actions:?}");
            // A stop, a fence and a lost worker are understood everywhere.
            if matches!(event, Event::Interrupted | Event::Failed | Event::Lost(_)) {
                assert!(!is_unexpected(after), "{label}: {before:?} {event:?}");
            }
            if *event == Event::Failed {
                assert_eq!(actions, [Action::End(LoopEnd::Failed(FailureCause::LastEvent))], "{label}: {before:?}");
            }
        });
        assert!(machines > 20, "{label}: {machines} machines are few");
    }
}

fn transitions() -> BTreeMap<StateTransition, BTreeSet<&'static str>> {
    let mut found: BTreeMap<StateTransition, BTreeSet<&'static str>> = BTreeMap::new();
    for (label, policy) in POLICIES {
        explore(policy, |before, event, after, actions| {
            let is_everywhere = matches!(event, Event::Failed | Event::Lost(_));
            let leaves = matches!(before.state(), LoopState::Regrouping(_));
            if is_unexpected(after) || (is_everywhere && !leaves) {
                return;
            }
            let has_failed = after.state() == LoopState::Ended(LoopEnd::Failed(FailureCause::LastEvent));
            if *event == Event::Interrupted && has_failed {
                return;
            }
            let actions: Vec<String> = actions.iter().map(name).collect();
            let row = (state_name(before.state()), name(event), state_name(after.state()), actions.join(", "));
            found.entry(row).or_default().insert(label);
        });
    }
    found
}

fn page() -> String {
    let found = transitions();
    let top = |state: &str| state.split(" · ").next().unwrap_or_default().to_owned();
    let mut edges: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (state, event, next, _) in found.keys() {
        edges.entry((top(state), top(next))).or_default().insert(event.clone());
    }
    edges.entry(("Training".to_owned(), "Regrouping".to_owned())).or_default().insert("Lost".to_owned());
    let mut page = String::from(HEAD);
    page.push_str("```mermaid\nstateDiagram-v2\n    [*] --> Joining\n    Joining --> Regrouping : start\n");
    for ((state, next), events) in edges.iter().filter(|((state, next), _)| state != next) {
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let _ = writeln!(page, "    {state} --> {next} : {}", events.join(", "));
    }
    page.push_str("    Ended --> [*]\n```\n\n");
    page.push_str(TABLE);
    for ((state, event, next, actions), policies) in &found {
        let policies: Vec<&str> =
            POLICIES.iter().map(|(label, _)| *label).filter(|label| policies.contains(label)).collect();
        let policies = if policies.len() == POLICIES.len() { "all".to_owned() } else { policies.join(", ") };
        let _ = writeln!(page, "| {state} | {event} | {next} | {actions} | {policies} |");
    }
    page
}

const HEAD: &str = "# States of a dense worker

A test makes this page from the code (`dense-worker/core/tests/main/states_page.rs`); do not edit it. The training loop of a dense worker
is a state machine without I/O. The driver (`dense-worker/src/control`) performs its actions and reports their replies as events.

| state | the worker |
|---|---|
| Joining | has not started |
| Regrouping | leaves a process group that has failed, or forms the next one |
| Resuming | takes the state that training starts from: a checkpoint's, or that of the most advanced rank |
| Training | finds a stream of splits, waits for a batch, agrees on a step, makes it |
| Waiting | waits for splits that other workers hold |
| AtBarrier | has voted, and waits for the coordinator's decision |
| Draining | waits until every gradient is acknowledged and every complete split is reported |
| Evaluating | scores the held-out part |
| Checkpointing | writes a checkpoint, all workers together |
| Finishing | ends an epoch, or chooses the model |
| Ended | has finished, has left, was interrupted, or has failed |

Three events are understood in every state:

| event | means | then |
|---|---|---|
| Failed | an action failed; a fenced worker sees this too | Ended · Failed |
| Lost | a call of the group failed, or a worker did not come to a barrier | hybrid and async: ReportLost, LeaveGroup, and Regrouping · Leaving, with at most three groups in a row that make no step; else Ended · Failed |
| Interrupted | the action was given up: this process was asked to end, or the run is drained | as the table says; where it says nothing, Ended · Failed with the request as the reason |

";

const TABLE: &str = "## Transitions

What a small run can do: one epoch, at most three steps, an evaluation every second step, a checkpoint after each. The last column names
the modes: `one` is a job of one worker.

| state | event | next state | actions | mode |
|---|---|---|---|---|
";

#[test]
fn the_page_shows_the_states_that_the_code_has() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/worker-states.md");
    let made = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("docs can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == made, "docs/worker-states.md is not what the code does: run this test with UPDATE_DOCS=1");
}
