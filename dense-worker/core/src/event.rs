//! What happens to a worker, as its driver reports it.

use std::time::Duration;

use crate::agreement::{BarrierDecision, RankProgress, StepAgreement, StepFacts};
use crate::early_stopping::{MeasuredState, SearchState};

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
        /// Steps that the other workers have made.
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
    /// A call of the group failed.
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
