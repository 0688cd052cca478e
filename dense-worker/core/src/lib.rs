//! The training loop of a dense worker as a pure state machine: event in, actions out.
//!
//! [`TrainingLoop`] decides; a driver (`dense-worker/src/control`) performs. The driver starts the loop and performs the
//! [`Action`]s that it gets, in their order. The last of them has a reply: the driver reports it as an [`Event`] and gets
//! the next actions. An action that fails is reported in place of the reply ([`Event::Failed`], [`Event::Lost`],
//! [`Event::Interrupted`]). The loop ends with [`Action::End`].
//!
//! This crate knows no clock, file, network, tensor or thread. An event carries each fact that a decision needs: whether a
//! checkpoint is due by time, which group is the newest, how far each rank is.
//!
//! Three policies decide for the modes ([`TrainingPolicy`]):
//!
//! | policy | a step | an epoch ends | a worker is lost |
//! |---|---|---|---|
//! | one worker | is the worker's own | when the coordinator has no split left | there is no other worker |
//! | synchronous group | is agreed on by all ranks | with a round in which no rank had a batch | mode `hybrid` regroups at once; mode `sync` ends |
//! | asynchronous workers | is the worker's own | when all vote at a barrier to end it | the others train on, and regroup with its replacement |
//!
//! `docs/worker-states.md` shows every transition. A test makes that page from this crate.

mod action;
mod agreement;
mod config;
mod state;
mod training_loop;

pub use action::{Action, Event, FailureCause, GroupFailure, GroupMember, InFlight, LoopCounts, LoopEnd};
pub use agreement::{RankProgress, StepAgreement, StepFacts, StepVote, VoteRule};
pub use config::{BestState, EarlyStopRule, LoopConfig, MeasuredState, PatienceUse, SearchState, TrainingPolicy};
pub use state::{
    BarrierPoint, CheckpointPoint, DrainPoint, EvaluationPoint, FinishPhase, LoopState, RegroupPhase, RoundEnd,
    StepPhase,
};
pub use training_loop::TrainingLoop;
pub use zagros_protocol::control::{BarrierDecision, BarrierReason};
