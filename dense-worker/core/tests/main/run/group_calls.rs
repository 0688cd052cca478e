//! The calls that the workers of a process group make together, and how they fail, and their votes at the coordinator: those of asynchronous
//! workers, and at the end of a run, where the first worker saves and the others wait for it.

use std::collections::BTreeSet;

use zagros_protocol::control;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{BarrierRequest, BarrierResult, BarrierVote};
use zagros_worker_core::{Action, BarrierReason, Event, GroupMember, LoopCounts, MeasuredState, StepAgreement};
use zagros_zip::ZipEq;

use super::world::RunWorld;
use crate::simulated::{group_progress, is_call_of_all, plain_reply, step_agreement};

impl RunWorld {
    pub(crate) fn is_collective(&self, action: &Action) -> bool {
        let is_step = matches!(action, Action::Step { .. }) && self.plan.policy.is_group();
        is_step || is_call_of_all(action) || matches!(action, Action::Form { .. })
    }

    /// The workers of a worker's group. A job of one worker has none.
    fn members(&self, index: usize) -> Vec<usize> {
        let group = self.workers[index].as_ref().and_then(|process| process.group.as_ref());
        group.map_or_else(|| vec![index], |group| group.workers.iter().map(|of| *of as usize).collect())
    }

    /// A worker is at a call of its group. It ends for all once all are there, or fails.
    pub(crate) fn meet(&mut self, index: usize) {
        let generation = self.worker(index).generation;
        let members = self.members(index);
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

    /// A worker is about to die in a call of its group. Some of the others may have made the step, or heard how the call ended.
    pub(crate) fn share_the_last_call(&mut self, index: usize) {
        let Some(process) = self.workers[index].as_ref().filter(|process| process.group.is_some()) else { return };
        let (generation, call) = (process.worker.generation, process.worker.at);
        let is_shared = match call {
            Action::Step { .. } => self.plan.policy.is_group(),
            Action::CloseEpoch { .. } | Action::Evaluate | Action::Checkpoint => self.plan.policy.is_asynchronous(),
            _ => false,
        };
        let members = self.members(index);
        let is_same = |other: &usize| {
            let other = self.workers[*other].as_ref().map(|other| &other.worker);
            let is_there = |at: Action| std::mem::discriminant(&at) == std::mem::discriminant(&call);
            other.is_some_and(|other| other.generation == generation && is_there(other.at))
        };
        if !is_shared || !members.iter().all(is_same) {
            return;
        }
        let heard = if self.plan.policy.is_group() { Vec::new() } else { self.events_of(&members) };
        for (place, other) in members.into_iter().enumerate().filter(|(_, other)| *other != index) {
            if self.dice.one_in(2) {
                let event = heard.get(place).cloned();
                let event = event.unwrap_or_else(|| self.step(other, None));
                self.tell(other, event);
            }
        }
    }

    fn perform_together(&mut self, ranks: &[usize]) {
        let is_group = self.plan.policy.is_group();
        let calls: BTreeSet<String> = ranks.iter().map(|index| self.worker(*index).describe_call(is_group)).collect();
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
            Action::Step { .. } => {
                let agreed = self.agree_ahead(ranks);
                ranks.iter().map(|index| self.step(*index, agreed)).collect()
            }
            Action::Evaluate => {
                if ranks.iter().any(|index| self.worker(*index).stop) && self.dice.one_in(2) {
                    return vec![Event::Interrupted; ranks.len()];
                }
                let merit = self.dice.below(8) as f64;
                let measured = (merit > 0.0).then_some(MeasuredState { value: merit, merit });
                ranks.iter().map(|index| self.evaluate(*index, measured)).collect()
            }
            // A checkpoint is of one moment, so no rank is in a step. Gradients of an epoch must not change rows of the
            // next.
            Action::Checkpoint | Action::FinalCheckpoint | Action::ResetRows => {
                assert!(ranks.iter().all(|index| self.worker(*index).in_flight.is_none()));
                vec![plain_reply(&calls[0]); ranks.len()]
            }
            Action::CloseEpoch { epoch, check_books: true } => {
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
        let mut counted = self.process(ranks[source]).counted.clone();
        let known: BTreeSet<usize> = ranks.iter().copied().filter(|index| self.worker(*index).has_trained()).collect();
        counted.note_departed(|index| !known.contains(&index));
        for index in ranks {
            self.process(*index).counted = counted.clone();
        }
        ranks.iter().map(|index| self.follow_lead(*index, lead)).collect()
    }

    fn follow_lead(&mut self, index: usize, lead: LoopCounts) -> Event {
        let is_asynchronous = self.plan.policy.is_asynchronous();
        let (counts, pushed) = self.worker(index).follow(lead, is_asynchronous);
        if let Some(batch) = pushed {
            self.make_push(index, batch);
        }
        Event::Ready(LoopCounts { others_steps: self.process(index).counted.others_steps(index), ..counts })
    }

    fn evaluate(&mut self, index: usize, measured: Option<MeasuredState>) -> Event {
        let others_steps = self.process(index).counted.others_steps(index);
        self.worker(index).evaluate(others_steps, measured)
    }

    /// All know their next batch in time, sometimes.
    fn agree_ahead(&mut self, ranks: &[usize]) -> Option<StepAgreement> {
        let mut all = StepAgreement::default();
        for index in ranks {
            let facts = self.step_facts(*index);
            let worker = self.worker(*index);
            let Action::Step { ahead: Some(rule), .. } = worker.at else { return None };
            if worker.stream.is_empty() || worker.stop {
                return None;
            }
            all = all.with_vote(rule.vote(facts), 1);
        }
        (!self.dice.one_in(3)).then_some(all)
    }

    pub(crate) fn step(&mut self, index: usize, ahead: Option<StepAgreement>) -> Event {
        let search = self.worker(index).training.search_state();
        assert!(!self.plan.early_stop.is_some_and(|rule| search.is_over(rule)), "a step after the search is over");
        if let Some(batch) = self.worker(index).make_step() {
            self.make_push(index, batch);
        }
        Event::Stepped { ahead }
    }

    /// The vote of an asynchronous worker, which it sends until the coordinator has decided.
    pub(crate) fn vote(&mut self, index: usize, reason: BarrierReason) -> Option<Event> {
        let worker = self.worker(index);
        let (called, counts) = (worker.heard_barrier, worker.steps.to_string());
        let result = self.ask_at_barrier(index, Some(BarrierVote { reason: reason.into(), called, counts }))?;
        let decision = result.decision();
        let votes: Vec<(u32, BarrierVote)> =
            result.votes.into_iter().filter_map(|counted| Some((counted.worker, counted.vote?))).collect();
        let called = votes.iter().map(|(_, vote)| vote.called).max().unwrap_or(0);
        let steps = |(worker, vote): &(u32, BarrierVote)| (*worker, vote.counts.parse::<u64>().expect("a number"));
        let process = self.process(index);
        process.counted.by_worker = votes.iter().map(steps).collect();
        let others_steps = process.counted.others_steps(index);
        Some(Event::BarrierDecided { decision, called, others_steps })
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
            return self.ask_at_barrier(index, None).map(|_| Event::Saved);
        }
        self.ledger.is_saved = true;
        self.vote_saved(index)
    }

    fn vote_saved(&mut self, index: usize) -> Option<Event> {
        let reason = control::BarrierReason::Saved.into();
        let vote = BarrierVote { reason, ..BarrierVote::default() };
        let saved = self.ask_at_barrier(index, Some(vote)).map(|_| Event::Saved);
        let may_leave = saved.is_none() || self.ledger.is_saved;
        assert!(may_leave, "worker {index} leaves before the model is saved: {}", self.describe());
        saved
    }

    /// Without a vote it only says that it is on its way.
    fn ask_at_barrier(&mut self, index: usize, vote: Option<BarrierVote>) -> Option<BarrierResult> {
        let (member, incarnation) = self.process(index).identity();
        let (group, ballot) = (self.worker(index).generation, self.process(index).ballot);
        let request = BarrierRequest { member, incarnation, group, ballot, vote };
        match self.ask_as_worker(index, &request)?.state? {
            State::Result(result) => {
                self.process(index).ballot += 1;
                return Some(result);
            }
            State::Failure(_) => self.lose_call(index),
            State::Wait(_) => {}
        }
        None
    }
}
