//! The model's calls: what drivers, coordinator and collective reply to the actions of the machines.

use std::collections::BTreeSet;
use std::time::Duration;

use zagros_protocol::control;
use zagros_worker_core::{
    Action, BarrierDecision, BarrierReason, Event, GroupMember, InFlight, LoopCounts, MeasuredState, RankProgress,
    StepAgreement, StepFacts, TrainingPolicy,
};
use zagros_zip::{ZipEq, number_from};

use super::{BatchId, LoopWorld, SplitState};

impl LoopWorld {
    pub(super) fn is_collective(&self, action: &Action) -> bool {
        let several = !matches!(self.plan.policy, TrainingPolicy::OneWorker { .. });
        match action {
            Action::Step { .. } => self.plan.policy.is_group(),
            Action::Form { .. } => true,
            Action::Vote(_) | Action::Save { together: true, .. } => several,
            action => several && crate::is_call_of_all(action),
        }
    }

    /// All are in the same call, of the same step.
    pub(super) fn perform_together(&mut self, live: &[usize]) {
        let is_late = |index: &usize| self.is_forming(*index) && self.live_worker(*index).generation == 0;
        let all_form = live.iter().all(|index| self.is_forming(*index));
        let ranks: Vec<usize> = live.iter().copied().filter(|index| all_form || !is_late(index)).collect();
        let calls: BTreeSet<String> = ranks.iter().map(|index| self.call_of(*index)).collect();
        assert_eq!(calls.len(), 1, "workers are in different calls: {:?}", self.states());
        let events = self.events_of_all(&ranks);
        for (index, event) in ranks.into_iter().zip_eq(events) {
            self.report(index, event);
        }
    }

    /// What must be equal on all who take part in a call.
    fn call_of(&self, index: usize) -> String {
        let worker = self.live_worker(index);
        let step = if self.plan.policy.is_group() { worker.steps } else { 0 };
        match worker.at {
            Action::Form { .. } => "form".to_owned(),
            Action::Follow { source, .. } => format!("follow {source}"),
            Action::Agree { .. } => format!("agree on {step}"),
            Action::Step { last, .. } => format!("step {step}, last: {last}"),
            Action::Vote(_) => "vote".to_owned(),
            action => format!("{action:?} of epoch {} after {step}", worker.training.epoch()),
        }
    }

    pub(super) fn events_of_all(&mut self, ranks: &[usize]) -> Vec<Event> {
        let action = self.worker(ranks[0]).at;
        match action {
            Action::Form { .. } => self.form(ranks),
            Action::Agree { .. } => vec![Event::Agreed(self.agreement(ranks)); ranks.len()],
            Action::Step { .. } => {
                let next_agreement = self.agree_ahead(ranks);
                ranks.iter().map(|index| self.step(*index, next_agreement)).collect()
            }
            Action::Evaluate => {
                let stop = ranks.iter().any(|index| self.worker(*index).stop) && self.draw(2) == 0;
                let measured = self.measure();
                ranks.iter().map(|index| self.evaluate(*index, stop, measured)).collect()
            }
            Action::Vote(_) => self.decide(ranks),
            Action::Follow { source, .. } => self.follow(ranks, source),
            Action::Checkpoint | Action::FinalCheckpoint => {
                // Nothing is in flight on any worker, and none is in a step.
                ranks.iter().for_each(|index| self.acknowledge(*index));
                assert!(ranks.iter().all(|index| self.worker(*index).in_flight.is_none()));
                vec![Event::CheckpointDone; ranks.len()]
            }
            _ => ranks.iter().map(|index| self.perform(*index, action)).collect(),
        }
    }

    fn form(&mut self, ranks: &[usize]) -> Vec<Event> {
        self.generation += 1;
        let progress: Vec<RankProgress> = ranks
            .iter()
            .map(|index| match self.worker(*index).at {
                Action::Form { progress, .. } => progress,
                _ => RankProgress::default(),
            })
            .collect();
        let generation = self.generation;
        number_from(0, ranks)
            .map(|(rank, index)| {
                let worker = self.worker(*index);
                (worker.rank, worker.generation) = (rank, generation);
                let several = !matches!(self.plan.policy, TrainingPolicy::OneWorker { .. });
                let group = several.then_some(GroupMember { rank, generation });
                Event::Formed { group, progress: if several { progress.clone() } else { Vec::new() } }
            })
            .collect()
    }

