//! The model's calls: what drivers, coordinator and collective reply to the actions of the machines.

use std::collections::BTreeSet;
use std::time::Duration;

use zagros_worker_core::{
    Action, BarrierReason, Event, GroupMember, LoopCounts, MeasuredState, StepAgreement, StepFacts,
    TrainingPolicy,
};
use zagros_zip::{ZipEq, number_from};

use super::{LoopWorld, SplitState};
use crate::simulated::{BatchId, group_progress, is_call_of_all, plain_reply, step_agreement};

impl LoopWorld {
    pub(super) fn is_collective(&self, action: &Action) -> bool {
        let several = !matches!(self.plan.policy, TrainingPolicy::OneWorker { .. });
        match action {
            Action::Step { .. } => self.plan.policy.is_group(),
            Action::Form { .. } => true,
            Action::Vote(_) | Action::Save { together: true, .. } => several,
            action => several && is_call_of_all(action),
        }
    }

    /// All are in the same call, of the same step.
    pub(super) fn perform_together(&mut self, live: &[usize]) {
        let is_forming = |index: &usize| self.live_worker(*index).is_forming();
        let is_late = |index: &usize| is_forming(index) && self.live_worker(*index).generation == 0;
        let all_form = live.iter().all(is_forming);
        let ranks: Vec<usize> = live.iter().copied().filter(|index| all_form || !is_late(index)).collect();
        let is_group = self.plan.policy.is_group();
        let describe = |index: &usize| self.live_worker(*index).describe_call(is_group);
        let calls: BTreeSet<String> = ranks.iter().map(describe).collect();
        assert_eq!(calls.len(), 1, "workers are in different calls: {:?}", self.states());
        let events = self.events_of_all(&ranks);
        for (index, event) in ranks.into_iter().zip_eq(events) {
            self.report(index, event);
        }
    }

    pub(super) fn events_of_all(&mut self, ranks: &[usize]) -> Vec<Event> {
        let calls: Vec<Action> = ranks.iter().map(|index| self.live_worker(*index).at).collect();
        match calls[0] {
            Action::Form { .. } => self.form(ranks, &calls),
            Action::Agree { .. } => vec![Event::Agreed(step_agreement(&calls)); ranks.len()],
            Action::Step { .. } => {
                let next_agreement = self.agree_ahead(ranks);
                ranks.iter().map(|index| self.step(*index, next_agreement)).collect()
            }
            Action::Evaluate => {
                let stop = ranks.iter().any(|index| self.worker(*index).stop) && self.dice.one_in(2);
                let measured = self.measure();
                ranks.iter().map(|index| self.evaluate(*index, stop, measured)).collect()
            }
            Action::Vote(_) => self.decide(ranks),
            Action::Follow { source, .. } => self.follow(ranks, source),
            Action::Checkpoint | Action::FinalCheckpoint => {
                // Nothing is in flight on any worker, and none is in a step.
                assert!(ranks.iter().all(|index| self.worker(*index).in_flight.is_none()));
                vec![Event::CheckpointDone; ranks.len()]
            }
            action => ranks.iter().map(|index| self.perform(*index, action)).collect(),
        }
    }

    fn form(&mut self, ranks: &[usize], calls: &[Action]) -> Vec<Event> {
        self.generation += 1;
        let (progress, generation) = (group_progress(calls), self.generation);
        let several = !matches!(self.plan.policy, TrainingPolicy::OneWorker { .. });
        number_from(0, ranks)
            .map(|(rank, index)| {
                self.worker(*index).generation = generation;
                let group = several.then_some(GroupMember { rank, generation });
                Event::Formed { group, progress: if several { progress.clone() } else { Vec::new() } }
            })
            .collect()
    }

    fn follow(&mut self, ranks: &[usize], source: usize) -> Vec<Event> {
        let lead = self.live_worker(ranks[source]).counts();
        self.count_those_that_are_gone(ranks);
        ranks.iter().map(|index| self.follow_lead(*index, lead)).collect()
    }

    fn follow_lead(&mut self, index: usize, lead: LoopCounts) -> Event {
        let is_asynchronous = self.plan.policy.is_asynchronous();
        let (counts, pushed) = self.worker(index).follow(lead, is_asynchronous);
        if let Some(batch) = pushed {
            self.push(batch);
        }
        Event::Ready(LoopCounts { others_steps: self.others_steps(index), ..counts })
    }

    fn count_those_that_are_gone(&mut self, ranks: &[usize]) {
        let is_gone = |world: &mut Self, index: usize| !ranks.contains(&index) || !world.worker(index).has_trained();
        for index in self.voted.keys().copied().collect::<Vec<_>>() {
            if is_gone(self, index) {
                self.gone += self.voted.remove(&index).unwrap_or(0);
            }
        }
    }

    pub(super) fn others_steps(&self, index: usize) -> u64 {
        self.gone + self.voted.iter().filter(|(other, _)| **other != index).map(|(_, steps)| steps).sum::<u64>()
    }

    /// All know their next batch in time, sometimes.
    fn agree_ahead(&mut self, ranks: &[usize]) -> Option<StepAgreement> {
        let mut all = StepAgreement::default();
        for index in ranks {
            let facts = self.facts(*index);
            let worker = self.worker(*index);
            let Action::Step { ahead: Some(rule), .. } = worker.at else { return None };
            if worker.stream.is_empty() || worker.stop {
                return None;
            }
            all = all.with_vote(rule.vote(facts), 1);
        }
        (!self.dice.one_in(3)).then_some(all)
    }

