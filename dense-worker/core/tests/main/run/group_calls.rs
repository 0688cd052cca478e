//! The calls that the workers of a process group make together, and how they fail. At the end of a run the first worker saves, and the
//! others wait for it at the coordinator.

use std::collections::BTreeSet;

use zagros_coordinator_core::CoreInput;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{BarrierReason, BarrierRequest, BarrierVote};
use zagros_worker_core::{
    Action, Event, GroupFailure, GroupMember, InFlight, LoopCounts, MeasuredState, RankProgress, StepAgreement,
};
use zagros_zip::ZipEq;

use super::world::RunWorld;

impl RunWorld {
    pub(crate) fn is_collective(&self, action: &Action) -> bool {
        crate::is_call_of_all(action) || matches!(action, Action::Form { .. } | Action::Step { .. })
    }

    /// A worker is at a call of its group. It ends for all once all are there, or fails.
    pub(crate) fn meet(&mut self, index: usize) {
        let generation = self.worker(index).generation();
        let group = self.worker(index).group.clone().unwrap_or_default();
        let members: Vec<usize> = group.workers.iter().map(|of| *of as usize).collect();
        let is_member = |other: &usize| {
            let other = self.workers[*other].as_ref();
            other.is_some_and(|other| other.generation() == generation && !other.is_forming_anew())
        };
        if !members.iter().all(is_member) {
            return self.may_lose(index, generation);
        }
        let is_there = |other: &usize| self.workers[*other].as_ref().is_some_and(|other| self.is_collective(&other.at));
        if members.iter().all(is_there) {
            self.perform_together(&members);
        }
    }

    /// A worker of the group is missing: it has not come yet, or it is gone. The coordinator says which, or the connection ends.
    fn may_lose(&mut self, index: usize, generation: u64) {
        let worker = self.worker(index);
        let has_heard = worker.broken_group >= generation || worker.newest_group > generation;
        let members = worker.group.clone().unwrap_or_default().workers;
        let is_left =
            |of: &u32| self.workers[*of as usize].as_ref().is_none_or(|other| other.generation() > generation);
        let is_gone = members.iter().any(is_left);
        if has_heard || is_gone && self.dice.one_in(6) {
            self.lose_call(index, generation);
        }
    }

    pub(crate) fn lose_call(&mut self, index: usize, generation: u64) {
        let worker = self.worker(index);
        worker.unsaved = None;
        if let Action::Step { batch: true, .. } = worker.at {
            worker.in_flight = worker.batch.take();
        }
        self.tell(index, Event::Lost(GroupFailure { generation, about_others: true, stop_requested: false }));
    }

    /// A worker is about to die in a step. Some of the others may have made it.
    pub(crate) fn share_the_last_step(&mut self, index: usize) {
        let Some(group) = self.workers[index].as_ref().and_then(|worker| worker.group.clone()) else { return };
        let members: Vec<usize> = group.workers.iter().map(|of| *of as usize).collect();
        let is_stepping = |other: &usize| {
            let other = self.workers[*other].as_ref();
            other.is_some_and(|other| other.generation() == group.generation && matches!(other.at, Action::Step { .. }))
        };
        if members.iter().all(is_stepping) {
            for other in members.into_iter().filter(|other| *other != index) {
                if self.dice.one_in(2) {
                    let event = self.step(other, None);
                    self.tell(other, event);
                }
            }
        }
    }

    fn perform_together(&mut self, ranks: &[usize]) {
        let calls: BTreeSet<String> = ranks.iter().map(|index| self.call_of(*index)).collect();
        assert_eq!(calls.len(), 1, "workers are in different calls: {calls:?}: {}", self.describe());
        let events = self.events_of(ranks);
        for (index, event) in ranks.iter().zip_eq(events) {
            self.tell(*index, event);
        }
    }

    fn call_of(&mut self, index: usize) -> String {
        let worker = self.worker(index);
        let epoch = worker.epoch();
        match worker.at {
            Action::Form { .. } => "form".to_owned(),
            Action::Follow { source, .. } => format!("follow {source}"),
            Action::Agree { .. } => format!("agree on {}", worker.steps),
            Action::Step { last, .. } => format!("step {}, last: {last}", worker.steps),
            action => format!("{action:?} of epoch {epoch} after {}", worker.steps),
        }
    }

