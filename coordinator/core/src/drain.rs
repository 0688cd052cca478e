//! How a run ends when one of its processes is asked to: workers save and leave while servers and coordinator still serve
//! (invariant MB-4).
//!
//! A checkpoint needs every server and the coordinator. So a server or coordinator that is asked to end does not end at
//! once: the run is drained. Each worker hears of it with its next heartbeat, finishes its step, writes a checkpoint
//! and leaves; the run is over after that, and then the servers hear so and end.

use std::time::Duration;

use crate::core::Core;
use crate::members::MemberState;
use crate::run::RunState;
use crate::{MemberSlot, Notice, Role, RunOutcome};

impl Core {
    /// Drains the run, because a process was asked to end: `reason` says which. Without a worker the run is over at once.
    /// A second call changes nothing.
    pub fn drain(&mut self, now: Duration, reason: &str) {
        self.advance(now);
        self.start_drain(reason);
    }

    pub(crate) fn start_drain(&mut self, reason: &str) {
        if matches!(self.run, RunState::Waiting | RunState::Training) {
            self.run = RunState::Draining(reason.to_owned());
            self.notices.push(Notice::Draining { reason: reason.to_owned(), waiting_for: self.drain_waits_for() });
        }
        self.end_drain();
    }

    /// Why the run is drained, while it is.
    pub(crate) fn draining(&self) -> Option<&str> {
        if let RunState::Draining(reason) = &self.run { Some(reason) } else { None }
    }

    /// Workers that a drain waits for, in words; empty when nobody is left.
    #[must_use]
    pub fn drain_waits_for(&self) -> String {
        let workers = self.alive_of(Role::DenseWorker).map(|slot| slot.to_string());
        workers.collect::<Vec<_>>().join(", ")
    }

    /// Ends a drain that has nobody to wait for, or nothing to wait for: without all servers no worker can save.
    pub(crate) fn end_drain(&mut self) {
        let RunState::Draining(reason) = &self.run else { return };
        let reason = reason.clone();
        if self.alive_of(Role::DenseWorker).next().is_none() {
            return self.finish(RunOutcome::Interrupted(reason));
        }
        let gone = self
            .members
            .iter()
            .find(|(slot, member)| slot.role == Role::EmbeddingServer && member.state != MemberState::Alive);
        if let Some((server, _)) = gone {
            let why = format!("{reason}, and {server} is gone: no worker can write a checkpoint any more");
            self.finish(RunOutcome::Failed(why));
        }
    }

    fn alive_of(&self, role: Role) -> impl Iterator<Item = MemberSlot> {
        let alive = move |(slot, member): (MemberSlot, &crate::members::Member)| {
            (slot.role == role && member.state == MemberState::Alive).then_some(slot)
        };
        self.members.iter().filter_map(alive)
    }
}
