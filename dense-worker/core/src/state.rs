//! The states of a worker. What a state must remember is in it.

use crate::action::LoopEnd;
use crate::agreement::StepAgreement;

/// Where a worker is in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopState {
    Joining,
    /// Leaves a group that has failed, or forms the next.
    Regrouping(RegroupPhase),
    /// Takes the state that training starts from.
    Resuming,
    Training(StepPhase),
    /// Other workers hold the splits that are left.
    Waiting,
    /// Votes with the other asynchronous workers.
    AtBarrier(BarrierPoint),
    Draining(DrainPoint),
    Evaluating(EvaluationPoint),
    Checkpointing(CheckpointPoint),
    /// Ends an epoch or the run.
    Finishing(FinishPhase),
    Ended(LoopEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegroupPhase {
    Leaving,
    /// Waits for the next group.
    Forming {
        /// Groups in a row that failed while they formed.
        attempts: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    AwaitingStream,
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
    Data,
    /// As many steps as the job asked for, or as make the validation part better.
    Steps,
    Interrupted,
    /// All asynchronous workers have decided to stop, at a barrier.
    AllStop,
}

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainPoint {
    BeforeEvaluation {
        checkpoint: bool,
        ahead: Option<StepAgreement>,
    },
    Round(RoundEnd),
    /// At the end of a stream, with why the epoch ends, if it does.
    Stream(Option<RoundEnd>),
    Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationPoint {
    /// Before the first step: an earlier process was interrupted before it.
    Owed,
    BetweenSteps {
        checkpoint: bool,
        /// What all ranks have agreed on for the next step.
        ahead: Option<StepAgreement>,
    },
    EpochEnd(RoundEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPoint {
    BetweenSteps {
        /// What all ranks have agreed on for the next step.
        ahead: Option<StepAgreement>,
    },
    AtBarrier(BarrierPoint),
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishPhase {
    /// Waits until every rank has reported its last splits of the epoch.
    EpochBarrier(RoundEnd),
    /// Checks the books and adds up the measures of the epoch.
    ClosingEpoch(RoundEnd),
    ResettingRows,
    /// Chooses the model and scores it.
    Concluding {
        finished: bool,
    },
    /// Saves what the run leaves, or waits for the first worker, which does.
    Saving {
        finished: bool,
    },
}
