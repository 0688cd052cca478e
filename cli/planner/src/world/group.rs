//! Calls of a process group: agreements, all-reduces, barriers, turns.

use std::collections::VecDeque;

use zagros_coordinator_core::decide_barrier;
use zagros_worker_core::{
    Action, BarrierDecision, BarrierReason, Event, GroupFailure, GroupMember, RankProgress, StepAgreement,
};
use zagros_zip::number_from;

use super::{SimEvent, SimWorld};
use crate::error::PlannerError;
use crate::work::F32;

#[derive(Debug, Default)]
pub(super) struct GroupGathering {
    /// Workers of the newest group, by rank.
    pub(super) members: Vec<usize>,
    /// How many of them are in the call.
    here: usize,
    /// Counts groups and calls, so that the end of a call that was given up is distinguished.
    pub(super) era: u64,
    /// Ranks that push at a time and are not acknowledged, in mode `sync`.
    turns: VecDeque<Vec<usize>>,
    /// The newest group that is known to have lost a worker.
    broken: u64,
}

impl SimWorld {
    /// All members of a group know of it: they form it, and hear how far each is.
    pub(super) fn form_if_all_know(&mut self, generation: u64, members: &[usize]) {
        let knows = |index: &&usize| self.workers[**index].formed.is_some_and(|(known, _)| known == generation);
        if members.iter().filter(knows).count() < members.len() {
            return;
        }
        let progress: Vec<RankProgress> = members.iter().map(|index| self.workers[*index].progress).collect();
        let era = self.gathering.era + 1;
        self.gathering = GroupGathering {
            members: members.to_vec(),
            era,
            broken: self.gathering.broken,
            ..GroupGathering::default()
        };
        for (rank, index) in number_from(0_u32, members) {
            let worker = &mut self.workers[*index];
            (worker.generation, worker.formed) = (generation, None);
            let group = Some(GroupMember { rank, generation });
            self.reply(*index, Event::Formed { group, progress: progress.clone() });
        }
    }

    /// A worker is in a call of its group. The call ends once all are.
    pub(super) fn enter_call(&mut self, index: usize) -> Result<(), PlannerError> {
        if self.workers[index].generation <= self.gathering.broken {
            self.lose_call(index);
            return Ok(());
        }
        self.gathering.here += 1;
        if self.gathering.here < self.gathering.members.len() {
            return Ok(());
        }
        self.gathering.here = 0;
        let seconds = match self.workers[index].action {
            Action::Step { .. } => self.all_reduce(),
            // Asynchronous workers vote at the coordinator.
            Action::Vote(_) => 2.0 * self.cluster.hop,
            _ => self.ring_latency(),
        };
        self.gathering.era += 1;
        self.queue.push(self.queue.now() + seconds, SimEvent::GroupCall { era: self.gathering.era });
        Ok(())
    }

    /// The call of a group fails for a worker, because another one is lost.
    fn lose_call(&mut self, index: usize) {
        let generation = self.workers[index].generation;
        self.workers[index].attempts += 1;
        self.reply(index, Event::Lost(GroupFailure { generation, about_others: true, stop_requested: false }));
    }

    /// The workers have heard that a worker of this group is lost: a worker that waits for it in a call waits no longer.
    pub(super) fn break_group(&mut self, generation: u64) {
        if generation <= self.gathering.broken {
            return;
        }
        (self.gathering.broken, self.gathering.here) = (generation, 0);
        self.gathering.era += 1;
        for index in self.gathering.members.clone() {
            let worker = &self.workers[index];
            let is_in_call = matches!(worker.action, Action::Agree { .. } | Action::Step { .. } | Action::WaitForAll);
            if worker.is_alive && worker.generation <= generation && is_in_call && !worker.has_ended {
                self.lose_call(index);
            }
        }
    }

    pub(super) fn end_group_call(&mut self, era: u64) -> Result<(), PlannerError> {
        if era != self.gathering.era {
            return Ok(());
        }
        let members = self.gathering.members.clone();
        match self.workers[members[0]].action {
            Action::Agree { .. } => {
                let (agreed, now) = (self.agreement(&members), self.queue.now());
                for index in &members {
                    let worker = &mut self.workers[*index];
                    worker.spent.group += now - worker.since;
                }
                members.iter().for_each(|index| self.reply(*index, Event::Agreed(agreed)));
            }
            Action::WaitForAll => members.iter().for_each(|index| self.reply(*index, Event::AllHere)),
            Action::Vote(_) => self.decide(&members),
            Action::Step { .. } => self.end_group_step(&members),
            action => return Err(self.stuck(&format!("the group is in {action:?}"))),
        }
        Ok(())
    }

    fn agreement(&self, members: &[usize]) -> StepAgreement {
        members.iter().fold(StepAgreement::default(), |all, index| {
            let worker = &self.workers[*index];
            let Action::Agree { vote, .. } = worker.action else { return all };
            all.with_vote(vote, worker.batch.as_ref().map_or(0, |(batch, _)| batch.samples))
        })
    }

