//! A sweep so far, and what is to be done next. Both follow from the plan and the records of what happened alone: the journal has these
//! records, and their replay is the sweep.
//!
//! | state of a trial | event | then |
//! |---|---|---|
//! | – | chosen | open at rung 0 |
//! | open at rung n | scored at rung n | open at rung n + 1, once it is promoted |
//! | open | failed | failed: worse than all others |

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::ExperimentError;
use crate::sweep::halving::promoted_count;
use crate::sweep::space::{Space, Values, combination_count, grid_point, random_point, trial_rng};
use crate::sweep::{Rungs, tpe};

/// What trials are compared by, on the validation part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Area under the ROC curve: more is better.
    Auc,
    /// Mean binary cross-entropy, nats: less is better.
    Logloss,
    /// Mean AUC of groups: more is better.
    Gauc,
}

/// Measures of a trial on the validation part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialMeasures {
    pub auc: Option<f64>,
    /// Mean binary cross-entropy, nats.
    pub logloss: Option<f64>,
    /// Mean AUC of the groups of `eval.group_by`.
    pub gauc: Option<f64>,
}

impl Metric {
    pub fn name(self) -> &'static str {
        match self {
            Self::Auc => "auc",
            Self::Logloss => "logloss",
            Self::Gauc => "gauc",
        }
    }

    pub fn value(self, measures: &TrialMeasures) -> Option<f64> {
        match self {
            Self::Auc => measures.auc,
            Self::Logloss => measures.logloss,
            Self::Gauc => measures.gauc,
        }
    }

    /// The same, so that more is better. `None` if it is not defined or no number.
    pub fn merit(self, measures: &TrialMeasures) -> Option<f64> {
        let value = self.value(measures).filter(|value| value.is_finite())?;
        Some(if self == Self::Logloss { -value } else { value })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SweepRecord {
    /// A trial was chosen. Trials are numbered from 0 in this order.
    Chosen { trial: usize, values: BTreeMap<String, String> },
    /// A trial was trained to a rung, and scored.
    Scored {
        trial: usize,
        rung: usize,
        /// On the validation part.
        measures: TrialMeasures,
        steps: u64,
        /// Seconds of training up to here.
        seconds: f64,
    },
    /// A trial ended before it was scored.
    Failed { trial: usize, reason: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampler {
    Grid,
    Random,
    /// By chance, where earlier trials were good.
    Tpe,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SweepPlan {
    pub space: Space,
    pub sampler: Sampler,
    /// Seed of every choice by chance.
    pub seed: u64,
    pub trials: usize,
    /// What trials are compared by.
    pub metric: Metric,
    /// How far trials go before the best go on. `None` if each is trained to its end.
    pub rungs: Option<Rungs>,
}

impl SweepPlan {
    /// The number of trials of a space: all combinations of a grid, else as many as were asked for.
    pub fn count_trials(space: &Space, sampler: Sampler, asked: usize) -> Result<usize, ExperimentError> {
        match sampler {
            Sampler::Grid => combination_count(space),
            Sampler::Random | Sampler::Tpe => Ok(asked),
        }
    }

    fn rung_count(&self) -> usize {
        self.rungs.as_ref().map_or(1, |rungs| rungs.levels.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RungScore {
    /// On the validation part.
    pub measures: TrialMeasures,
    pub steps: u64,
    /// Seconds of training up to here.
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Its values, in the order of the space.
    pub values: Values,
    pub scores: Vec<RungScore>,
    /// Why it goes no further, if it has failed.
    pub failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialTask {
    pub trial: usize,
    pub rung: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NextAction {
    /// Note that this trial is chosen, and ask again.
    Note(SweepRecord),
    Train(TrialTask),
    /// Nothing, until a trial that runs is scored or fails.
    Wait,
    Done,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    plan: SweepPlan,
    trials: Vec<Trial>,
}

impl Sweep {
    pub fn new(plan: SweepPlan) -> Self {
        Self { plan, trials: Vec::new() }
    }

    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Refuses a record that does not follow those before, as in the journal of another sweep.
    pub fn apply_record(&mut self, record: &SweepRecord) -> Result<(), &'static str> {
        match record {
            SweepRecord::Chosen { trial, values } => {
                if *trial != self.trials.len() {
                    return Err("a trial is chosen out of order");
                }
                let keys = self.plan.space.parameters().iter().map(|parameter| values.get(&parameter.key).cloned());
                let values: Option<Values> = keys.collect();
                let values = values.ok_or("a trial lacks a key of the space")?;
                self.trials.push(Trial { values, scores: Vec::new(), failure: None });
            }
            SweepRecord::Scored { trial, rung, measures, steps, seconds } => {
                let trial = self.trials.get_mut(*trial).ok_or("a trial is scored that was not chosen")?;
                if *rung != trial.scores.len() {
                    return Err("a trial is scored out of order");
                }
                trial.scores.push(RungScore { measures: *measures, steps: *steps, seconds: *seconds });
            }
            SweepRecord::Failed { trial, reason } => {
                let trial = self.trials.get_mut(*trial).ok_or("a trial failed that was not chosen")?;
                trial.failure = Some(reason.clone());
            }
        }
        Ok(())
    }

    /// What is to be done while these trials run. Trials of a rung that are open come before new ones.
    pub fn next_action(&self, running: &BTreeSet<usize>) -> NextAction {
        let mut members: Vec<usize> = (0..self.trials.len()).collect();
        for rung in 0..self.plan.rung_count() {
            let open: Vec<usize> = members.iter().copied().filter(|trial| self.is_open(*trial, rung)).collect();
            if let Some(trial) = open.iter().find(|trial| !running.contains(trial)) {
                return NextAction::Train(TrialTask { trial: *trial, rung });
            }
            if rung == 0 && self.trials.len() < self.plan.trials {
                return NextAction::Note(self.choose());
            }
            if !open.is_empty() {
                return NextAction::Wait;
            }
            members.retain(|trial| self.merit(*trial, rung).is_some());
            members.sort_by(|one, other| self.by_merit(*one, *other, rung));
            members.truncate(promoted_count(members.len()));
        }
        NextAction::Done
    }

    /// The trials from the best on: those of a higher rung first, failed ones last.
    pub fn ranked_trials(&self) -> Vec<usize> {
        let mut trials: Vec<usize> = (0..self.trials.len()).collect();
        let rungs = |trial: usize| match self.trials[trial].failure {
            None => self.trials[trial].scores.len(),
            Some(_) => 0,
        };
        trials.sort_by(|one, other| {
            let by_rung = rungs(*other).cmp(&rungs(*one));
            by_rung.then_with(|| match rungs(*one) {
                0 => one.cmp(other),
                rungs => self.by_merit(*one, *other, rungs - 1),
            })
        });
        trials
    }

    pub fn best_trial(&self) -> Option<usize> {
        let best = *self.ranked_trials().first()?;
        let trial = &self.trials[best];
        let merit = trial.scores.last().and_then(|score| self.plan.metric.merit(&score.measures));
        (trial.failure.is_none() && merit.is_some()).then_some(best)
    }

    fn choose(&self) -> SweepRecord {
        let (number, SweepPlan { space, seed, .. }) = (self.trials.len(), &self.plan);
        let values = match self.plan.sampler {
            Sampler::Grid => grid_point(space, number),
            Sampler::Random => random_point(space, &mut trial_rng(*seed, number)),
            Sampler::Tpe => {
                let merit = |trial: &Trial| {
                    let score = trial.scores.last().filter(|_| trial.failure.is_none())?;
                    self.plan.metric.merit(&score.measures)
                };
                let tried: Vec<_> = self.trials.iter().map(|trial| (&trial.values, merit(trial))).collect();
                tpe::point(space, &mut trial_rng(*seed, number), &tried)
            }
        };
        let keys = space.parameters().iter().map(|parameter| parameter.key.clone());
        SweepRecord::Chosen { trial: number, values: keys.zip_eq(values).collect::<BTreeMap<_, _>>() }
    }

    fn is_open(&self, trial: usize, rung: usize) -> bool {
        let trial = &self.trials[trial];
        trial.failure.is_none() && trial.scores.len() <= rung
    }

    /// How good a trial was at a rung, also if it failed later: who went on then does not change.
    fn merit(&self, trial: usize, rung: usize) -> Option<f64> {
        self.plan.metric.merit(&self.trials[trial].scores.get(rung)?.measures)
    }

    /// The better one first; of equals the earlier. A measure that is not defined is the worst.
    fn by_merit(&self, one: usize, other: usize, rung: usize) -> std::cmp::Ordering {
        let merit = |trial| self.merit(trial, rung).unwrap_or(f64::NEG_INFINITY);
        merit(other).total_cmp(&merit(one)).then(one.cmp(&other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sweep::RungUnit;

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

    /// Trains one trial after the other by `outcome`; returns the tasks and the records in order.
    fn run(sweep: &mut Sweep, outcome: impl Fn(TrialTask) -> SweepRecord) -> (Vec<TrialTask>, Vec<SweepRecord>) {
        let (mut tasks, mut records) = (Vec::new(), Vec::new());
        loop {
            let record = match sweep.next_action(&BTreeSet::new()) {
                NextAction::Note(record) => record,
                NextAction::Train(task) => {
                    tasks.push(task);
                    outcome(task)
                }
                NextAction::Wait => panic!("nothing runs"),
                NextAction::Done => return (tasks, records),
            };
            sweep.apply_record(&record).unwrap();
            records.push(record);
        }
    }

    #[test]
    fn a_grid_trains_each_combination_once_and_ranks_them() {
        let mut sweep = Sweep::new(plan(&["a=1,2", "b=3,4"], Sampler::Grid, 0, None));
        let aucs = [0.6, 0.8, 0.8, 0.7];
        let (tasks, _) = run(&mut sweep, |task| match task.trial {
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
        let (tasks, _) = run(&mut sweep, |task| match (task.trial, task.rung) {
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
    fn more_merit_is_better_and_what_is_no_number_has_none() {
        let measures = |logloss| TrialMeasures { auc: Some(0.7), logloss, gauc: None };
        assert!(Metric::Logloss.merit(&measures(Some(0.3))) > Metric::Logloss.merit(&measures(Some(0.4))));
        assert_eq!(Metric::Auc.merit(&measures(None)), Some(0.7));
        assert_eq!(Metric::Gauc.merit(&measures(None)), None);
        assert_eq!(Metric::Logloss.merit(&measures(Some(f64::NAN))), None);
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
            let outcome = |task: TrialTask| match aucs[task.trial] {
                0 => SweepRecord::Failed { trial: task.trial, reason: "diverged".to_owned() },
                auc => scored(task, f64::from(auc) / 10.0),
            };
            let mut whole = Sweep::new(plan.clone());
            let (tasks, records) = run(&mut whole, outcome);
            let mut resumed = Sweep::new(plan);
            for record in &records[..killed.min(records.len())] {
                resumed.apply_record(record).unwrap();
            }
            run(&mut resumed, outcome);
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
}
