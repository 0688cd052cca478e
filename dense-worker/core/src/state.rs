//! The states of a worker. What a state must remember is in it.

use crate::action::LoopEnd;
use crate::agreement::StepAgreement;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopState {
    Joining,
    Regrouping(RegroupPhase),
    Resuming,
    Training(StepPhase),
    /// Other workers hold the splits that are left.
    Waiting,
    AtBarrier(BarrierPoint),
    Draining(DrainPoint),
    Evaluating(EvaluationPoint),
    Checkpointing(CheckpointPoint),
    Finishing(FinishPhase),
    Ended(LoopEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegroupPhase {
    Leaving,
    Forming {
        /// Groups in a row that failed while they formed.
        attempts: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    AwaitingStream,
    AwaitingBatch {
        ahead: Option<StepAgreement>,
        /// The run stops after this batch, whose lookup was counted (mode `sync`).
        stopping: bool,
    },
    /// Hears what all ranks bring to the step.
    Agreeing {
        batch: bool,
    },
    Stepping {
        checkpoint: bool,
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
    AllStop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierPoint {
    BetweenSteps,
    WhileWaiting,
    EpochEnd(RoundEnd),
    Stop,
    Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainPoint {
    BeforeEvaluation(EvaluationPoint),
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
        ahead: Option<StepAgreement>,
    },
    EpochEnd(RoundEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPoint {
    BetweenSteps { ahead: Option<StepAgreement> },
    AtBarrier(BarrierPoint),
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishPhase {
    /// Waits until every rank has reported its last splits of the epoch.
    EpochBarrier(RoundEnd),
    ClosingEpoch(RoundEnd),
    ResettingRows,
    Concluding {
        finished: bool,
    },
    /// Saves what the run leaves, or waits for the first worker, which does.
    Saving {
        finished: bool,
    },
}
