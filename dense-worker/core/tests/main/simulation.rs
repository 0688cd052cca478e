//! 2,000 runs per property, of one to four workers against a model of coordinator, data and collective: the machines decide, the
//! model performs in a random order, loses workers, starts late ones, asks some to stop. Votes at barriers are decided by the
//! coordinator's own function.
//!
//! Every decision comes from one seed, which a failing case prints.

mod world;

use proptest::prelude::*;
use world::{LoopPlan, LoopWorld};
use zagros_worker_core::{EarlyStopRule, LoopEnd, TrainingPolicy};

use crate::HYBRID;

fn plans(policy: TrainingPolicy) -> impl Strategy<Value = LoopPlan> {
    let workers = if matches!(policy, TrainingPolicy::OneWorker { .. }) { 1..=1_usize } else { 2..=4 };
    let data = (1_u32..4, 0_u64..12);
    let rules = (proptest::option::of(1_u64..15), proptest::option::of(1_u64..5), proptest::option::of(1_u64..5));
    let faults = (0_u32..4, any::<bool>(), any::<bool>());
    let patience = proptest::option::of(1_u32..4);
    let all = (any::<u64>(), workers, data, rules, faults, patience);
    all.prop_map(move |(seed, workers, data, rules, faults, patience)| LoopPlan {
        seed,
        policy,
        workers,
        epochs: data.0,
        splits: data.1,
        max_steps: rules.0,
        evaluate_every: rules.1,
        early_stop: patience.map(|patience| EarlyStopRule { patience, min_delta: 0.5 }),
        checkpoint_every: rules.2,
        losses: faults.0,
        late_joiner: faults.1,
        stops: faults.2,
        leaver: false,
    })
}

/// No batch is skipped and none is pushed twice. All workers finish, or one leaves where the plan has a leaver.
fn check_batches(plan: LoopPlan) -> LoopWorld {
    let world = LoopWorld::run(plan);
    let ended_well = |ending: &&LoopEnd| **ending == LoopEnd::Finished || plan.leaver && **ending == LoopEnd::Left;
    let ended_well = world.endings().iter().filter(ended_well).count();
    // A worker that joins when the others have nothing left to do may come too late for a group with it.
    assert!(ended_well + usize::from(plan.late_joiner) >= plan.workers, "{:?}", world.endings());
    assert_eq!(world.pushed, plan.batches());
    world
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing is lost and nothing is pushed twice over any number of groups: workers are lost, join late, or leave in the middle.
    #[test]
    fn a_hybrid_group_trains_every_batch_once_whoever_is_lost_or_leaves(leaver in any::<bool>(), plan in plans(HYBRID)) {
        check_batches(LoopPlan { stops: false, max_steps: None, early_stop: None, leaver, ..plan }.with_few_losses());
    }

    /// With stops, limits and losses all workers end alike, or the run ends with an error that all have.
    #[test]
    fn a_group_ends_alike_on_all_ranks(in_turns in any::<bool>(), plan in plans(HYBRID)) {
        let losses = if in_turns { 0 } else { plan.losses };
        let late_joiner = plan.late_joiner && !in_turns;
        let plan = LoopPlan { policy: TrainingPolicy::SynchronousGroup { in_turns }, losses, late_joiner, ..plan };
        let world = LoopWorld::run(plan);
        let endings = world.endings();
        prop_assert!(endings.iter().all(|ending| *ending == endings[0]) || world.has_failed(), "{:?}", endings);
        let most = plan.max_steps.unwrap_or(u64::MAX);
        prop_assert!(world.steps() <= most, "{} of {most} steps", world.steps());
    }

    /// Epochs end for all, and all make the same checkpoints.
    #[test]
    fn asynchronous_workers_end_epochs_and_make_checkpoints_together(plan in plans(TrainingPolicy::AsynchronousWorkers)) {
        let plan = LoopPlan { losses: 0, late_joiner: false, evaluate_every: None, max_steps: None, ..plan };
        let world = LoopWorld::run(plan);
        let endings = world.endings();
        prop_assert!(endings.iter().all(|ending| *ending == endings[0]), "{:?}", endings);
        if !plan.stops {
            prop_assert_eq!(endings[0], LoopEnd::Finished);
        }
        if !plan.stops && plan.early_stop.is_none() {
            prop_assert_eq!(world.pushed, plan.batches());
        }
    }

    /// As in a hybrid group. Where no worker is lost, the counts of the first worker are those of all, also of the one that has left.
    #[test]
    fn an_asynchronous_worker_leaves_and_every_batch_is_trained_and_counted_once(
        leaver in any::<bool>(), plan in plans(TrainingPolicy::AsynchronousWorkers),
    ) {
        let plan = LoopPlan { evaluate_every: None, max_steps: None, early_stop: None, stops: false, leaver, ..plan };
        let plan = plan.with_few_losses();
        let world = check_batches(plan);
        if plan.losses == 0 {
            prop_assert_eq!(world.steps_of_all(), plan.batches().len() as u64);
        }
    }

    /// With early stopping all still end alike.
    #[test]
    fn asynchronous_workers_that_settle_end_alike_whoever_is_lost(plan in plans(TrainingPolicy::AsynchronousWorkers)) {
        let plan = LoopPlan { evaluate_every: None, max_steps: None, late_joiner: false, stops: false, losses: plan.losses.min(3), ..plan };
        let endings = LoopWorld::run(plan).endings();
        prop_assert!(endings.iter().all(|ending| *ending == LoopEnd::Finished), "{:?}", endings);
    }

    #[test]
    fn one_worker_trains_every_batch_once(in_turns in any::<bool>(), plan in plans(TrainingPolicy::OneWorker { in_turns: false })) {
        let plan = LoopPlan { policy: TrainingPolicy::OneWorker { in_turns }, losses: 0, late_joiner: false, ..plan };
        let world = LoopWorld::run(plan);
        if !plan.stops && plan.max_steps.is_none() && plan.early_stop.is_none() {
            prop_assert_eq!(world.endings(), [LoopEnd::Finished]);
            prop_assert_eq!(world.pushed, plan.batches());
        }
    }
}
