//! Barriers of asynchronous workers: for a checkpoint, at the end of an epoch, to stop.
//!
//! Asynchronous workers share no step. One asks the coordinator for a barrier. All hear of it with their next heartbeats,
//! finish their step by then and come, also those that wait for data. Each votes, and all do the same next (AS-1).

use serde::{Deserialize, Serialize};

/// Why a worker comes to a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierReason {
    /// It was called while training.
    Checkpoint,
    /// It has nothing left to train on in this epoch.
    EpochEnd,
    /// It was asked to stop.
    Stop,
}

/// What a worker brings to a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierVote {
    /// Why it comes.
    pub reason: BarrierReason,
    /// The number of the newest barrier that it has heard of.
    pub called: u64,
}

/// What all workers do after a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierDecision {
    /// They make a checkpoint and go on.
    Checkpoint,
    /// The epoch is over for all.
    EpochOver,
    /// They make the last checkpoint.
    Stop,
}

impl BarrierDecision {
    /// An epoch is over once all came to end it. Until then, those who did come again.
    pub fn of(reasons: impl Iterator<Item = BarrierReason> + Clone) -> Self {
        let anyone = |reason| reasons.clone().any(|other| other == reason);
        match (anyone(BarrierReason::Stop), anyone(BarrierReason::Checkpoint)) {
            (true, _) => Self::Stop,
            (false, true) => Self::Checkpoint,
            (false, false) => Self::EpochOver,
        }
    }
}

/// The barriers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BarrierLog {
    attended: u64,
}

impl BarrierLog {
    /// The number of the last barrier that this worker was at.
    #[must_use]
    pub fn attended(self) -> u64 {
        self.attended
    }

    /// The number of the barrier to ask for.
    #[must_use]
    pub fn next(self) -> u64 {
        self.attended + 1
    }

    /// A checkpoint barrier counts for every worker, whatever reason each one gave. One that was only called when an epoch
    /// ends or training stops is still to come.
    pub fn attend(&mut self, votes: &[BarrierVote]) -> BarrierDecision {
        let decision = BarrierDecision::of(votes.iter().map(|vote| vote.reason));
        if decision == BarrierDecision::Checkpoint {
            self.attended = votes.iter().map(|vote| vote.called).fold(self.attended, u64::max);
        }
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(reason: BarrierReason, called: u64) -> BarrierVote {
        BarrierVote { reason, called }
    }

    #[test]
    fn an_epoch_ends_once_all_came_to_end_it_and_whoever_stops_has_all_stop() {
        use BarrierReason::{Checkpoint, EpochEnd, Stop};
        let of = |reasons: [BarrierReason; 3]| BarrierDecision::of(reasons.into_iter());
        assert_eq!(of([EpochEnd; 3]), BarrierDecision::EpochOver);
        assert_eq!([of([Checkpoint; 3]), of([EpochEnd, Checkpoint, EpochEnd])], [BarrierDecision::Checkpoint; 2]);
        assert_eq!([of([Checkpoint, Stop, EpochEnd]), of([EpochEnd, EpochEnd, Stop])], [BarrierDecision::Stop; 2]);
    }

    #[test]
    fn a_checkpoint_barrier_counts_for_all_and_the_end_of_an_epoch_for_none() {
        use BarrierReason::{Checkpoint, EpochEnd, Stop};
        let mut log = BarrierLog::default();
        assert_eq!(log.next(), 1);
        assert_eq!(log.attend(&[vote(Checkpoint, 1), vote(EpochEnd, 0)]), BarrierDecision::Checkpoint);
        assert_eq!(log.attend(&[vote(EpochEnd, 1), vote(EpochEnd, 2)]), BarrierDecision::EpochOver);
        assert_eq!(log.next(), 2);
        assert_eq!(log.attend(&[vote(EpochEnd, 1), vote(Checkpoint, 2)]), BarrierDecision::Checkpoint);
        assert_eq!(log.attend(&[vote(Stop, 2), vote(EpochEnd, 3)]), BarrierDecision::Stop);
        assert_eq!((log.attended(), log.next()), (2, 3));
    }
}
