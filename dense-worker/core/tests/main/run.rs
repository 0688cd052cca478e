//! The whole run in one process: the coordinator's core with its journal, the training loops of the workers in every mode, and embedding
//! servers with tables in memory, under one scheduler that draws everything from a seed.
//!
//! ```text
//!  worker loops ──join, heartbeat, group, splits──► coordinator core ──► journal
//!      │   ▲                                            │    ▲
//!      │   └──── placement, generations ────────────────┘    │ reports of moves
//!      └──── parts of pushes ──► servers: windows, log ──────┘
//! ```
//!
//! Calls and answers are lost, and copies of them come up to six seconds later. Coordinator, servers and workers die at any moment, servers
//! also in the middle of a push, and come back from journal and log. Buckets move meanwhile. A worker leaves or joins while the run trains, or is
//! asked to stop, and the run with it. Training ends early, by a number of steps or because no better state comes.
//!
//! Each history is checked: every acknowledged part of a push is at the owner of its bucket, once (DP-3, DU-1, PL-3). Each split is
//! completed once, by a process that has trained on each of its batches once and has every answer (SP-1, SP-2, RK-3 to RK-5, AS-1, AS-2). No
//! worker fails, and all end alike. Each history ends in bounded virtual time (WT-1).

mod calls;
mod checks;
mod group_calls;
#[path = "../../../../coordinator/core/tests/simulation/recorded.rs"]
#[expect(dead_code, reason = "the simulation of the coordinator alone takes snapshots, too")]
mod recorded;
mod server;
mod server_turns;
mod world;

use std::collections::BTreeMap;

use world::{HistoryPlan, RunWorld, WorkerChange};
use zagros_worker_core::{EarlyStopRule, TrainingPolicy};

use crate::HYBRID;
use crate::simulated::SeededDice;

/// Histories in the gate; `make nightly` plays more.
const HISTORIES: u64 = 2000;

fn plan(seed: u64) -> HistoryPlan {
    let mut dice = SeededDice::new(seed ^ 0x5eed);
    let policy = match dice.below(10) {
        0 => TrainingPolicy::OneWorker { in_turns: dice.one_in(2) },
        1 => TrainingPolicy::SynchronousGroup { in_turns: true },
        2..=5 => TrainingPolicy::AsynchronousWorkers,
        _ => HYBRID,
    };
    let is_elastic = policy == HYBRID || policy.is_asynchronous();
    let change = match dice.below(8) {
        0 if is_elastic => WorkerChange::Leaves,
        1 if is_elastic => WorkerChange::JoinsLate,
        2 => WorkerChange::Stops,
        _ => WorkerChange::None,
    };
    let may_end_early = matches!(change, WorkerChange::None | WorkerChange::Stops);
    let early_stop = EarlyStopRule { patience: 1 + dice.below(3) as u32, min_delta: 0.5 };
    let most_steps = 1 + dice.below(15);
    HistoryPlan {
        seed,
        policy,
        change,
        early_stop: (may_end_early && dice.one_in(6)).then_some(early_stop),
        // Asynchronous workers count their own steps each.
        max_steps: (may_end_early && !policy.is_asynchronous() && dice.one_in(6)).then_some(most_steps),
        workers: if matches!(policy, TrainingPolicy::OneWorker { .. }) { 1 } else { 2 + dice.below(2) as u32 },
        servers: 1 + dice.below(3) as u32,
        epochs: 1 + dice.below(2) as u32,
        splits: 2 + dice.below(9),
        kills: dice.below(7) as u32,
        scales: dice.below(4) as u32,
    }
}

/// `ZAGROS_SEEDS=100000` plays more; `ZAGROS_SEED=17` plays one.
#[test]
fn whatever_dies_and_whatever_is_lost_the_run_ends_and_each_push_and_sample_counts_once() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("ZAGROS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ZAGROS_SEEDS").unwrap_or(HISTORIES),
    };
    let histories = seeds.end - seeds.start;
    let mut all: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in seeds {
        let played = std::panic::catch_unwind(|| {
            let mut world = RunWorld::play(plan(seed));
            world.check();
            world.did
        });
        let did =
            played.unwrap_or_else(|_| panic!("seed {seed} fails: ZAGROS_SEED={seed} plays it alone: {:?}", plan(seed)));
        did.into_iter().for_each(|(fault, count)| *all.entry(fault).or_default() += count);
    }
    println!("{histories} histories: {all:?}");
    if histories >= 500 {
        assert!(all.len() == 11 && all.values().all(|count| *count > 20), "{all:?}");
    }
}
