//! Members that are silent for a lease, and workers whose place no other process takes.

use std::time::Duration;

use super::Core;
use crate::members::{ExpiredLease, MemberState};
use crate::run::RunState;
use crate::{RunEvent, RunOutcome};

impl Core {
    /// Lets leases expire. The run waits for another process in the slot of a lost worker. If none comes in time, the run
    /// continues with the other workers, or fails if they are too few.
    pub(super) fn expire_leases(&mut self, now: Duration) {
        for expired in self.members.expire_leases(now) {
            self.note_loss(now, expired);
        }
        self.give_up_released(now);
        while let Some(expired) = self.roster().overdue_worker(now) {
            let slot = expired.slot;
            if self.run != RunState::Saved && !self.roster().can_do_without(slot, self.groups.generation() > 0) {
                return self.finish_run(RunOutcome::Failed(self.roster().why_not_without(expired)));
            }
            self.members.give_up(slot);
            self.data.release_splits(slot);
            let (timeout, left) = (self.config.timeout, self.roster().alive_worker_count());
            self.events.push(RunEvent::WorkerGivenUp { slot, timeout, left });
        }
    }

    pub(super) fn note_loss(&mut self, now: Duration, expired: ExpiredLease) {
        let ExpiredLease { slot, silence } = expired;
        // The source would stay frozen while no server copies its rows.
        self.abandon_move_of(now, slot, "is lost: silent for longer than its lease");
        let splits = self.data.suspend_holder(slot);
        self.groups.note_loss(slot);
        self.events.push(match self.members.member_state(slot) {
            Some(MemberState::Away) => RunEvent::ServerAway { slot, silence, timeout: self.config.timeout },
            _ => RunEvent::MemberLost { slot, silence, splits },
        });
        self.finish_when_done();
    }
}
