//! The calls that the workers of a process group make together, and how they fail. At the end of a run the first worker saves, and the
//! others wait for it at the coordinator.

use std::collections::BTreeSet;

use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{BarrierReason, BarrierRequest, BarrierVote};
use zagros_worker_core::{Action, Event, GroupMember, LoopCounts, MeasuredState};
use zagros_zip::ZipEq;

use super::world::RunWorld;
use crate::simulated::{group_progress, is_call_of_all, plain_reply, step_agreement};

impl RunWorld {
    pub(crate) fn is_collective(&self, action: &Action) -> bool {
        is_call_of_all(action) || matches!(action, Action::Form { .. } | Action::Step { .. })
    }

    /// A worker is at a call of its group. It ends for all once all are there, or fails.
    pub(crate) fn meet(&mut self, index: usize) {
        let generation = self.worker(index).generation;
        let group = self.process(index).group.clone().unwrap_or_default();
        let members: Vec<usize> = group.workers.iter().map(|of| *of as usize).collect();
        let is_member = |other: &usize| {
            let other = self.workers[*other].as_ref();
            other.is_some_and(|other| other.worker.generation == generation && !other.is_forming_anew())
        };
        if !members.iter().all(is_member) {
            return self.may_lose(index, generation);
        }
        let is_there =
            |other: &usize| self.workers[*other].as_ref().is_some_and(|other| self.is_collective(&other.worker.at));
        if members.iter().all(is_there) {
            self.perform_together(&members);
        }
    }

    /// A worker of the group is missing: it has not come yet, or it is gone. The coordinator says which, or the connection ends.
    fn may_lose(&mut self, index: usize, generation: u64) {
        let process = self.process(index);
        let has_heard = process.broken_group >= generation || process.newest_group > generation;
        let members = process.group.clone().unwrap_or_default().workers;
        let is_left =
            |of: &u32| self.workers[*of as usize].as_ref().is_none_or(|other| other.worker.generation > generation);
        let is_gone = members.iter().any(is_left);
        if has_heard || is_gone && self.dice.one_in(6) {
            self.lose_call(index);
        }
    }

    pub(crate) fn lose_call(&mut self, index: usize) {
        self.process(index).unsaved = None;
        let event = self.worker(index).lose_call();
        self.tell(index, event);
    }

    /// A worker is about to die in a step. Some of the others may have made it.
    pub(crate) fn share_the_last_step(&mut self, index: usize) {
        let Some(group) = self.workers[index].as_ref().and_then(|worker| worker.group.clone()) else { return };
        let members: Vec<usize> = group.workers.iter().map(|of| *of as usize).collect();
        let is_stepping = |other: &usize| {
            let other = self.workers[*other].as_ref().map(|other| &other.worker);
            other.is_some_and(|other| other.generation == group.generation && matches!(other.at, Action::Step { .. }))
        };
        if members.iter().all(is_stepping) {
            for other in members.into_iter().filter(|other| *other != index) {
                if self.dice.one_in(2) {
                    let event = self.step(other);
                    self.tell(other, event);
                }
            }
        }
    }

    fn perform_together(&mut self, ranks: &[usize]) {
        let calls: BTreeSet<String> = ranks.iter().map(|index| self.worker(*index).describe_call(true)).collect();
        assert_eq!(calls.len(), 1, "workers are in different calls: {calls:?}: {}", self.describe());
        let events = self.events_of(ranks);
        for (index, event) in ranks.iter().zip_eq(events) {
            self.tell(*index, event);
        }
    }

    fn events_of(&mut self, ranks: &[usize]) -> Vec<Event> {
        let calls: Vec<Action> = ranks.iter().map(|index| self.worker(*index).at).collect();
        match calls[0] {
            Action::Form { .. } => self.formed(ranks, &calls),
            Action::Follow { source, .. } => self.follow(ranks, source),
            Action::Agree { .. } => vec![Event::Agreed(step_agreement(&calls)); ranks.len()],
            Action::Step { .. } => ranks.iter().map(|index| self.step(*index)).collect(),
            Action::Evaluate => {
                let merit = self.dice.below(8) as f64;
                let measured = Some(MeasuredState { value: merit, merit });
                ranks.iter().map(|index| self.worker(*index).evaluate(0, measured)).collect()
            }
            // A checkpoint is of one moment, so no rank is in a step. Gradients of an epoch must not change rows of the
            // next.
            Action::Checkpoint | Action::FinalCheckpoint | Action::ResetRows => {
                assert!(ranks.iter().all(|index| self.worker(*index).in_flight.is_none()));
                vec![plain_reply(&calls[0]); ranks.len()]
            }
            Action::CloseEpoch { epoch, .. } => {
                let done = self.ledger.completed.keys().filter(|split| split.0 == epoch).count() as u64;
                let what = "an epoch ends with splits that no worker has completed";
                assert_eq!(done, self.plan.splits, "{what}: {}", self.describe());
                vec![Event::EpochClosed; ranks.len()]
            }
            action => vec![plain_reply(&action); ranks.len()],
        }
    }

    fn formed(&mut self, ranks: &[usize], calls: &[Action]) -> Vec<Event> {
        let progress = group_progress(calls);
        let event = |world: &mut Self, index: &usize| {
            let group = world.process(*index).group.clone().expect("it has a group");
            let group = Some(GroupMember { rank: group.rank, generation: group.generation });
            Event::Formed { group, progress: progress.clone() }
        };
        ranks.iter().map(|index| event(self, index)).collect()
    }

    fn follow(&mut self, ranks: &[usize], source: usize) -> Vec<Event> {
        let lead = self.worker(ranks[source]).counts();
        ranks.iter().map(|index| self.follow_lead(*index, lead)).collect()
    }

    fn follow_lead(&mut self, index: usize, lead: LoopCounts) -> Event {
        let (counts, pushed) = self.worker(index).follow(lead, false);
        if let Some(batch) = pushed {
            self.make_push(index, batch);
        }
        Event::Ready(counts)
    }

    fn step(&mut self, index: usize) -> Event {
        if let Some(batch) = self.worker(index).make_step() {
            self.make_push(index, batch);
        }
        Event::Stepped { ahead: None }
    }

    /// A part of the save, or of the wait for it.
    pub(crate) fn save_together(&mut self, index: usize) -> Option<Event> {
        if index > 0 {
            return self.vote_saved(index);
        }
        let turns = 1 + self.dice.below(5);
        let left = self.process(index).unsaved.get_or_insert(turns);
        if *left > 0 {
            *left -= 1;
            return self.at_barrier(index, None);
        }
        self.ledger.is_saved = true;
        self.vote_saved(index)
    }

    fn vote_saved(&mut self, index: usize) -> Option<Event> {
        let reason = BarrierReason::Saved.into();
        let saved = self.at_barrier(index, Some(BarrierVote { reason, ..BarrierVote::default() }));
        let may_leave = saved.is_none() || self.ledger.is_saved;
        assert!(may_leave, "worker {index} leaves before the model is saved: {}", self.describe());
        saved
    }

    /// Without a vote it only says that it is on its way.
    fn at_barrier(&mut self, index: usize, vote: Option<BarrierVote>) -> Option<Event> {
        let (member, incarnation) = self.process(index).identity();
        let group = self.worker(index).generation;
        let request = BarrierRequest { member, incarnation, group, ballot: 1, vote };
        match self.ask_as_worker(index, &request)?.state? {
            State::Result(_) => return Some(Event::Saved),
            State::Failure(_) => self.lose_call(index),
            State::Wait(_) => {}
        }
        None
    }
}