    fn facts(&mut self, index: usize) -> StepFacts {
        let joins = self.workers.iter().flatten().any(|worker| worker.generation == 0 && worker.ending.is_none());
        let checkpoint_by_time = self.plan.checkpoint_every.is_some() && self.dice.one_in(15);
        let (newest_group, leaves) = (self.generation + u64::from(joins), self.worker(index).leaves);
        StepFacts { checkpoint_by_time, newest_group, leaves }
    }

    /// As the coordinator does.
    fn decide(&mut self, ranks: &[usize]) -> Vec<Event> {
        let reason = |world: &mut Self, index: usize| {
            let Action::Vote(reason) = world.worker(index).at else { unreachable!() };
            reason
        };
        let reasons: Vec<BarrierReason> = ranks.iter().map(|index| reason(self, *index)).collect();
        let decision = zagros_coordinator_core::decide_barrier(&reasons).unwrap();
        let called = ranks.iter().map(|index| self.worker(*index).heard_barrier).max().unwrap_or(0);
        self.voted = ranks.iter().map(|index| (*index, self.worker(*index).steps)).collect();
        let decided = |others_steps| Event::BarrierDecided { decision, called, others_steps };
        ranks.iter().map(|index| decided(self.others_steps(*index))).collect()
    }

    fn measure(&mut self) -> Option<MeasuredState> {
        let merit = self.dice.below(8) as f64;
        (merit > 0.0).then_some(MeasuredState { value: merit, merit })
    }

    fn evaluate(&mut self, index: usize, stop: bool, measured: Option<MeasuredState>) -> Event {
        assert!(self.worker(index).in_flight.is_none());
        if stop {
            return Event::Interrupted;
        }
        let others_steps = self.others_steps(index);
        self.worker(index).evaluate(others_steps, measured)
    }

    pub(super) fn step(&mut self, index: usize, ahead: Option<StepAgreement>) -> Event {
        let search = self.worker(index).training.search_state();
        assert!(!self.plan.early_stop.is_some_and(|rule| search.is_over(rule)), "a step after the search is over");
        if let Some(batch) = self.worker(index).make_step() {
            self.push(batch);
        }
        Event::Stepped { ahead }
    }

    fn push(&mut self, batch: BatchId) {
        assert!(self.pushed.insert(batch), "{batch:?} is pushed twice");
        // What is pushed is complete for the coordinator even where its worker is lost before it hears so.
        self.splits.get_mut(&batch.0).expect("dealt")[batch.1 as usize] = SplitState::Done;
    }

    pub(super) fn perform(&mut self, index: usize, action: Action) -> Event {
        match action {
            Action::FindStream(epoch) => self.find_stream(index, epoch),
            Action::WaitForSplits { barriers_after, .. } => {
                if self.is_outdated() {
                    return Event::GroupDue;
                }
                self.barrier_due(index, barriers_after).unwrap_or(Event::WaitOver)
            }
            Action::NextBatch { stop, barriers_after, .. } => self.next_batch(index, stop, barriers_after),
            Action::Step { .. } => self.step(index, None),
            Action::LeaveGroup | Action::CloseRound { .. } => {
                self.worker(index).put_batch_back();
                plain_reply(&action)
            }
            Action::CompleteStream => {
                assert!(self.worker(index).stream.is_empty(), "a stream is complete with batches left");
                plain_reply(&action)
            }
            Action::Evaluate => {
                let stop = self.worker(index).stop && self.dice.one_in(2);
                let measured = self.measure();
                self.evaluate(index, stop, measured)
            }
            Action::CloseEpoch { epoch, check_books } => {
                let all_done =
                    self.splits.get(&epoch).is_none_or(|splits| splits.iter().all(|split| *split == SplitState::Done));
                assert!(!check_books || all_done, "epoch {epoch} ends with splits that no worker read");
                plain_reply(&action)
            }
            action => plain_reply(&action),
        }
    }

    fn find_stream(&mut self, index: usize, epoch: u32) -> Event {
        if self.worker(index).stop {
            return Event::Interrupted;
        }
        if !self.worker(index).stream.is_empty() {
            return Event::StreamFound;
        }
        if self.worker(index).leaves {
            return Event::LetGo;
        }
        let count = self.plan.splits as usize;
        let most = 1 + self.dice.below(3) as usize;
        let splits = self.splits.entry(epoch).or_insert_with(|| vec![SplitState::Free; count]);
        let free: Vec<usize> = (0..count).filter(|split| splits[*split] == SplitState::Free).take(most).collect();
        if free.is_empty() {
            let is_done = splits.iter().all(|split| *split == SplitState::Done);
            let held = Event::SplitsHeld { pause: Duration::from_millis(1), checkpoint_by_time: false };
            return if is_done { Event::NoSplits } else { held };
        }
        free.iter().for_each(|split| splits[*split] = SplitState::Held(index));
        self.worker(index).stream = free.into_iter().map(|split| (epoch, split as u64, 0)).collect();
        Event::StreamFound
    }

    fn next_batch(&mut self, index: usize, stop: bool, barriers_after: Option<u64>) -> Event {
        if stop && self.worker(index).stop {
            return Event::StopRequested;
        }
        if let Some(due) = self.barrier_due(index, barriers_after) {
            return due;
        }
        if self.is_outdated() {
            return Event::GroupDue;
        }
        let facts = self.facts(index);
        let worker = self.worker(index);
        worker.batch = worker.stream.pop_front();
        if worker.batch.is_some() { Event::BatchReady(facts) } else { Event::StreamDry(facts) }
    }

    fn barrier_due(&mut self, index: usize, barriers_after: Option<u64>) -> Option<Event> {
        if self.dice.one_in(2) {
            self.worker(index).heard_barrier = self.barrier;
        }
        let heard = self.worker(index).heard_barrier;
        barriers_after.filter(|after| heard > *after).map(|_| Event::BarrierDue)
    }
}
