//! How a run ends: by its work, by a drain, or because something failed. The first outcome stays.

use super::Core;
use crate::run::RunState;
use crate::{MemberSlot, Role, RunEvent, RunOutcome};

impl Core {
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
