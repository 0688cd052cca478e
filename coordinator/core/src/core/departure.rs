//! How members go, and how the run ends: by its work, by a drain, or because something failed. The first outcome stays.
//!
//! A worker that was asked to end leaves, and the run goes on without it (invariant RK-4, ADR 47). It trains on what it has read,
//! and gets no more splits. So it holds none when it leaves. Each of its samples is trained on once.

use std::time::Duration;

use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{AssignResponse, EpochDone, JoinRequest, LeaveRequest, Outcome};

use super::Core;
use crate::members::{ExpiredLease, MemberState};
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
        let may_leave = self.run == RunState::Training && self.groups.generation > 0 && self.roster().can_let_go(slot);
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
            self.data.ledger.release_splits(slot);
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

    /// Lets leases expire. The run waits for another process in the slot of a lost worker. If none comes in time, the run
    /// continues with the other workers, or fails if they are too few.
    pub(super) fn expire_leases(&mut self, now: Duration) {
        for expired in self.members.expire_leases(now) {
            self.note_loss(now, expired);
        }
        self.give_up_released(now);
        while let Some(expired) = self.members.overdue_worker(now, self.config.timeout) {
            let slot = expired.slot;
            if self.run != RunState::Saved && !self.roster().can_do_without(slot, self.groups.generation > 0) {
                return self.finish_run(RunOutcome::Failed(self.roster().why_not_without(expired)));
            }
            self.members.give_up(slot);
            self.data.ledger.release_splits(slot);
            let (timeout, left) = (self.config.timeout, self.roster().alive_worker_count());
            self.events.push(RunEvent::WorkerGivenUp { slot, timeout, left });
        }
    }

    pub(super) fn note_loss(&mut self, now: Duration, expired: ExpiredLease) {
        let ExpiredLease { slot, silence } = expired;
        // The source would stay frozen while no server copies its rows.
        self.abandon_move_of(now, slot, "is lost: silent for longer than its lease");
        let splits = self.data.ledger.suspend_holder(slot);
        self.groups.note_loss(slot);
        self.events.push(match self.members.member_state(slot) {
            Some(MemberState::Away) => RunEvent::ServerAway { slot, silence, timeout: self.config.timeout },
            _ => RunEvent::MemberLost { slot, silence, splits },
        });
        self.finish_when_done();
    }

    pub(super) fn start_drain(&mut self, reason: &str) {
        if matches!(self.run, RunState::Waiting | RunState::Training) {
            self.run = RunState::Draining(reason.to_owned());
            let waiting_for = self.drain_waits_for();
            self.events.push(RunEvent::DrainStarted { reason: reason.to_owned(), waiting_for });
        }
        self.end_drain();
    }

    /// Ends a drain once no worker is left. A drain without all servers fails: no worker can write a checkpoint.
    pub(super) fn end_drain(&mut self) {
        let Some(reason) = self.run.drain_reason().map(str::to_owned) else { return };
        if self.roster().alive_worker_count() == 0 {
            return self.finish_run(RunOutcome::Interrupted(reason));
        }
        if let Some(server) =
            self.roster().lost_server(self.now.unwrap_or_default(), |index| self.placement.owns_bucket(index))
        {
            let why = format!("{reason}, and {server} is gone: no worker can write a checkpoint any more");
            self.finish_run(RunOutcome::Failed(why));
        }
    }

    pub(super) fn end_after(&mut self, slot: MemberSlot, outcome: RunOutcome) {
        match (slot.role, outcome) {
            (Role::DenseWorker, RunOutcome::Finished) => self.finish_when_done(),
            _ if self.is_released(slot) => {}
            (Role::EmbeddingServer, RunOutcome::Finished) => {
                self.finish_run(RunOutcome::Failed(format!("{slot} left before the run was over")));
            }
            (_, outcome) => self.finish_run(outcome),
        }
    }

    pub(super) fn finish_when_done(&mut self) {
        if self.roster().is_finished(&self.run, |slot, incarnation| self.groups.has_member(slot, incarnation)) {
            self.finish_run(RunOutcome::Finished);
        }
    }

    pub(super) fn finish_run(&mut self, outcome: RunOutcome) {
        if self.run.outcome().is_none() {
            self.run = RunState::Ended(outcome.clone());
            self.events.push(RunEvent::RunEnded(outcome));
        }
    }
}