    fn events_of(&mut self, ranks: &[usize]) -> Vec<Event> {
        let action = self.worker(ranks[0]).at;
        match action {
            Action::Form { .. } => self.formed(ranks),
            Action::Follow { source, .. } => self.follow(ranks, source),
            Action::Resume => vec![Event::Ready(LoopCounts { untouched: true, ..LoopCounts::default() }); ranks.len()],
            Action::Agree { .. } => vec![Event::Agreed(self.agreement(ranks)); ranks.len()],
            Action::Step { .. } => ranks.iter().map(|index| self.step(*index, None)).collect(),
            Action::Evaluate => {
                let merit = self.dice.below(8) as f64;
                ranks.iter().map(|index| self.evaluated(*index, merit)).collect()
            }
            Action::Checkpoint | Action::FinalCheckpoint => {
                // A checkpoint is of one moment: no rank is in a step.
                assert!(ranks.iter().all(|index| self.worker(*index).in_flight.is_none()));
                vec![Event::CheckpointDone; ranks.len()]
            }
            Action::WaitForAll => vec![Event::AllHere; ranks.len()],
            Action::CloseEpoch { epoch, .. } => {
                let done = self.ledger.completed.keys().filter(|split| split.0 == epoch).count() as u64;
                let what = "an epoch ends with splits that no worker has completed";
                assert_eq!(done, self.plan.splits, "{what}: {}", self.describe());
                vec![Event::EpochClosed; ranks.len()]
            }
            Action::ResetRows => {
                // Gradients of an epoch must not change rows of the next.
                assert!(ranks.iter().all(|index| self.worker(*index).in_flight.is_none()));
                vec![Event::RowsReset; ranks.len()]
            }
            Action::Conclude { .. } => vec![Event::Concluded; ranks.len()],
            action => panic!("{action:?} is no call of all"),
        }
    }

    fn formed(&mut self, ranks: &[usize]) -> Vec<Event> {
        let progress: Vec<RankProgress> = ranks
            .iter()
            .map(|index| match self.worker(*index).at {
                Action::Form { progress, .. } => progress,
                action => panic!("{action:?} is not to form a group"),
            })
            .collect();
        let event = |world: &mut Self, index: &usize| {
            let group = world.worker(*index).group.clone().expect("it has a group");
            let group = Some(GroupMember { rank: group.rank, generation: group.generation });
            Event::Formed { group, progress: progress.clone() }
        };
        ranks.iter().map(|index| event(self, index)).collect()
    }

    fn follow(&mut self, ranks: &[usize], source: usize) -> Vec<Event> {
        let lead = self.worker(ranks[source]);
        let (steps, evaluated, epoch) = (lead.steps, lead.evaluated, lead.epoch());
        let search = lead.training.as_ref().map(|lead| lead.search_state()).unwrap_or_default();
        let follow_one = |world: &mut Self, index: usize| {
            let Action::Follow { in_flight, adopt, same_epoch, .. } = world.worker(index).at else { unreachable!() };
            if let Some(batch) = world.worker(index).in_flight.take() {
                let was_made = steps == world.worker(index).steps + 1;
                let what = "gradients are pushed where another rank made the step";
                assert_eq!(in_flight == InFlight::Push, was_made, "{what}");
                match in_flight {
                    InFlight::Push => world.make_push(index, batch),
                    InFlight::ReadAgain => world.worker(index).stream.push_front(batch),
                }
            }
            let worker = world.worker(index);
            assert!(same_epoch || worker.stream.is_empty(), "a stream of another epoch is left");
            if adopt {
                (worker.steps, worker.evaluated) = (steps, evaluated);
            }
            assert_eq!(worker.steps, steps);
            Event::Ready(LoopCounts { epoch, steps, others_steps: 0, evaluated, search, untouched: false })
        };
        ranks.iter().map(|index| follow_one(self, *index)).collect()
    }

    fn agreement(&mut self, ranks: &[usize]) -> StepAgreement {
        let mut all = StepAgreement::default();
        for index in ranks {
            let Action::Agree { vote, batch } = self.worker(*index).at else { unreachable!() };
            all = all.with_vote(vote, u64::from(batch));
        }
        all
    }

    fn step(&mut self, index: usize, ahead: Option<StepAgreement>) -> Event {
        let worker = self.worker(index);
        let Action::Step { batch, .. } = worker.at else { unreachable!() };
        worker.steps += 1;
        if let Some(trained) = worker.batch.take().filter(|_| batch) {
            self.make_push(index, trained);
        }
        Event::Stepped { ahead }
    }

    fn evaluated(&mut self, index: usize, merit: f64) -> Event {
        let worker = self.worker(index);
        assert!(worker.in_flight.is_none());
        worker.evaluated = Some(worker.steps);
        Event::Evaluated { measured: Some(MeasuredState { value: merit, merit }) }
    }

    /// A part of the save, or of the wait for it.
    pub(crate) fn save_together(&mut self, index: usize) -> Option<Event> {
        if index > 0 {
            return self.vote_saved(index);
        }
        let turns = 1 + self.dice.below(5);
        let left = self.worker(index).unsaved.get_or_insert(turns);
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
        let (generation, worker) = (self.worker(index).generation(), self.worker(index));
        let (member, incarnation) = (worker.member, worker.incarnation);
        let request = BarrierRequest { member, incarnation, group: generation, ballot: 1, vote };
        let input = CoreInput::Barrier(request.clone());
        match self.ask_as_worker(index, input, |core, now| core.barrier(now, &request))?.state? {
            State::Result(_) => return Some(Event::Saved),
            State::Failure(_) => self.lose_call(index, generation),
            State::Wait(_) => {}
        }
        None
    }
}
