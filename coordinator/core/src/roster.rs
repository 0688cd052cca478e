//! Questions about all members at once: who has joined, and who is missing.

use std::time::Duration;

use crate::config::CoreConfig;
use crate::members::{Departure, ExpiredLease, MemberRecord, MemberState, Members};
use crate::run::RunState;
use crate::{MemberSlot, Role};

/// The members of a run, compared with the slots of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roster<'a> {
    pub(crate) config: &'a CoreConfig,
    pub(crate) members: &'a Members,
}

impl<'a> Roster<'a> {
    /// The missing workers, in words: `dense worker 2 has not joined`; `None` when none is missing.
    pub(crate) fn missing_workers(self) -> Option<String> {
        self.missing((0..self.config.workers).map(MemberSlot::worker))
    }

    pub(crate) fn missing_servers(self) -> Option<String> {
        self.missing((0..self.config.servers).map(MemberSlot::server))
    }

    fn missing(self, slots: impl Iterator<Item = MemberSlot>) -> Option<String> {
        let all: Vec<String> = slots.filter_map(|slot| self.absence(slot)).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn absence(self, slot: MemberSlot) -> Option<String> {
        match self.members.member_state(slot) {
            None => Some(format!("{slot} has not joined")),
            Some(MemberState::Silent | MemberState::Lost) => {
                Some(format!("{slot} is lost: silent for longer than its lease"))
            }
            Some(MemberState::Away) => Some(format!("{slot} is away: silent for longer than its lease")),
            Some(MemberState::Left { finished: false }) => Some(format!("{slot} has left")),
            Some(MemberState::Released) => {
                Some(format!("{slot} has handed its buckets over, and no other process has joined in its place"))
            }
            Some(MemberState::Alive | MemberState::Left { finished: true } | MemberState::GivenUp) => None,
        }
    }

    pub(crate) fn alive_workers(self) -> impl Iterator<Item = (MemberSlot, &'a MemberRecord)> {
        self.members
            .iter()
            .filter(|(slot, member)| slot.role == Role::DenseWorker && member.state == MemberState::Alive)
    }

    /// The workers that the next process group is of, by index.
    pub(crate) fn group_workers(self) -> impl Iterator<Item = (MemberSlot, &'a MemberRecord)> {
        self.alive_workers().filter(|(_, member)| member.departure != Departure::Counted)
    }

    pub(crate) fn alive_worker_count(self) -> u32 {
        self.alive_workers().count() as u32
    }

    /// A server that owns buckets and is gone. A server that is away is gone once it is silent for longer than lease and timeout.
    pub(crate) fn lost_server(self, now: Duration, owns: impl Fn(u32) -> bool) -> Option<MemberSlot> {
        let is_overdue = |member: &MemberRecord| {
            now.saturating_sub(member.heard).saturating_sub(self.config.lease) > self.config.timeout
        };
        let is_gone = |(slot, member): &(MemberSlot, &MemberRecord)| match member.state {
            _ if slot.role != Role::EmbeddingServer => false,
            // It has handed its buckets over, or has not got any.
            _ if !owns(slot.index) => false,
            MemberState::Alive | MemberState::Released => false,
            MemberState::Away => is_overdue(member),
            MemberState::Silent | MemberState::Lost | MemberState::GivenUp | MemberState::Left { .. } => true,
        };
        self.members.iter().find(is_gone).map(|(slot, _)| slot)
    }

    pub(crate) fn is_deserted(self) -> bool {
        self.members.iter().all(|(_, member)| member.state != MemberState::Alive)
    }

    /// Whether the first worker, which reports and saves, has made its last step together with the others.
    pub(crate) fn is_trained(self) -> bool {
        let first = self.members.iter().find(|(slot, _)| *slot == MemberSlot::worker(0));
        first.and_then(|(_, first)| first.progress).is_some_and(|progress| progress.trained)
    }

    /// Whether all work is done: the first worker, which saves the model, has finished or at least saved, and no worker still works.
    /// `is_in_group` answers whether a process, by slot and incarnation, is in the newest process group.
    pub(crate) fn is_finished(self, run: &RunState, is_in_group: impl Fn(MemberSlot, u32) -> bool) -> bool {
        let first = self.members.member_state(MemberSlot::worker(0));
        let is_saved = *run == RunState::Saved || first == Some(MemberState::Left { finished: true });
        // A process that took a slot too late to train waits for a group that never forms.
        let works = |(slot, worker): (MemberSlot, &MemberRecord)| {
            let is_expected = worker.incarnation == 1 && slot.index < self.config.workers;
            worker.progress.is_some() || is_expected || is_in_group(slot, worker.incarnation)
        };
        is_saved && !self.alive_workers().any(works)
    }

    /// Whether a worker that was asked to end may leave while the run goes on: not in mode `sync`, and only if enough
    /// workers stay.
    pub(crate) fn can_let_go(self, slot: MemberSlot) -> bool {
        let CoreConfig { fixed_splits, min_workers, .. } = *self.config;
        let others = self.alive_workers().filter(|(other, member)| *other != slot && !member.is_leaving()).count();
        let is_spared = slot.role == Role::DenseWorker && slot.index > 0;
        is_spared && !fixed_splits && !self.is_trained() && others >= min_workers as usize
    }

    /// A worker that was to leave, and that is lost: the run does not wait for it. It was to leave because the run is to have `wanted`
    /// workers, or it had nothing left to do but that.
    pub(crate) fn released_and_lost(self, wanted: u32) -> Option<MemberSlot> {
        let is_released = |(slot, member): &(MemberSlot, &MemberRecord)| {
            slot.role == Role::DenseWorker && (slot.index >= wanted || member.departure == Departure::Counted)
        };
        let is_gone = |member: &MemberRecord| member.is_leaving() && member.state.is_missing();
        self.members.iter().find(|found| is_released(found) && is_gone(found.1)).map(|(slot, _)| slot)
    }

    /// Whether the run continues without a lost worker.
    pub(crate) fn can_do_without(self, slot: MemberSlot, has_group: bool) -> bool {
        let are_enough = has_group && self.alive_worker_count() >= self.config.min_workers;
        slot != MemberSlot::worker(0) && (are_enough || self.is_trained())
    }

    /// Why the run fails without a lost worker, in words.
    pub(crate) fn why_not_without(self, expired: ExpiredLease) -> String {
        let ExpiredLease { slot, silence } = expired;
        let CoreConfig { min_workers, timeout, .. } = self.config;
        let few = if *min_workers < self.config.slot_count(Role::DenseWorker) && slot != MemberSlot::worker(0) {
            let left = self.alive_worker_count();
            format!("; {left} workers are left, and `cluster.min_workers` is {min_workers}")
        } else {
            String::new()
        };
        format!(
            "{slot} is lost: silent for {silence:.1?}, and no other process has taken its slot within {timeout:.1?} \
             (a longer `cluster.timeout_seconds` waits longer){few}"
        )
    }
}
