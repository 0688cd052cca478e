//! The learning rate over time: a factor on the optimiser's learning rate, by the step of a push.

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::optimizer::RateFactor;

/// The factor on a learning rate, by step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "Schedule", bound = "T: JsonSchema + Default + Serialize")]
pub enum LearningRateSchedule<T = u64> {
    /// Always 1.
    #[default]
    Constant,
    /// The factor rises from 0 to 1. Then it falls linearly to `floor` and stays there.
    Linear {
        /// Steps of the rise from 0 to 1.
        #[serde(default)]
        warmup: T,
        /// Steps of the fall after the rise: at least one.
        decay: T,
        /// Last factor.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        floor: f32,
    },
    /// The factor rises from 0 to 1. Then it falls along half a cosine to `floor` and stays there (Loshchilov and Hutter
    /// 2017, equation 5 without restarts).
    Cosine {
        /// Steps of the rise from 0 to 1.
        #[serde(default)]
        warmup: T,
        /// Steps of the fall after the rise: at least one.
        decay: T,
        /// Last factor.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        floor: f32,
    },
    /// The factor rises from 0 to 1. After that it is multiplied by `factor` every `every` steps.
    Step {
        /// Steps of the rise from 0 to 1.
        #[serde(default)]
        warmup: T,
        /// Steps between two falls: at least one.
        every: T,
        /// The share of the factor that remains after a fall.
        #[serde(default = "half")]
        #[schemars(range(min = 0.0, max = 1.0))]
        factor: f32,
    },
}

fn half() -> f32 {
    0.5
}

impl<T: Copy + Into<u64>> LearningRateSchedule<T> {
    pub fn in_steps(self) -> LearningRateSchedule {
        match self {
            Self::Constant => LearningRateSchedule::Constant,
            Self::Linear { warmup, decay, floor } => {
                LearningRateSchedule::Linear { warmup: warmup.into(), decay: decay.into(), floor }
            }
            Self::Cosine { warmup, decay, floor } => {
                LearningRateSchedule::Cosine { warmup: warmup.into(), decay: decay.into(), floor }
            }
            Self::Step { warmup, every, factor } => {
                LearningRateSchedule::Step { warmup: warmup.into(), every: every.into(), factor }
            }
        }
    }

    /// The rise, and the fall or the steps between two of them.
    pub fn counts_mut(&mut self) -> Option<[&mut T; 2]> {
        match self {
            Self::Constant => None,
            Self::Linear { warmup, decay, .. } | Self::Cosine { warmup, decay, .. } => Some([warmup, decay]),
            Self::Step { warmup, every, .. } => Some([warmup, every]),
        }
    }
}

impl LearningRateSchedule {
    pub(crate) fn rate(&self, step: u64) -> RateFactor {
        if *self == Self::Constant { RateFactor::Constant } else { RateFactor::Times(self.rate_factor(step)) }
    }

    /// The factor at a step. Steps count from 0.
    pub fn rate_factor(&self, step: u64) -> f32 {
        let (warmup, rest): (u64, &dyn Fn(u64) -> f64) = match *self {
            Self::Constant => return 1.0,
            Self::Linear { warmup, decay, floor } => {
                (warmup, &move |step| falling(step, warmup, decay, floor, |done| 1.0 - done))
            }
            Self::Cosine { warmup, decay, floor } => {
                (warmup, &move |step| falling(step, warmup, decay, floor, |done| f64::midpoint(1.0, (PI * done).cos())))
            }
            Self::Step { warmup, every, factor } => {
                (warmup, &move |step| f64::from(factor).powf(((step - warmup) / every.max(1)) as f64))
            }
        };
        if step < warmup { ((step + 1) as f64 / warmup as f64) as f32 } else { rest(step) as f32 }
    }

    pub(crate) fn problem(&self) -> Option<String> {
        let share = |name: &str, value: f32| {
            (!(0.0..=1.0).contains(&value)).then(|| format!("{name} of the schedule is {value}; expected 0 to 1"))
        };
        match *self {
            Self::Constant => None,
            Self::Linear { decay: 0, .. } | Self::Cosine { decay: 0, .. } => {
                Some("the schedule falls over 0 steps; expected at least 1".to_owned())
            }
            Self::Linear { floor, .. } | Self::Cosine { floor, .. } => share("floor", floor),
            Self::Step { every: 0, .. } => Some("the schedule falls every 0 steps; expected at least 1".to_owned()),
            Self::Step { factor, .. } => share("factor", factor),
        }
    }
}

fn falling(step: u64, warmup: u64, decay: u64, floor: f32, left: impl Fn(f64) -> f64) -> f64 {
    let done = ((step - warmup) as f64 / decay.max(1) as f64).min(1.0);
    let floor = f64::from(floor);
    floor + (1.0 - floor) * left(done)
}

#[cfg(test)]
mod tests {
    use zagros_zip::ZipEq;

    use super::*;

    fn factors(schedule: LearningRateSchedule, steps: [u64; 5]) -> [f32; 5] {
        steps.map(|step| schedule.rate_factor(step))
    }

    #[test]
    fn each_kind_rises_and_falls_as_written() {
        assert_eq!(factors(LearningRateSchedule::Constant, [0, 1, 5, 99, u64::MAX]), [1.0; 5]);
        let linear = LearningRateSchedule::Linear { warmup: 4, decay: 4, floor: 0.5 };
        assert_eq!(factors(linear, [0, 3, 4, 6, 100]), [0.25, 1.0, 1.0, 0.75, 0.5]);
        let cosine = LearningRateSchedule::Cosine { warmup: 0, decay: 4, floor: 0.0 };
        let expected = [1.0, 0.853_553_4, 0.5, 0.146_446_6, 0.0];
        for (found, expected) in factors(cosine, [0, 1, 2, 3, 4]).iter().zip_eq(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        let step = LearningRateSchedule::Step { warmup: 2, every: 10, factor: 0.5 };
        assert_eq!(factors(step, [0, 1, 11, 12, 22]), [0.5, 1.0, 1.0, 0.5, 0.25]);
    }

    #[test]
    fn settings_out_of_range_are_reported() {
        assert_eq!(LearningRateSchedule::Constant.problem(), None);
        for (schedule, problem) in [
            (LearningRateSchedule::Linear { warmup: 8, decay: 0, floor: 0.0 }, "falls over 0 steps"),
            (LearningRateSchedule::Cosine { warmup: 0, decay: 8, floor: 1.5 }, "floor of the schedule is 1.5"),
            (LearningRateSchedule::Step { warmup: 0, every: 0, factor: 0.5 }, "every 0 steps"),
            (LearningRateSchedule::Step { warmup: 0, every: 1, factor: f32::NAN }, "factor"),
        ] {
            assert!(schedule.problem().unwrap().contains(problem), "{schedule:?}");
        }
    }
}
