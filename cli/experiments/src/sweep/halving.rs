//! Successive halving (Jamieson & Talwalkar, AISTATS 2016): all trials go to the first rung, the best of them to the next, and so on.
//!
//! ```text
//! trials 27          ─► rung 0: 1/27 of the training  ─► the best 9
//! trials  9 continue ─► rung 1: 1/9                   ─► the best 3
//! trials  3 continue ─► rung 2: 1/3                   ─► the best 1
//! trial   1 continues ─► rung 3: all of it
//! ```
//!
//! Each rung costs as much as the others. All trials of a rung are scored before any goes on, so the outcome does not depend on
//! which trial ends first.

use serde::{Deserialize, Serialize};

/// One trial in so many goes on.
const ETA: u64 = 3;
/// The first rung is at least this share of the whole: of less, nothing is learned about the end.
const MOST_RUNGS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RungUnit {
    Steps,
    Epochs,
}

/// How far trials go before the best of them go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rungs {
    pub unit: RungUnit,
    /// Ascending; the last is the whole training.
    pub levels: Vec<u64>,
}

impl Rungs {
    /// Rungs for so many trials whose training has this length. `None` if it cannot be divided.
    pub fn plan(unit: RungUnit, length: u64, trials: usize) -> Option<Self> {
        let (mut rungs, mut left) = (0, trials as u64);
        while left > 1 && rungs < MOST_RUNGS && length / ETA.pow(rungs + 1) >= 1 {
            left = left.div_ceil(ETA);
            rungs += 1;
        }
        if rungs == 0 {
            return None;
        }
        // All but the last are multiples of the first, where the job is evaluated.
        let first = length / ETA.pow(rungs);
        let levels = (0..rungs).map(|rung| first * ETA.pow(rung)).chain([length]).collect();
        Some(Self { unit, levels })
    }
}

pub(crate) fn promoted_count(trials: usize) -> usize {
    trials.div_ceil(ETA as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn levels(length: u64, trials: usize) -> Option<Vec<u64>> {
        Rungs::plan(RungUnit::Steps, length, trials).map(|rungs| rungs.levels)
    }

    #[test]
    fn each_rung_is_three_times_the_one_before() {
        assert_eq!(levels(2700, 27), Some(vec![100, 300, 900, 2700]));
        assert_eq!(levels(1000, 9), Some(vec![111, 333, 1000]));
        assert_eq!(levels(1000, 1000), Some(vec![37, 111, 333, 1000]), "no more than three before the end");
        assert_eq!(levels(4, 9), Some(vec![1, 4]));
        assert_eq!([levels(2, 9), levels(1000, 1)], [None, None]);
        assert_eq!([27, 9, 4, 3, 2].map(promoted_count), [9, 3, 2, 1, 1]);
    }

    proptest! {
        #[test]
        fn levels_ascend_to_the_whole_length(length in 1_u64..1_000_000, trials in 1_usize..500) {
            let Some(levels) = levels(length, trials) else { return Ok(()) };
            prop_assert!(levels.is_sorted_by(|one, other| one < other));
            prop_assert_eq!(levels.last(), Some(&length));
            prop_assert!(levels[..levels.len() - 1].iter().all(|level| level % levels[0] == 0));
        }
    }
}
