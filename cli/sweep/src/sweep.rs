//! A sweep so far, and what is to be done next. Both follow from the plan and the records alone.
//!
//! | state of a trial | event | then |
//! |---|---|---|
//! | – | chosen | open at rung 0 |
//! | open at rung n | scored at rung n | open at rung n + 1, once it is promoted |
//! | open | failed | failed: worse than all others |

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::halving::promoted_count;
use crate::record::{Metric, SweepRecord, TrialMeasures};
use crate::space::{Space, Values};
use crate::{Rungs, SpaceError, grid, random, tpe};

/// How points are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampler {
    Grid,
    Random,
    /// By chance, where earlier trials were good.
    Tpe,
}

/// What is searched, and how.
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
    pub fn count_trials(space: &Space, sampler: Sampler, asked: usize) -> Result<usize, SpaceError> {
        match sampler {
            Sampler::Grid => grid::combination_count(space),
            Sampler::Random | Sampler::Tpe => Ok(asked),
        }
    }

    fn rung_count(&self) -> usize {
        self.rungs.as_ref().map_or(1, |rungs| rungs.levels.len())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum TrialState {
    Open,
    /// It cannot, for this reason.
    Failed(String),
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
    pub state: TrialState,
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
    #[must_use]
    pub fn new(plan: SweepPlan) -> Self {
        Self { plan, trials: Vec::new() }
    }

    #[must_use]
    pub fn plan(&self) -> &SweepPlan {
        &self.plan
    }

    #[must_use]
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
                self.trials.push(Trial { values, scores: Vec::new(), state: TrialState::Open });
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
                trial.state = TrialState::Failed(reason.clone());
            }
        }
        Ok(())
    }

    /// What is to be done while these trials run. Trials of a rung that are open come before new ones.
    #[must_use]
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
    #[must_use]
    pub fn ranked_trials(&self) -> Vec<usize> {
        let mut trials: Vec<usize> = (0..self.trials.len()).collect();
        let rungs = |trial: usize| match self.trials[trial].state {
            TrialState::Open => self.trials[trial].scores.len(),
            TrialState::Failed(_) => 0,
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

    #[must_use]
    pub fn best_trial(&self) -> Option<usize> {
        let best = *self.ranked_trials().first()?;
        let trial = &self.trials[best];
        let merit = trial.scores.last().and_then(|score| self.plan.metric.merit(&score.measures));
        (trial.state == TrialState::Open && merit.is_some()).then_some(best)
    }

    fn choose(&self) -> SweepRecord {
        let (number, SweepPlan { space, seed, .. }) = (self.trials.len(), &self.plan);
        let values = match self.plan.sampler {
            Sampler::Grid => grid::point(space, number),
            Sampler::Random => random::point(space, &mut random::trial_rng(*seed, number)),
            Sampler::Tpe => {
                let merit = |trial: &Trial| {
                    let score = trial.scores.last().filter(|_| trial.state == TrialState::Open)?;
                    self.plan.metric.merit(&score.measures)
                };
                let tried: Vec<_> = self.trials.iter().map(|trial| (&trial.values, merit(trial))).collect();
                tpe::point(space, &mut random::trial_rng(*seed, number), &tried)
            }
        };
        let keys = space.parameters().iter().map(|parameter| parameter.key.clone());
        SweepRecord::Chosen { trial: number, values: keys.zip_eq(values).collect::<BTreeMap<_, _>>() }
    }

    fn is_open(&self, trial: usize, rung: usize) -> bool {
        let trial = &self.trials[trial];
        trial.state == TrialState::Open && trial.scores.len() <= rung
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
mod tests;
