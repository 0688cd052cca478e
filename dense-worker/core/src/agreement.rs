//! What workers agree on: the ranks of a synchronous group before a step, all of a group when it forms, and asynchronous workers
//! at barriers.
//!
//! When a group forms, all learn how far each worker is, and continue from the state of one.
//!
//! Barriers are for a checkpoint, at the end of an epoch, to stop, when a worker leaves. Asynchronous workers share no step. One asks the
//! coordinator for a checkpoint barrier. All hear of it with their next heartbeats, finish their step by then and come, also those that
//! wait for data. Each votes. The coordinator decides, and all do the same next (AS-1).

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::BarrierDecision;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepVote {
    pub stop: bool,
    /// A checkpoint is due after the step. Rank 0 says so.
    pub checkpoint: bool,
    /// Another worker waits to join, as rank 0 says. Or this rank leaves the run, which goes on without it.
    pub regroup: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepAgreement {
    /// Samples of all ranks; 0 when no rank has a batch.
    pub samples: u64,
    pub stop: bool,
    pub checkpoint: bool,
    /// All leave the group, for one with more or fewer workers, in place of the step.
    pub regroup: bool,
}

impl StepAgreement {
    /// The agreement with one more rank in it, which brings so many samples.
    #[must_use]
    pub fn with_vote(mut self, vote: StepVote, samples: u64) -> Self {
        self.samples += samples;
        self.stop |= vote.stop;
        self.checkpoint |= vote.checkpoint;
        self.regroup |= vote.regroup;
        self
    }
}

/// What a vote depends on besides the loop's own state. The driver looks it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepFacts {
    /// So much time has passed since the last checkpoint that another is due.
    pub checkpoint_by_time: bool,
    /// The generation of the newest group that the coordinator has formed.
    pub newest_group: u64,
    /// This worker was asked to end, and the run goes on without it.
    pub leaves: bool,
}

/// How a rank votes on one step. The driver asks it early when the next batch is there before a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteRule {
    pub(crate) leads: bool,
    pub(crate) is_due_by_step: bool,
    pub(crate) generation: u64,
}

impl VoteRule {
    pub fn vote(self, facts: StepFacts) -> StepVote {
        let checkpoint = self.leads && (self.is_due_by_step || facts.checkpoint_by_time);
        let regroup = self.leads && facts.newest_group > self.generation;
        StepVote { stop: false, checkpoint, regroup }
    }
}

/// The newest checkpoint barrier that a worker was at, which was at number `attended` before. It counts for every
/// worker, whatever reason each one gave. `called` is the newest that any of the workers had heard of. One that was
/// only called when an epoch ends or training stops is still to come. One that a worker has called to leave is over.
pub(crate) fn newest_attended(decision: BarrierDecision, attended: u64, called: u64) -> u64 {
    match decision {
        BarrierDecision::Checkpoint | BarrierDecision::Regroup => attended.max(called),
        _ => attended,
    }
}

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
    pub barriers: u64,
}

impl RankProgress {
    /// Whether the most advanced rank has made the step in which this worker's group failed. The sums of a step arrive
    /// everywhere or fail during the step: at most one step is between two ranks.
    pub(crate) fn was_step_made_by(self, most_advanced: Self) -> bool {
        self.has_trained && most_advanced.steps == self.steps + 1
    }
}

/// The rank whose state all continue from: the most advanced, of equals the lowest. `None` when no rank has trained.
pub(crate) fn most_advanced(all: &[RankProgress]) -> Option<usize> {
    let trained = all.iter().enumerate().filter(|(_, progress)| progress.has_trained);
    trained.max_by_key(|(rank, progress)| (**progress, Reverse(*rank))).map(|(rank, _)| rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_barrier_counts_for_all_and_the_end_of_an_epoch_for_none() {
        use BarrierDecision::{Checkpoint, EpochOver, Regroup, Stop};
        let mut attended = 0;
        for (decision, called, newest) in
            [(Checkpoint, 1, 1), (EpochOver, 2, 1), (Checkpoint, 2, 2), (Stop, 3, 2), (Regroup, 3, 3)]
        {
            attended = newest_attended(decision, attended, called);
            assert_eq!(attended, newest, "{decision:?}");
        }
    }

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
