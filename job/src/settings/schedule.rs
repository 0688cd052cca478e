//! Schedules of learning rates, and numbers of steps that may be given in epochs.
//!
//! ```text
//! warmup = { epochs = 0.1 }  ─► train.epoch_steps: steps of an epoch, by the user or counted when a run starts ─► steps
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_table::LearningRateSchedule;

use super::Job;

/// A number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum StepCount {
    /// So many.
    Steps(#[schemars(range(max = 1_000_000_000_000_u64))] u64),
    /// Those of so many epochs.
    Epochs(EpochCount),
}

/// A number of steps in epochs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochCount {
    /// So many epochs, such as 0.5. They become steps by `train.epoch_steps`, rounded, at least one.
    #[schemars(range(max = 10_000.0), extend("exclusiveMinimum" = 0.0))]
    pub epochs: f64,
    /// The steps of an epoch, once they are known.
    #[serde(skip)]
    of_epoch: Option<u64>,
}

impl Default for StepCount {
    fn default() -> Self {
        Self::Steps(0)
    }
}

impl From<u64> for StepCount {
    fn from(steps: u64) -> Self {
        Self::Steps(steps)
    }
}

impl StepCount {
    /// The steps; 0 while those of an epoch are not known, with which no role starts ([`Job::keys_in_epochs`]).
    pub fn in_steps(self) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Epochs(EpochCount { epochs, of_epoch }) => {
                of_epoch.map_or(0, |steps| ((epochs * steps as f64).round() as u64).max(1))
            }
        }
    }

    fn is_in_epochs(self) -> bool {
        matches!(self, Self::Epochs(_))
    }

    fn count(&mut self, steps: u64) {
        if let Self::Epochs(EpochCount { of_epoch, .. }) = self {
            *of_epoch = Some(steps);
        }
    }
}

impl From<StepCount> for u64 {
    fn from(count: StepCount) -> Self {
        count.in_steps()
    }
}

/// One whose numbers of steps may be given in epochs.
pub type RateSchedule = LearningRateSchedule<StepCount>;

fn is_in_epochs(mut schedule: RateSchedule) -> bool {
    schedule.counts_mut().is_some_and(|counts| counts.iter().any(|count| count.is_in_epochs()))
}

/// Whether it falls over no step.
pub(crate) fn falls_at_once(mut schedule: RateSchedule) -> bool {
    schedule.counts_mut().is_some_and(|[_, fall]| *fall == StepCount::Steps(0))
}

impl Job {
    pub fn keys_in_epochs(&self) -> Vec<String> {
        let train = &self.train;
        let of_train = [
            ("train.evaluate_every", train.evaluate_every.is_some_and(StepCount::is_in_epochs)),
            ("train.schedule", is_in_epochs(train.updates.schedule)),
        ];
        let of_train = of_train.into_iter().filter(|(_, is)| *is).map(|(key, _)| key.to_owned());
        let tables = self.tables.iter().filter(|table| is_in_epochs(table.schedule));
        of_train.chain(tables.map(|table| format!("the schedule of table `{}`", table.name))).collect()
    }

    /// Keys in epochs for which nothing says how many steps an epoch has: `train.epoch_steps` is neither given nor counted.
    pub fn uncounted_keys(&self) -> Vec<String> {
        if self.train.epoch_steps.is_some() { Vec::new() } else { self.keys_in_epochs() }
    }

    /// Makes steps of epochs: an epoch has so many.
    pub fn count_epochs(&mut self, steps: u64) {
        self.train.epoch_steps = Some(steps);
        let schedules = self.tables.iter_mut().map(|table| &mut table.settings.schedule);
        let schedules = schedules.chain([&mut self.train.updates.schedule]);
        let counts = schedules.filter_map(RateSchedule::counts_mut).flatten();
        counts.chain(&mut self.train.evaluate_every).for_each(|count| count.count(steps));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, assert_problems, assert_reloads, job};

    const EPOCHS: &str = "[train]\nevaluate_every = { epochs = 0.5 }\nschedule = { kind = 'cosine', warmup = { epochs = 0.001 }, decay = { epochs = 2 } }\n\
        [embedding]\nschedule = { kind = 'step', every = { epochs = 0.25 } }\n[tables.C1]\nschedule = { kind = 'linear', warmup = 3, decay = 9 }\n";

    #[test]
    fn epochs_become_steps_once_those_of_one_are_known() {
        let mut counted = job(CRITEO, EPOCHS);
        let keys = counted.uncounted_keys();
        assert_eq!((keys.len(), keys[..2].join(" ")), (2 + 25, "train.evaluate_every train.schedule".to_owned()));
        counted.count_epochs(430);
        assert_eq!((counted.uncounted_keys().len(), counted.keys_in_epochs().len()), (0, 27));
        assert_eq!(counted.train.evaluate_every.map(StepCount::in_steps), Some(215));
        let cosine = LearningRateSchedule::Cosine { warmup: 1, decay: 860, floor: 0.0 };
        assert_eq!(counted.train.updates.schedule.in_steps(), cosine);
        let schedule =
            |name: &str| counted.tables.iter().find(|table| table.name == name).unwrap().table_config().schedule;
        assert_eq!(schedule("C2"), LearningRateSchedule::Step { warmup: 0, every: 108, factor: 0.5 });
        assert_eq!(schedule("C1"), LearningRateSchedule::Linear { warmup: 3, decay: 9, floor: 0.0 });
    }

    /// The job of a run says how many steps an epoch had, and loads as what it was.
    #[test]
    fn what_was_counted_is_written_and_is_no_change_of_the_job() {
        let given = job(CRITEO, EPOCHS);
        let mut counted = given.clone();
        counted.count_epochs(430);
        assert_reloads(&counted);
        assert!(counted.to_toml().contains("epoch_steps = 430"));
        assert_eq!((given.changes_since(&counted), counted.changes_since(&given)), (vec![], vec![]));
        let mut other = given;
        other.count_epochs(431);
        assert_eq!(other.changes_since(&counted).len(), 1, "both say how many");
        let (two, three) = (job(CRITEO, &EPOCHS.replace("= 2 }", "= 3 }")), job(CRITEO, EPOCHS));
        assert_eq!(two.changes_since(&three).len(), 1);
    }

    #[test]
    fn falls_over_no_step_are_refused() {
        let rows = r#"
            [train]; schedule = { kind = 'linear', decay = 0 } => `train.schedule` falls over 0 steps
            [embedding]; schedule = { kind = 'step', every = 0 }; [tables.C1]; schedule = { kind = 'linear', decay = 0 } => `embedding.schedule` falls over 0 steps & `tables.C1.schedule` falls over 0 steps
            [train]; evaluate_every = 0 => `train.evaluate_every` is 0
            [train]; evaluate_every = { epochs = 0 } => …above 0
        "#;
        assert_problems(CRITEO, rows);
    }
}
