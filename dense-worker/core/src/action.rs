//! What happens to a worker, as its driver reports it, and what a driver does for the loop.

use std::time::Duration;

use zagros_protocol::control::{BarrierDecision, BarrierReason};

use crate::agreement::{RankProgress, StepAgreement, StepFacts, StepVote, VoteRule};
use crate::config::{MeasuredState, SearchState};

/// What happened. Each but the last three is the reply to one action.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Reply to `Form`: the group has formed. A job of one worker has none.
    Formed {
        group: Option<GroupMember>,
        progress: Vec<RankProgress>,
    },
    /// Reply to `Resume` and `Follow`: the state to train on from is there.
    Ready(LoopCounts),
    Left,
    /// Reply to `FindStream`: there are splits to read.
    StreamFound,
    /// Reply to `FindStream`: other workers hold what is left.
    SplitsHeld {
        pause: Duration,
        /// So much time has passed since the last checkpoint that another is due.
        checkpoint_by_time: bool,
    },
    /// Reply to `FindStream`: every split of the epoch is complete.
    NoSplits,
    /// Reply to `FindStream`: the run goes on without this worker, which has read all that it will ever get.
    LetGo,
    /// Reply to `WaitForSplits`: it is time to ask again.
    WaitOver,
    /// Reply to `NextBatch`: a batch with samples and its rows are there.
    BatchReady(StepFacts),
    /// Reply to `NextBatch`: the stream has no more batches, or there is no stream.
    StreamDry(StepFacts),
    /// Reply to `NextBatch`: this process was asked to end, or the run is drained.
    StopRequested,
    /// Reply to `NextBatch` with a deadline: the batch did not come in time.
    BatchLate,
    /// Reply to `NextBatch` and `WaitForSplits`: it is time for a barrier.
    BarrierDue,
    /// Reply to `NextBatch` and `WaitForSplits` of an asynchronous worker: a newer process group than its own has formed.
    GroupDue,
    Agreed(StepAgreement),
    /// Reply to `Step`: the step was made, or skipped because its gradient is not finite.
    Stepped {
        /// What all ranks bring to the next step, where all knew it in time.
        ahead: Option<StepAgreement>,
    },
    /// Reply to `Drain`: every gradient is acknowledged and every complete split is reported.
    Drained,
    Evaluated {
        measured: Option<MeasuredState>,
    },
    /// Reply to `Checkpoint` and `FinalCheckpoint`. A checkpoint that could not be written is no failure of training.
    CheckpointDone,
    /// Reply to `Vote`: what all workers do next.
    BarrierDecided {
        /// A function of the votes of all workers.
        decision: BarrierDecision,
        /// The newest checkpoint barrier that any of them had heard of.
        called: u64,
        others_steps: u64,
    },
    /// Reply to `WaitForAll`: every rank has reached the end of the epoch.
    AllHere,
    /// Reply to `CloseEpoch`: the books are right and the measures are added up.
    EpochClosed,
    /// Reply to `ResetRows`: no server has a row, and every rank knows.
    RowsReset,
    /// Reply to `Conclude`: the model is chosen and scored.
    Concluded,
    /// Reply to `Save`: what the run leaves is written, as far as this worker writes it or waits for it.
    Saved,
    /// The action was given up: this process was asked to end, or the run is drained.
    Interrupted,
    Lost(GroupFailure),
    /// The action failed. Training cannot go on. A fenced worker reports this too.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    pub rank: u32,
    pub generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFailure {
    pub generation: u64,
    /// It is about another worker, not about this worker's own address.
    pub about_others: bool,
    /// This worker must stop anyway.
    pub stop_requested: bool,
}

/// What the loop counts, when training starts from a state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoopCounts {
    pub epoch: u32,
    /// Steps made: the run's own in a group, else this worker's.
    pub steps: u64,
    pub others_steps: u64,
    pub evaluated: Option<u64>,
    pub search: SearchState,
    /// Nothing was trained on in this epoch, here or before.
    pub untouched: bool,
}

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
