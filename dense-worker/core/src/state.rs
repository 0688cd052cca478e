//! The states of a worker. What a state must remember is in it.

use crate::action::Ending;
use crate::agreement::StepAgreement;

/// Where a worker is in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Joining,
    /// Leaves a group that has failed, or forms the next.
    Regrouping(Regroup),
    /// Takes the state that training starts from.
    Resuming,
    /// In an epoch.
    Training(StepPhase),
    /// Other workers hold the splits that are left.
    Waiting,
    /// Votes with the other asynchronous workers.
    AtBarrier(BarrierPoint),
    /// Waits for acknowledgements.
    Draining(Drain),
    /// Scores the held-out part.
    Evaluating(EvaluationPoint),
    /// Writes a checkpoint.
    Checkpointing(CheckpointPoint),
    /// Ends an epoch or the run.
    Finishing(Finish),
    /// Training has ended.
    Ended(Ending),
}

/// Parts of [`State::Regrouping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regroup {
    /// Lets go of the group that has failed.
    Leaving,
    /// Waits for the next group. So many groups in a row failed while they formed.
    Forming {
        /// Groups in a row that failed while they formed.
        attempts: u32,
    },
}

/// Parts of [`State::Training`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// Asks the coordinator for splits.
    AwaitingStream,
    /// Waits for the next batch.
    AwaitingBatch {
        /// What all ranks have agreed on for the next step, where they did so with the last one.
        ahead: Option<StepAgreement>,
        /// The run stops after this batch, whose lookup was counted (mode `sync`).
        stopping: bool,
    },
    /// Hears what all ranks bring to the step.
    Agreeing {
        /// This rank has a batch.
        batch: bool,
    },
    /// Makes the step.
    Stepping {
        /// A checkpoint follows.
        checkpoint: bool,
        /// No step follows.
        last: bool,
    },
}

/// Why a round ended. A round is one stream of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundEnd {
    /// The stream has no more batches.
    Data,
    /// As many steps as the job asked for, or as make the validation part better.
    Steps,
    /// A stop was requested.
    Interrupted,
    /// All asynchronous workers have decided to stop, at a barrier.
    AllStop,
}

/// Where a barrier comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierPoint {
    /// Between two steps.
    BetweenSteps,
    /// While this worker waits for splits.
    WhileWaiting,
    EpochEnd(RoundEnd),
    /// Before the last checkpoint.
    Stop,
    /// Before this worker leaves the run.
    Leaving,
}

/// Parts of [`State::Draining`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    BeforeEvaluation {
        /// A checkpoint follows.
        checkpoint: bool,
        /// What all ranks have agreed on for the next step.
        ahead: Option<StepAgreement>,
    },
    Round(RoundEnd),
    /// At the end of a stream, with why the epoch ends, if it does.
    Stream(Option<RoundEnd>),
    /// Before this worker leaves the run.
    Leaving,
}

/// When an evaluation comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationPoint {
    /// Before the first step: an earlier process was interrupted before it.
    Owed,
    /// Between two steps.
    BetweenSteps {
        /// A checkpoint follows.
        checkpoint: bool,
        /// What all ranks have agreed on for the next step.
        ahead: Option<StepAgreement>,
    },
    EpochEnd(RoundEnd),
}

/// When a checkpoint comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPoint {
    /// Between two steps.
    BetweenSteps {
        /// What all ranks have agreed on for the next step.
        ahead: Option<StepAgreement>,
    },
    AtBarrier(BarrierPoint),
    /// After the last step.
    Last,
}

/// Parts of [`State::Finishing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Waits until every rank has reported its last splits of the epoch.
    EpochBarrier(RoundEnd),
    /// Checks the books and adds up the measures of the epoch.
    ClosingEpoch(RoundEnd),
    /// Removes every row before the next epoch.
    ResettingRows,
    /// Chooses the model and scores it.
    Concluding {
        /// Training has finished.
        finished: bool,
    },
    /// Saves what the run leaves, or waits for the first worker, which does.
    Saving {
        /// Training has finished.
        finished: bool,
    },
}
