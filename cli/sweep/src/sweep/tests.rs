//! Sweeps as the caller trains them: orders, promotions, failures, replays.

use proptest::prelude::*;

use super::*;
use crate::RungUnit;

fn plan(texts: &[&str], sampler: Sampler, asked: usize, length: Option<u64>) -> SweepPlan {
    let space = Space::parse(texts.iter().copied()).unwrap();
    let trials = SweepPlan::count_trials(&space, sampler, asked).unwrap();
    let rungs = length.map(|length| Rungs::plan(RungUnit::Steps, length, trials).unwrap());
    SweepPlan { space, sampler, seed: 1, trials, metric: Metric::Auc, rungs }
}

fn scored(task: TrialTask, auc: f64) -> SweepRecord {
    let measures = TrialMeasures { auc: Some(auc), ..TrialMeasures::default() };
    SweepRecord::Scored { trial: task.trial, rung: task.rung, measures, steps: 1, seconds: 1.0 }
}

/// Trains one trial after the other by `outcome`; returns the tasks in order.
fn run(
    sweep: &mut Sweep,
    records: &mut Vec<SweepRecord>,
    mut outcome: impl FnMut(&Sweep, TrialTask) -> SweepRecord,
) -> Vec<TrialTask> {
    let mut tasks = Vec::new();
    loop {
        let record = match sweep.next_action(&BTreeSet::new()) {
            NextAction::Note(record) => record,
            NextAction::Train(task) => {
                tasks.push(task);
                outcome(sweep, task)
            }
            NextAction::Wait => panic!("nothing runs"),
            NextAction::Done => return tasks,
        };
        sweep.apply_record(&record).unwrap();
        records.push(record);
    }
}

#[test]
fn a_grid_trains_each_combination_once_and_ranks_them() {
    let mut sweep = Sweep::new(plan(&["a=1,2", "b=3,4"], Sampler::Grid, 0, None));
    let aucs = [0.6, 0.8, 0.8, 0.7];
    let tasks = run(&mut sweep, &mut Vec::new(), |_, task| match task.trial {
        3 => SweepRecord::Failed { trial: 3, reason: "diverged".to_owned() },
        trial => scored(task, aucs[trial]),
    });
    assert_eq!(tasks.iter().map(|task| task.trial).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((sweep.ranked_trials(), sweep.best_trial()), (vec![1, 2, 0, 3], Some(1)));
    assert_eq!(sweep.trials()[2].values, ["2", "3"]);
}

#[test]
fn the_best_of_each_rung_go_on_and_a_failed_one_does_not() {
    let mut sweep = Sweep::new(plan(&["a=1..100"], Sampler::Random, 9, Some(900)));
    let tasks = run(&mut sweep, &mut Vec::new(), |_, task| match (task.trial, task.rung) {
        (8, 1) => SweepRecord::Failed { trial: 8, reason: "diverged".to_owned() },
        (trial, _) => scored(task, trial as f64 / 10.0),
    });
    let trials_at = |rung| tasks.iter().filter(|task| task.rung == rung).map(|task| task.trial).collect::<Vec<_>>();
    assert_eq!((trials_at(0).len(), trials_at(1), trials_at(2)), (9, vec![8, 7, 6], vec![7]));
    assert_eq!(sweep.ranked_trials()[..3], [7, 6, 5]);
    assert_eq!((sweep.best_trial(), sweep.ranked_trials().last()), (Some(7), Some(&8)));
}

#[test]
fn trials_that_run_are_waited_for_before_any_goes_on() {
    let mut sweep = Sweep::new(plan(&["a=1,2,3"], Sampler::Grid, 0, Some(9)));
    while let NextAction::Note(record) = sweep.next_action(&BTreeSet::from([0, 1, 2])) {
        sweep.apply_record(&record).unwrap();
    }
    assert_eq!(sweep.trials().len(), 3, "trials are chosen while others run");
    assert_eq!(sweep.next_action(&BTreeSet::from([0])), NextAction::Train(TrialTask { trial: 1, rung: 0 }));
    assert_eq!(sweep.next_action(&BTreeSet::from([0, 1, 2])), NextAction::Wait);
    sweep.apply_record(&scored(TrialTask { trial: 0, rung: 0 }, 0.9)).unwrap();
    assert_eq!(sweep.next_action(&BTreeSet::from([1, 2])), NextAction::Wait);
}

#[test]
fn records_of_another_sweep_are_refused() {
    let mut sweep = Sweep::new(plan(&["a=1,2"], Sampler::Grid, 0, None));
    assert!(sweep.apply_record(&scored(TrialTask { trial: 0, rung: 0 }, 0.5)).is_err());
    let values = BTreeMap::from([("b".to_owned(), "1".to_owned())]);
    assert!(sweep.apply_record(&SweepRecord::Chosen { trial: 0, values }).is_err());
    assert_eq!(sweep.best_trial(), None);
}

#[test]
fn a_sweep_whose_trials_all_fail_ends() {
    let mut sweep = Sweep::new(plan(&["a=1,2,3,4"], Sampler::Grid, 0, Some(9)));
    let failed = |_: &Sweep, task: TrialTask| SweepRecord::Failed { trial: task.trial, reason: "x".to_owned() };
    assert_eq!(run(&mut sweep, &mut Vec::new(), failed).len(), 4);
    assert_eq!((sweep.best_trial(), sweep.ranked_trials()), (None, vec![0, 1, 2, 3]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Killed after any record, a sweep goes on as if it had not been.
    #[test]
    fn a_sweep_that_goes_on_from_its_records_is_the_same(
        tpe in any::<bool>(), halving in any::<bool>(), trials in 2_usize..20, killed in 0_usize..60,
        aucs in prop::collection::vec(0_u8..8, 20),
    ) {
        let sampler = if tpe { Sampler::Tpe } else { Sampler::Random };
        let plan = plan(&["a=1..50", "b=x,y"], sampler, trials, halving.then_some(100));
        let outcome = |_: &Sweep, task: TrialTask| match aucs[task.trial] {
            0 => SweepRecord::Failed { trial: task.trial, reason: "diverged".to_owned() },
            auc => scored(task, f64::from(auc) / 10.0),
        };
        let (mut whole, mut records) = (Sweep::new(plan.clone()), Vec::new());
        let tasks = run(&mut whole, &mut records, outcome);
        let mut resumed = Sweep::new(plan);
        for record in &records[..killed.min(records.len())] {
            resumed.apply_record(record).unwrap();
        }
        run(&mut resumed, &mut Vec::new(), outcome);
        prop_assert_eq!(&resumed, &whole);
        prop_assert_eq!(whole.trials().len(), trials);
        // No trial is trained to a rung twice, and none is promoted that was worse than one that stayed.
        let unique: BTreeSet<_> = tasks.iter().map(|task| (task.trial, task.rung)).collect();
        prop_assert_eq!(unique.len(), tasks.len());
        let least = |rung| tasks.iter().filter(|task| task.rung == rung).map(|task| aucs[task.trial]).min();
        let stayed = (0..trials).filter(|trial| tasks.iter().all(|task| (task.trial, task.rung) != (*trial, 1)));
        if let (Some(least), Some(most)) = (least(1), stayed.map(|trial| aucs[trial]).max()) {
            prop_assert!(least >= most);
        }
    }
}
