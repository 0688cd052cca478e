//! How far each worker is when a group forms, and whose state all continue from.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

/// How far a worker is. Of two, the more advanced is the greater: the fields count in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankProgress {
    /// It has trained in this run, so its state is worth continuing from.
    pub has_trained: bool,
    /// The epoch that it is in, from 0; the number of epochs once all are over.
    pub epoch: u32,
    pub steps: u64,
    /// Steps made before its last evaluation.
    pub evaluated: u64,
    /// The newest checkpoint barrier that it was at; 0 where workers make each step together.
    #[serde(default)]
    pub barriers: u64,
}

impl RankProgress {
    /// Whether the most advanced rank has made the step in which this worker's group failed. The sums of a step arrive
    /// everywhere or fail during the step: at most one step is between two ranks.
    #[must_use]
    pub fn was_step_made_by(self, most_advanced: Self) -> bool {
        self.has_trained && most_advanced.steps == self.steps + 1
    }
}

/// The rank whose state all continue from: the most advanced, of equals the lowest. `None` when no rank has trained.
#[must_use]
pub fn most_advanced(all: &[RankProgress]) -> Option<usize> {
    let trained = all.iter().enumerate().filter(|(_, progress)| progress.has_trained);
    trained.max_by_key(|(rank, progress)| (**progress, Reverse(*rank))).map(|(rank, _)| rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_progress(epoch: u32, steps: u64, evaluated: u64) -> RankProgress {
        RankProgress { has_trained: true, epoch, steps, evaluated, barriers: 0 }
    }

    #[test]
    fn all_follow_the_most_advanced_rank_and_of_equals_the_lowest() {
        let new = RankProgress { has_trained: false, epoch: 9, steps: 9, evaluated: 9, barriers: 0 };
        assert_eq!(most_advanced(&[new, new]), None);
        assert_eq!(most_advanced(&[new, rank_progress(0, 0, 0)]), Some(1));
        assert_eq!(most_advanced(&[rank_progress(0, 7, 0), rank_progress(0, 8, 0), rank_progress(0, 8, 0)]), Some(1));
        assert_eq!(most_advanced(&[rank_progress(0, 8, 0), rank_progress(0, 8, 8), rank_progress(0, 7, 0)]), Some(1));
        assert_eq!(most_advanced(&[rank_progress(0, 9, 0), rank_progress(1, 8, 0), new]), Some(1));
    }

    #[test]
    fn a_step_was_made_elsewhere_where_another_rank_is_one_step_further() {
        assert!(rank_progress(0, 7, 0).was_step_made_by(rank_progress(0, 8, 0)));
        assert!(!rank_progress(0, 8, 0).was_step_made_by(rank_progress(0, 8, 8)));
        assert!(!RankProgress { steps: 7, ..RankProgress::default() }.was_step_made_by(rank_progress(0, 8, 0)));
    }
}