    fn follow(&mut self, ranks: &[usize], source: usize) -> Vec<Event> {
        let (steps, evaluated, search, epoch) = {
            let lead = self.worker(ranks[source]);
            (lead.steps, lead.evaluated, lead.training.search_state(), lead.training.epoch())
        };
        let is_asynchronous = self.plan.policy.is_asynchronous();
        self.count_those_that_are_gone(ranks);
        ranks
            .iter()
            .map(|index| {
                let Action::Follow { in_flight, adopt, same_epoch, .. } = self.worker(*index).at else {
                    unreachable!()
                };
                if let Some(batch) = self.worker(*index).in_flight.take() {
                    // Gradients are pushed where another rank made the step, and only there.
                    let was_made = steps == self.worker(*index).steps + 1;
                    assert_eq!(in_flight == InFlight::Push, was_made, "{:?}", self.worker(*index).at);
                    match in_flight {
                        InFlight::Push => self.push(*index, batch),
                        InFlight::ReadAgain => self.worker(*index).stream.push_front(batch),
                    }
                }
                let worker = self.worker(*index);
                assert!(same_epoch || worker.stream.is_empty(), "a stream of another epoch is left");
                if adopt {
                    (worker.evaluated, worker.epoch) = (evaluated, epoch);
                    worker.steps = if is_asynchronous { worker.steps } else { steps };
                }
                assert!(is_asynchronous || worker.steps == steps);
                let (steps, evaluated) = (worker.steps, worker.evaluated);
                let own = (worker.training.epoch(), worker.training.search_state());
                let (epoch, search) = if adopt { (epoch, search) } else { own };
                let others_steps = if is_asynchronous { self.others_steps(*index) } else { 0 };
                Event::Ready(LoopCounts { epoch, steps, others_steps, evaluated, search, untouched: false })
            })
            .collect()
    }

    fn count_those_that_are_gone(&mut self, ranks: &[usize]) {
        let is_gone = |world: &mut Self, index: usize| {
            !ranks.contains(&index) || !world.worker(index).training.rank_progress().has_trained
        };
        for index in self.voted.keys().copied().collect::<Vec<_>>() {
            if is_gone(self, index) {
                self.gone += self.voted.remove(&index).unwrap_or(0);
            }
        }
    }

    pub(super) fn others_steps(&self, index: usize) -> u64 {
        self.gone + self.voted.iter().filter(|(other, _)| **other != index).map(|(_, steps)| steps).sum::<u64>()
    }

    fn agreement(&mut self, ranks: &[usize]) -> StepAgreement {
        let mut all = StepAgreement::default();
        for index in ranks {
            let Action::Agree { vote, batch } = self.worker(*index).at else { unreachable!() };
            all = all.with_vote(vote, u64::from(batch));
        }
        all
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
        (self.draw(3) > 0).then_some(all)
    }

    fn facts(&mut self, index: usize) -> StepFacts {
        let joins = self.workers.iter().flatten().any(|worker| worker.generation == 0 && worker.ending.is_none());
        let checkpoint_by_time = self.plan.checkpoint_every.is_some() && self.draw(15) == 0;
        let (newest_group, leaves) = (self.generation + u64::from(joins), self.worker(index).leaves);
        StepFacts { checkpoint_by_time, newest_group, leaves }
    }

    /// As the coordinator does.
    fn decide(&mut self, ranks: &[usize]) -> Vec<Event> {
        let reason = |world: &mut Self, index: usize| {
            let Action::Vote(reason) = world.worker(index).at else { unreachable!() };
            match reason {
                BarrierReason::Checkpoint => control::BarrierReason::Checkpoint,
                BarrierReason::EpochEnd => control::BarrierReason::EpochEnd,
                BarrierReason::Stop => control::BarrierReason::Stop,
                BarrierReason::Leave => control::BarrierReason::Leave,
            }
        };
        let reasons: Vec<control::BarrierReason> = ranks.iter().map(|index| reason(self, *index)).collect();
        let decision = match zagros_coordinator_core::decide_barrier(&reasons) {
            Some(control::BarrierDecision::Checkpoint) => BarrierDecision::Checkpoint,
            Some(control::BarrierDecision::EpochOver) => BarrierDecision::EpochOver,
            Some(control::BarrierDecision::Stop) => BarrierDecision::Stop,
            Some(control::BarrierDecision::Regroup) => BarrierDecision::Regroup,
            other => panic!("{reasons:?} are decided as {other:?}"),
        };
        let called = ranks.iter().map(|index| self.worker(*index).heard).max().unwrap_or(0);
        self.voted = ranks.iter().map(|index| (*index, self.worker(*index).steps)).collect();
        let decided = |others_steps| Event::BarrierDecided { decision, called, others_steps };
        ranks.iter().map(|index| decided(self.others_steps(*index))).collect()
    }

