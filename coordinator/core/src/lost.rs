//! What becomes of a run whose worker is lost: another process is waited for in its place; where none comes, the run goes
//! on with the others if they are enough, or fails.

use std::time::Duration;

use zagros_protocol::Refusal;
use zagros_protocol::control::JoinRequest;

use crate::core::Core;
use crate::members::{Lapse, MemberState};
use crate::{MemberSlot, Notice, Role, RunOutcome};

impl Core {
    /// Lets leases run out, and gives up workers that nobody has replaced in time.
    pub(crate) fn expire(&mut self, now: Duration) {
        for lapse in self.members.expire(now) {
            self.lost(lapse);
        }
        while let Some(lapse) = self.members.overdue(now, self.config.timeout) {
            if !self.can_do_without(lapse.slot) {
                return self.finish(RunOutcome::Failed(self.why_not_without(lapse)));
            }
            self.members.give_up(lapse.slot);
            self.release(lapse.slot);
            let (slot, timeout, left) = (lapse.slot, self.config.timeout, self.workers_alive());
            self.notices.push(Notice::GivenUp { slot, timeout, left });
        }
    }

    /// Renews the lease of a caller that was silent, too: nobody else has the rows of a server, and a worker is taken back
    /// while nobody else reads its splits. So a coordinator that cannot be reached for a while ends no run.
    pub(crate) fn renew(
        &mut self,
        now: Duration,
        member: u64,
        incarnation: u32,
    ) -> Result<(MemberSlot, bool), Refusal> {
        let Self { members, epochs, .. } = self;
        members.renew(now, member, incarnation, |slot| {
            slot.role == Role::EmbeddingServer || epochs.as_mut().is_some_and(|epochs| epochs.reclaim(slot))
        })
    }

    /// Whether the asker may have the slot. Who vouches that its last holder is gone need not wait for the lease.
    pub(crate) fn check_vacant(
        &mut self,
        now: Duration,
        slot: MemberSlot,
        request: &JoinRequest,
    ) -> Result<(), Refusal> {
        let is_held = self.members.held(slot, request.instance).is_some();
        if is_held && request.supersede && slot.role == Role::DenseWorker {
            let silence = self.members.lose(now, slot);
            self.lost(Lapse { slot, silence });
        }
        self.members.check_vacant(now, slot, request.instance)
    }

    /// A worker that comes when training is over.
    pub(crate) fn nothing_is_left_for(&self, request: &JoinRequest) -> bool {
        let is_over = self.run.outcome() == Some(&RunOutcome::Finished);
        let is_worker = Role::from_wire(request.role) == Some(Role::DenseWorker);
        is_worker && (is_over || (self.is_trained() && request.index > 0))
    }

    /// The run is over once the first worker has finished, which saves what all have trained, and none of the others
    /// still works.
    pub(crate) fn finish_after_the_last(&mut self) {
        let has_finished = |slot| self.members.state(slot) == Some(MemberState::Left { finished: true });
        // One that took the place of a lost worker too late to train waits for a group that will never be.
        let works =
            |slot| self.members.alive(slot).is_some_and(|worker| worker.incarnation == 1 || worker.progress.is_some());
        let mut others = (1..self.config.workers).map(MemberSlot::worker);
        if has_finished(MemberSlot::worker(0)) && !others.any(works) {
            self.finish(RunOutcome::Finished);
        }
    }

    fn lost(&mut self, lapse: Lapse) {
        let splits = self.epochs.as_mut().map_or(0, |epochs| epochs.mark_silent(lapse.slot));
        self.group.lost(lapse.slot);
        self.notices.push(Notice::Lost { slot: lapse.slot, silence: lapse.silence, splits });
        self.finish_after_the_last();
    }

    /// The first worker, which reports and saves, has made its last step together with the others.
    fn is_trained(&self) -> bool {
        let first = self.members.iter().find(|(slot, _)| *slot == MemberSlot::worker(0));
        first.and_then(|(_, first)| first.progress).is_some_and(|progress| progress.trained)
    }

    fn can_do_without(&self, slot: MemberSlot) -> bool {
        let are_enough = self.group.generation() > 0 && self.workers_alive() >= self.config.min_workers;
        slot != MemberSlot::worker(0) && (are_enough || self.is_trained())
    }

    fn why_not_without(&self, lapse: Lapse) -> String {
        let Lapse { slot, silence } = lapse;
        let few = if self.config.min_workers < self.config.workers && slot != MemberSlot::worker(0) {
            format!(
                "; {} workers are left, and `cluster.min_workers` is {}",
                self.workers_alive(),
                self.config.min_workers
            )
        } else {
            String::new()
        };
        format!(
            "{slot} is lost: silent for {silence:.1?}, and no other process has taken its place within {:.1?} \
             (a longer `cluster.timeout_seconds` waits longer){few}",
            self.config.timeout
        )
    }

    fn workers_alive(&self) -> u32 {
        (0..self.config.workers).filter(|index| self.members.alive(MemberSlot::worker(*index)).is_some()).count() as u32
    }
}
