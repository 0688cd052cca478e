//! Barriers of asynchronous workers: for a checkpoint, at the end of an epoch, to stop, when a worker leaves.
//!
//! Asynchronous workers share no step. One asks the coordinator for a checkpoint barrier. All hear of it with their next
//! heartbeats, finish their step by then and come, also those that wait for data. Each votes. The coordinator decides, and
//! all do the same next (AS-1).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierReason {
    /// It was called while training.
    Checkpoint,
    /// It has nothing left to train on in this epoch.
    EpochEnd,
    Stop,
    /// The run goes on without it, and it has trained on all that it has read.
    Leave,
}

/// What all workers do after a barrier: a function of all votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierDecision {
    /// They make a checkpoint and go on. A worker that came to end the epoch comes again.
    Checkpoint,
    EpochOver,
    Stop,
    /// Those that came to leave do so. The others form the next group.
    Regroup,
}

/// The checkpoint barriers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BarrierLog {
    attended: u64,
}

impl BarrierLog {
    #[must_use]
    pub fn last_attended(self) -> u64 {
        self.attended
    }

    #[must_use]
    pub fn next_number(self) -> u64 {
        self.attended + 1
    }

    /// A worker of a new group goes to the barriers after the newest one that any worker of the group was at.
    pub fn start_after(&mut self, newest: u64) {
        self.attended = self.attended.max(newest);
    }

    /// A checkpoint barrier counts for every worker, whatever reason each one gave. `called` is the newest that any of the
    /// workers had heard of. One that was only called when an epoch ends or training stops is still to come. One that a worker
    /// has called to leave is over.
    pub fn attend(&mut self, decision: BarrierDecision, called: u64) {
        if matches!(decision, BarrierDecision::Checkpoint | BarrierDecision::Regroup) {
            self.attended = self.attended.max(called);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_barrier_counts_for_all_and_the_end_of_an_epoch_for_none() {
        let mut log = BarrierLog::default();
        assert_eq!(log.next_number(), 1);
        log.attend(BarrierDecision::Checkpoint, 1);
        log.attend(BarrierDecision::EpochOver, 2);
        assert_eq!(log.next_number(), 2);
        log.attend(BarrierDecision::Checkpoint, 2);
        log.attend(BarrierDecision::Stop, 3);
        assert_eq!((log.last_attended(), log.next_number()), (2, 3));
        log.attend(BarrierDecision::Regroup, 3);
        assert_eq!(log.next_number(), 4);
    }
}
