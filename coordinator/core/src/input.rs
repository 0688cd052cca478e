//! Every input of the core: what may change its state. A journal keeps inputs with their times. Replayed in order, they lead to
//! the same state, because the core has no clock and no chance of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{
    AssignRequest, BarrierRequest, CompleteRequest, GroupRequest, HeartbeatRequest, JoinRequest, LeaveRequest,
    ReportEvaluationRequest, ReportMoveRequest, ScaleRequest, TransformsRequest,
};

use crate::{Core, RunOutcome};

/// An input. Each is a method of [`Core`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CoreInput {
    Join(JoinRequest),
    Heartbeat(HeartbeatRequest),
    Leave(LeaveRequest),
    Group(GroupRequest),
    Barrier(BarrierRequest),
    Assign(AssignRequest),
    Complete(CompleteRequest),
    Transforms(TransformsRequest),
    ReportEvaluation(ReportEvaluationRequest),
    Scale(ScaleRequest),
    ReportMove(ReportMoveRequest),
    /// [`Core::tick`], and every question: it changes nothing but the time.
    Tick,
    Drain(String),
    End(RunOutcome),
    Recover,
}

impl CoreInput {
    /// Makes the call once more. Its answer was given before, and its events were logged before.
    pub fn replay(&self, core: &mut Core, now: Duration) {
        match self {
            Self::Join(request) => drop(core.join(now, request)),
            Self::Heartbeat(request) => drop(core.heartbeat(now, request)),
            Self::Leave(request) => drop(core.leave(now, request)),
            Self::Group(request) => drop(core.group(now, request)),
            Self::Barrier(request) => drop(core.barrier(now, request)),
            Self::Assign(request) => drop(core.assign(now, request)),
            Self::Complete(request) => drop(core.complete(now, request)),
            Self::Transforms(request) => drop(core.transforms(now, request)),
            Self::ReportEvaluation(request) => drop(core.report_evaluation(now, request)),
            Self::Scale(request) => drop(core.scale(now, request)),
            Self::ReportMove(request) => drop(core.report_move(now, request)),
            Self::Tick => core.tick(now),
            Self::Drain(reason) => core.drain_run(now, reason),
            Self::End(outcome) => core.end_run(now, outcome.clone()),
            Self::Recover => core.recover(now),
        }
        core.take_events();
    }
}