    fn measure(&mut self) -> Option<MeasuredState> {
        let merit = self.draw(8) as f64;
        (merit > 0.0).then_some(MeasuredState { value: merit, merit })
    }

    fn evaluate(&mut self, index: usize, stop: bool, measured: Option<MeasuredState>) -> Event {
        assert!(self.worker(index).in_flight.is_none());
        if stop {
            return Event::Interrupted;
        }
        let others = if self.plan.policy.is_asynchronous() { self.others_steps(index) } else { 0 };
        let worker = self.worker(index);
        worker.evaluated = Some(worker.steps + others);
        Event::Evaluated { measured }
    }

    pub(super) fn step(&mut self, index: usize, ahead: Option<StepAgreement>) -> Event {
        let Action::Step { batch, .. } = self.worker(index).at else { unreachable!() };
        let search = self.worker(index).training.search_state();
        assert!(!self.plan.early_stop.is_some_and(|rule| search.is_over(rule)), "a step after the search is over");
        self.worker(index).steps += 1;
        if let Some(trained) = self.worker(index).batch.take().filter(|_| batch) {
            self.push(index, trained);
        }
        Event::Stepped { ahead }
    }

    fn push(&mut self, index: usize, batch: BatchId) {
        assert!(self.pushed.insert(batch), "{batch:?} is pushed twice");
        self.worker(index).unacknowledged.push(batch);
        // What is pushed is complete for the coordinator even where its worker is lost before it hears so.
        self.splits.get_mut(&batch.0).expect("dealt")[batch.1 as usize] = SplitState::Done;
    }

    fn acknowledge(&mut self, index: usize) {
        self.worker(index).unacknowledged.clear();
    }

    pub(super) fn perform(&mut self, index: usize, action: Action) -> Event {
        match action {
            Action::Resume => Event::Ready(LoopCounts { untouched: true, ..LoopCounts::default() }),
            Action::FindStream(epoch) => self.find_stream(index, epoch),
            Action::WaitForSplits { barriers_after, .. } => {
                if self.is_outdated() {
                    return Event::GroupDue;
                }
                self.barrier_due(index, barriers_after).unwrap_or(Event::WaitOver)
            }
            Action::NextBatch { stop, barriers_after, .. } => self.next_batch(index, stop, barriers_after),
            Action::Step { .. } => self.step(index, None),
            Action::Drain => {
                self.acknowledge(index);
                Event::Drained
            }
            Action::LeaveGroup | Action::CloseRound { .. } => {
                let worker = self.worker(index);
                if let Some(batch) = worker.batch.take() {
                    worker.stream.push_front(batch);
                }
                self.acknowledge(index);
                if action == Action::LeaveGroup { Event::Left } else { Event::Drained }
            }
            Action::CompleteStream => {
                assert!(self.worker(index).stream.is_empty(), "a stream is complete with batches left");
                Event::Drained
            }
            Action::Evaluate => {
                let stop = self.worker(index).stop && self.draw(2) == 0;
                let measured = self.measure();
                self.evaluate(index, stop, measured)
            }
            Action::Checkpoint | Action::FinalCheckpoint => Event::CheckpointDone,
            Action::WaitForAll => Event::AllHere,
            Action::CloseEpoch { epoch, check_books } => {
                let all_done =
                    self.splits.get(&epoch).is_none_or(|splits| splits.iter().all(|split| *split == SplitState::Done));
                assert!(!check_books || all_done, "epoch {epoch} ends with splits that no worker read");
                Event::EpochClosed
            }
            Action::ResetRows => Event::RowsReset,
            Action::Conclude { .. } => Event::Concluded,
            Action::Save { .. } => Event::Saved,
            action => unreachable!("{action:?}"),
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
        let most = 1 + self.draw(3) as usize;
        let splits = self.splits.entry(epoch).or_insert_with(|| vec![SplitState::Free; count]);
        let free: Vec<usize> = (0..count).filter(|split| splits[*split] == SplitState::Free).take(most).collect();
        if free.is_empty() {
            let is_done = splits.iter().all(|split| *split == SplitState::Done);
            let held = Event::SplitsHeld { pause: Duration::from_millis(1), checkpoint_by_time: false };
            return if is_done { Event::NoSplits } else { held };
        }
        free.iter().for_each(|split| splits[*split] = SplitState::Held(index));
        self.worker(index).stream = free.into_iter().map(|split| (epoch, split as u32)).collect();
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
        if self.draw(2) == 0 {
            self.worker(index).heard = self.barrier;
        }
        let heard = self.worker(index).heard;
        barriers_after.filter(|after| heard > *after).map(|_| Event::BarrierDue)
    }
}
