//! Changing the number of dense workers while the run trains (invariant RK-5, ADR 47).
//!
//! More workers: they may join from now on, whenever they come. The group takes each in between two steps. The run waits for no
//! worker that has never come. Fewer workers: those that are left over, the last ones by their indices, learn from their
//! heartbeats that they are to leave. They leave as a worker does that was asked to end (invariant RK-4).

use std::time::Duration;

use zagros_protocol::Refusal;
use zagros_protocol::control::ScaleRequest;

use super::Core;
use crate::members::MemberState;
use crate::run::RunState;
use crate::{MemberSlot, Role, RunEvent};

impl Core {
    /// The number of dense workers that a request asks for; `None` if it leaves the number as it is.
    pub(super) fn checked_workers(&self, request: &ScaleRequest) -> Result<Option<u32>, Refusal> {
        let (wanted, now) = (request.workers, self.workers_wanted());
        if wanted == 0 || wanted == now {
            return Ok(None);
        }
        if let Some(why) = &self.config.fixed_workers {
            return Err(Refusal::invalid(format!(
                "the run has {now} dense workers, and their number cannot change: {why}"
            )));
        }
        let (least, most) = (self.config.min_workers, self.config.slot_count(Role::DenseWorker));
        if wanted > most {
            return Err(Refusal::invalid(format!(
                "the run takes {most} dense workers at most (`cluster.max_workers`), and {wanted} were asked for"
            )));
        }
        if wanted < least {
            return Err(Refusal::invalid(format!(
                "{least} dense workers must stay (`cluster.min_workers`; without this key those that the run began with), \
                 and {wanted} were asked for"
            )));
        }
        if self.roster().is_trained() || self.run == RunState::Saved {
            return Err(Refusal::invalid("training is over; the workers save what they have learned, and end"));
        }
        Ok(Some(wanted))
    }

    pub(super) fn aim_workers(&mut self, now: Duration, wanted: u32) {
        self.wanted_workers = Some(wanted);
        // The first group waits for no worker that is not wanted.
        self.config.workers = self.config.workers.min(wanted);
        self.events.push(RunEvent::WorkersRequested { workers: wanted });
        let surplus = self.members.iter().map(|(slot, _)| slot).filter(|slot| is_surplus(*slot, wanted));
        for slot in surplus.collect::<Vec<_>>() {
            self.members.let_go(slot);
        }
        self.give_up_released(now);
    }

    pub(crate) fn workers_wanted(&self) -> u32 {
        self.wanted_workers.unwrap_or(self.config.workers)
    }

    pub(super) fn is_to_leave(&self, slot: MemberSlot) -> bool {
        self.run.is_under_way() && slot.role == Role::DenseWorker && self.members.is_leaving(slot)
    }

    /// A worker that was to leave and is lost is not waited for. Others read its splits.
    pub(super) fn give_up_released(&mut self, now: Duration) {
        let wanted = self.wanted_workers.unwrap_or(u32::MAX);
        while let Some(slot) = self.roster().released_and_lost(wanted) {
            debug_assert_ne!(self.members.member_state(slot), Some(MemberState::Alive));
            let silence = self.members.end_lease(now, slot);
            self.members.give_up(slot);
            self.data.release_splits(slot);
            self.groups.note_loss(slot);
            let left = self.roster().alive_worker_count();
            self.events.push(RunEvent::WorkerGivenUp { slot, timeout: silence, left });
        }
    }
}

fn is_surplus(slot: MemberSlot, wanted: u32) -> bool {
    slot.role == Role::DenseWorker && slot.index >= wanted
}
