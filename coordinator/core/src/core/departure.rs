//! A worker that was asked to end leaves, and the run goes on without it (invariant RK-4, ADR 47).
//!
//! The worker trains on what it has read, and gets no more splits. So it holds none when it leaves. Each of its samples is
//! trained on once.

use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{AssignResponse, EpochDone, JoinRequest, LeaveRequest, Outcome};

use super::Core;
use crate::members::MemberState;
use crate::run::RunState;
use crate::{MemberSlot, Role, RunEvent, RunOutcome};

/// The answer to a worker that leaves and asks for a split.
pub(super) fn nothing_more() -> AssignResponse {
    AssignResponse { work: Some(Work::EpochDone(EpochDone { leave: true })) }
}

impl Core {
    /// Whether a member that was asked to end may leave while the run goes on. Once it may, it may for good.
    pub(super) fn lets_go(&mut self, slot: MemberSlot) -> bool {
        if self.members.is_leaving(slot) {
            return true;
        }
        let may_leave =
            self.run == RunState::Training && self.groups.generation() > 0 && self.roster().can_let_go(slot);
        if may_leave {
            self.members.let_go(slot);
        }
        may_leave
    }

    /// No other process is expected in its slot.
    pub(super) fn note_departure(&mut self, slot: MemberSlot, request: &LeaveRequest) -> bool {
        let has_departed = self.members.member_state(slot) == Some(MemberState::GivenUp);
        let is_interrupted = request.outcome == Outcome::Interrupted as i32;
        // A worker that was counted takes no part in a drain.
        let goes_on = self.run.is_under_way() || (self.run.drain_reason().is_some() && self.members.is_counted(slot));
        if !self.members.is_leaving(slot) || !is_interrupted || !goes_on {
            return false;
        }
        if !has_departed {
            self.members.give_up(slot);
            self.data.release_splits(slot);
            self.groups.note_loss(slot);
            let outcome = "the run goes on without it".to_owned();
            self.events.push(RunEvent::MemberLeft { slot, outcome });
            self.finish_when_done();
        }
        true
    }

    /// Whether a worker joins after training is over. In mode `sync` the first worker saves alone.
    pub(super) fn has_no_work_for(&self, request: &JoinRequest) -> bool {
        let is_over = self.run.outcome() == Some(&RunOutcome::Finished);
        let is_worker = Role::from_wire(request.role) == Some(Role::DenseWorker);
        is_worker && (is_over || (self.config.fixed_splits && self.roster().is_trained() && request.index > 0))
    }
}
