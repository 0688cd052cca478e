//! What a driver does for the loop.

use std::time::Duration;

use crate::agreement::{BarrierReason, RankProgress, StepVote, VoteRule};

/// What to do. Those after `Form` have a reply; those before it have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Report that a worker is lost: the others wait for its replacement.
    ReportLost,
    ReportJoin,
    /// Warn that this mode does not continue without a lost worker.
    WarnNoRegroup,
    /// Measure an epoch anew.
    StartEpoch(u32),
    /// Start to read, or only to step with others, and let the clock of training run.
    StartRound {
        stream: bool,
        /// At most so many batches.
        limit: u64,
    },
    AskForBarrier(u64),
    ResumeClock,
    /// Let the window admit another batch.
    ReleasePermit,
    /// Drop the measures of the epoch that just ended: it is evaluated again.
    ForgetEpoch,

    /// Wait for the first group later than this generation, and join it with this progress.
    Form {
        after: u64,
        progress: RankProgress,
    },
    /// Load the checkpoint that rank 0 has, where there is one.
    Resume,
    Follow {
        source: usize,
        /// What becomes of the batch of the step in which the last group failed.
        in_flight: InFlight,
        /// The source is further than this worker: its counts are taken too.
        adopt: bool,
        /// Both are in the same epoch: the stream goes on at the resume cursor.
        same_epoch: bool,
    },
    /// Let go of a group that has failed. Nothing of its last step stays in flight.
    LeaveGroup,
    /// Ask the coordinator for splits of the epoch. The rest of this worker's own stream comes first.
    FindStream(u32),
    WaitForSplits {
        pause: Duration,
        /// Listen for barriers later than this one, and for a newer process group.
        barriers_after: Option<u64>,
    },
    NextBatch {
        stop: bool,
        /// Wait no longer than the job's timeout.
        deadline: bool,
        /// Listen for barriers later than this one, and for a newer process group.
        barriers_after: Option<u64>,
    },
    /// Tell all ranks what this one brings to the next step, and hear what they bring.
    Agree {
        vote: StepVote,
        batch: bool,
    },
    Step {
        /// With this worker's batch; else only with those of others.
        batch: bool,
        /// How to vote on the step after this one, should its batch be there before this step ends.
        ahead: Option<VoteRule>,
        /// No step follows: the loss is not judged.
        last: bool,
    },
    Drain,
    Evaluate,
    Checkpoint,
    CloseRound {
        /// The limit of bad rows was checked after the last step already.
        checked: bool,
    },
    /// Report splits that ended in no batch.
    CompleteStream,
    Vote(BarrierReason),
    WaitForAll,
    /// Check that every row was trained on, where the data has ended, and add up the measures of the epoch.
    CloseEpoch {
        epoch: u32,
        /// The data has ended.
        check_books: bool,
    },
    /// Remove every row from the embedding servers: the next epoch begins with new ones.
    ResetRows,
    FinalCheckpoint,
    Conclude {
        finished: bool,
    },
    Save {
        finished: bool,
        /// The other workers wait until the first has saved: one of them may have to train its replacement.
        together: bool,
    },
    /// Training has ended. There is no reply.
    End(LoopEnd),
}

impl Action {
    #[must_use]
    pub fn has_reply(&self) -> bool {
        !matches!(
            self,
            Self::ReportLost
                | Self::ReportJoin
                | Self::WarnNoRegroup
                | Self::StartEpoch(_)
                | Self::StartRound { .. }
                | Self::AskForBarrier(_)
                | Self::ResumeClock
                | Self::ReleasePermit
                | Self::ForgetEpoch
                | Self::End(_)
        )
    }
}

/// What becomes of a batch in flight after its group failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Other ranks have made the step with this worker's gradients: its row gradients are pushed.
    Push,
    /// No rank has made the step: the batch is read again.
    ReadAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopEnd {
    /// As the job wanted.
    Finished,
    /// This worker has left the run, which goes on without it. It holds no split.
    Left,
    /// This process was asked to end, or the run is drained.
    Interrupted,
    Failed(FailureCause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// The last event says so.
    LastEvent,
    /// No worker that has trained is left.
    NobodyLeft,
    /// Workers joined again and again, and no step was made.
    OnlyJoins,
    /// The last event is no reply to the last action. The driver is wrong.
    Unexpected,
}