    /// What all bring to the next step, if each has its batch by now.
    fn agreed_ahead(&self, members: &[usize]) -> Option<StepAgreement> {
        let facts = self.step_facts();
        members.iter().try_fold(StepAgreement::default(), |all, index| {
            let worker = &self.workers[*index];
            let Action::Step { ahead: Some(rule), .. } = worker.action else { return None };
            let next = worker.lookups.front().filter(|lookup| lookup.arrived)?;
            Some(all.with_vote(rule.vote(facts), next.batch.samples))
        })
    }

    fn end_group_step(&mut self, members: &[usize]) {
        let now = self.queue.now();
        let agreement = self.agreed_ahead(members);
        let mut turns = Vec::new();
        for index in members {
            let worker = &mut self.workers[*index];
            worker.spent.group += now - worker.since;
            worker.since = now;
            let samples = worker.batch.as_ref().map_or(0, |(batch, _)| batch.samples);
            if samples > 0 {
                turns.push(*index);
            }
            self.stepped(*index, samples);
        }
        if self.policy.is_in_turns() {
            // The sum of two gradients has the same bits in both orders.
            self.gathering.turns = turns.chunks(if turns.len() == 2 { 2 } else { 1 }).map(<[usize]>::to_vec).collect();
            return self.take_turn();
        }
        turns.into_iter().for_each(|index| self.push_batch(index));
        members.iter().for_each(|index| self.reply(*index, Event::Stepped { ahead: agreement }));
    }

    /// The push of the batch that a worker has stepped on.
    fn push_batch(&mut self, index: usize) {
        if let Some((batch, place)) = self.workers[index].batch.take() {
            self.workers[index].kept = Some(place.clone());
            self.start_push(index, batch, place);
        }
    }

    /// In mode `sync` more than two ranks push one after another.
    fn take_turn(&mut self) {
        match self.gathering.turns.front().cloned() {
            Some(turn) => turn.into_iter().for_each(|index| self.push_batch(index)),
            None => self
                .gathering
                .members
                .clone()
                .iter()
                .for_each(|index| self.reply(*index, Event::Stepped { ahead: None })),
        }
    }

    /// A rank's push is acknowledged: after the last of its turn and a barrier of all, the next ones push.
    pub(super) fn end_turn(&mut self, index: usize) {
        if !(self.policy.is_group() && self.policy.is_in_turns()) {
            return;
        }
        let Some(turn) = self.gathering.turns.front_mut().filter(|turn| turn.contains(&index)) else { return };
        turn.retain(|rank| *rank != index);
        if turn.is_empty() {
            self.queue.push(self.queue.now() + self.ring_latency(), SimEvent::NextTurn { era: self.gathering.era });
        }
    }

    pub(super) fn next_turn(&mut self, era: u64) -> Result<(), PlannerError> {
        if era == self.gathering.era {
            self.gathering.turns.pop_front();
            self.take_turn();
        }
        Ok(())
    }

    /// Asynchronous workers end their epoch together, as the coordinator decides.
    fn decide(&mut self, members: &[usize]) {
        let reason = |index: &usize| match self.workers[*index].action {
            Action::Vote(reason) => reason,
            _ => BarrierReason::Checkpoint,
        };
        let reasons: Vec<BarrierReason> = members.iter().map(reason).collect();
        let decision = decide_barrier(&reasons).unwrap_or(BarrierDecision::Checkpoint);
        let all: u64 = members.iter().map(|index| self.workers[*index].steps).sum();
        for index in members {
            let others_steps = all - self.workers[*index].steps;
            self.reply(*index, Event::BarrierDecided { decision, called: 0, others_steps });
        }
    }

    /// The part of an all-reduce that the backward pass does not hide. Its bytes pass the links of all machines with workers. Streamed
    /// gradients are summed elsewhere: only the loss is left.
    fn all_reduce(&mut self) -> f64 {
        let (now, workers) = (self.queue.now(), self.gathering.members.len() as f64);
        let work = &self.scenario.work;
        let summed = if work.traffic.is_streamed { 0.0 } else { work.dense.parameters };
        let bytes = 2.0 * (workers - 1.0) / workers * summed * F32;
        let machines: std::collections::BTreeSet<usize> =
            self.gathering.members.iter().map(|index| self.cluster.worker_machines[*index]).collect();
        if self.cluster.machines.len() > 1 {
            for machine in machines {
                self.cluster.machines[machine].up.send(now, bytes);
                self.cluster.machines[machine].down.send(now, bytes);
            }
        }
        let dense = self.cluster.worker_times(self.gathering.members[0]).dense * self.scenario.work.batch;
        crate::StageTimes::exposed_reduce(bytes / self.cluster.ring_rate + self.ring_latency(), dense)
    }

    /// A ring: each value passes all others twice.
    fn ring_latency(&self) -> f64 {
        2.0 * (self.gathering.members.len() as f64 - 1.0) * self.cluster.hop
    }
}
