//! The model: what drivers, coordinator and collective do for the machines of a run.

mod calls;

use std::collections::{BTreeMap, BTreeSet};

use zagros_worker_core::{Action, BarrierDecision, EarlyStopRule, Event, LoopConfig, LoopEnd, TrainingPolicy};
use zagros_zip::ZipEq;

use crate::simulated::{BatchId, SeededDice, SimulatedWorker};

/// More events than any run of these sizes takes.
const MOST_EVENTS: u32 = 40_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopPlan {
    pub(crate) seed: u64,
    pub(crate) policy: TrainingPolicy,
    pub(crate) workers: usize,
    pub(crate) epochs: u32,
    /// Splits of an epoch. A split is one batch.
    pub(crate) splits: u64,
    pub(crate) max_steps: Option<u64>,
    pub(crate) evaluate_every: Option<u64>,
    pub(crate) early_stop: Option<EarlyStopRule>,
    pub(crate) checkpoint_every: Option<u64>,
    pub(crate) losses: u32,
    pub(crate) late_joiner: bool,
    pub(crate) stops: bool,
    pub(crate) leaver: bool,
}

impl LoopPlan {
    /// With four groups in a row that make no step, a run ends.
    pub(crate) fn with_few_losses(self) -> Self {
        let most = 3 - u32::from(self.late_joiner) - u32::from(self.leaver);
        Self { losses: self.losses.min(most), ..self }
    }

    pub(crate) fn batches(&self) -> BTreeSet<BatchId> {
        (0..self.epochs).flat_map(|epoch| (0..self.splits).map(move |split| (epoch, split, 0))).collect()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum SplitState {
    Free,
    Held(usize),
    Done,
}

pub(crate) struct LoopWorld {
    plan: LoopPlan,
    dice: SeededDice,
    /// By index; `None` is not started.
    workers: Vec<Option<SimulatedWorker>>,
    splits: BTreeMap<u32, Vec<SplitState>>,
    pub(crate) pushed: BTreeSet<BatchId>,
    generation: u64,
    /// The newest group in which a worker was lost.
    broken: u64,
    barrier: u64,
    expected: usize,
    losses_left: u32,
    losses_made: u32,
    events: u32,
    /// Of asynchronous workers: steps by index at the last vote, and those of processes that have gone since.
    voted: BTreeMap<usize, u64>,
    gone: u64,
}

impl LoopWorld {
    pub(crate) fn run(plan: LoopPlan) -> Self {
        let mut world = Self {
            plan,
            dice: SeededDice::new(plan.seed),
            workers: (0..plan.workers).map(|_| None).collect(),
            splits: BTreeMap::new(),
            pushed: BTreeSet::new(),
            generation: 0,
            broken: 0,
            barrier: 0,
            expected: 0,
            losses_left: plan.losses,
            losses_made: 0,
            events: 0,
            voted: BTreeMap::new(),
            gone: 0,
        };
        let late = usize::from(plan.late_joiner);
        (0..plan.workers - late).for_each(|index| world.start(index, false));
        while !world.is_over() {
            world.events += 1;
            assert!(world.events < MOST_EVENTS, "stuck: {:?}", world.states());
            world.go_on();
        }
        world
    }

    pub(crate) fn endings(&self) -> Vec<LoopEnd> {
        self.workers.iter().flatten().filter_map(|worker| worker.ending).collect()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.endings().iter().any(|ending| matches!(ending, LoopEnd::Failed(_)))
    }

    pub(crate) fn steps(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.steps).max().unwrap_or(0)
    }

    /// Steps of the run, as the first of the asynchronous workers counts them.
    pub(crate) fn steps_of_all(&self) -> u64 {
        let own = self.workers[0].as_ref().map_or(0, |worker| worker.steps);
        own + self.others_steps(0)
    }

    fn states(&self) -> Vec<String> {
        let state = |worker: &SimulatedWorker| format!("{:?} at {:?}", worker.training.state(), worker.at);
        self.workers.iter().flatten().map(state).collect()
    }

    fn is_over(&self) -> bool {
        self.workers.iter().flatten().all(|worker| worker.ending.is_some())
            && (self.workers.iter().all(Option::is_some) || self.workers.iter().flatten().count() > 0)
    }

    fn start(&mut self, index: usize, is_replacement: bool) {
        let plan = self.plan;
        let config = LoopConfig {
            epochs: plan.epochs,
            max_steps: plan.max_steps,
            evaluate_every: plan.evaluate_every,
            early_stop: plan.early_stop,
            resets_rows: !plan.policy.is_asynchronous(),
            checkpoint_every: plan.checkpoint_every.filter(|_| index == 0),
            is_replacement,
            ..crate::config(plan.policy)
        };
        self.expected = self.expected.max(self.workers.iter().flatten().count() - self.left() + 1);
        let heard_barrier = self.barrier;
        self.workers[index] = Some(SimulatedWorker { heard_barrier, ..SimulatedWorker::start(config) });
    }

    /// Workers that have left are expected no more.
    fn left(&self) -> usize {
        self.endings().iter().filter(|ending| **ending == LoopEnd::Left).count()
    }

    fn live(&self) -> Vec<usize> {
        let is_live = |worker: &Option<SimulatedWorker>| worker.as_ref().is_some_and(|worker| worker.ending.is_none());
        (0..self.workers.len()).filter(|index| is_live(&self.workers[*index])).collect()
    }

    fn live_worker(&self, index: usize) -> &SimulatedWorker {
        self.workers[index].as_ref().expect("live")
    }

    fn worker(&mut self, index: usize) -> &mut SimulatedWorker {
        self.workers[index].as_mut().expect("started")
    }

    fn go_on(&mut self) {
        self.inject_faults();
        let live = self.live();
        let Some(index) = live.get(self.dice.below(live.len() as u64) as usize).copied() else { return };
        let action = self.worker(index).at;
        let has_anyone_ended = self.endings().len() > self.left();
        if matches!(action, Action::Form { .. }) && has_anyone_ended || self.has_failed() && self.dice.one_in(4) {
            // The coordinator has ended the run.
            return self.report(index, Event::Failed);
        }
        if !self.is_collective(&action) {
            let event = self.perform(index, action);
            return self.report(index, event);
        }
        if !matches!(action, Action::Form { .. }) && (self.is_broken(index) || self.is_outdated()) {
            return self.lose_call(index);
        }
        if live.iter().all(|other| self.is_collective(&self.live_worker(*other).at)) && self.is_complete(&live) {
            self.perform_together(&live);
        }
    }

    /// Whether all whom a call waits for take part in it.
    fn is_complete(&self, live: &[usize]) -> bool {
        let forms = live.iter().filter(|index| self.live_worker(**index).is_forming()).count();
        if forms > 0 && forms < live.len() && self.plan.policy.is_asynchronous() {
            return false;
        }
        if forms > 0 && forms < live.len() {
            // The others hear that their group is no more once they call it.
            return live.iter().any(|index| !self.live_worker(*index).is_forming() && !self.is_broken(*index))
                && self.newest_is_of(live);
        }
        forms == 0 || live.len() == self.expected
    }

    /// Whether asynchronous workers have a newer group than theirs to go to: the coordinator forms one as soon as no worker is
    /// missing and one asks.
    pub(super) fn is_outdated(&self) -> bool {
        let live = self.live();
        let has_all = self.plan.policy.is_asynchronous() && live.len() == self.expected;
        has_all && live.iter().any(|index| self.live_worker(*index).is_forming())
    }

    /// A late worker waits in `Form`; those of the group go on without it until they have agreed to regroup.
    fn newest_is_of(&self, live: &[usize]) -> bool {
        let mut forming = live.iter().map(|index| self.live_worker(*index)).filter(|worker| worker.is_forming());
        forming.all(|worker| worker.generation == 0)
    }

    /// No worker joins asynchronous workers before they have started.
    fn all_have_trained(&self) -> bool {
        self.workers.iter().flatten().all(SimulatedWorker::has_trained)
    }

    fn inject_faults(&mut self) {
        if let Some(index) = self.workers.iter().position(Option::is_none)
            && self.dice.one_in(20)
            && self.live().len() + self.left() + 1 == self.workers.len()
            && (self.plan.policy.is_group() || self.all_have_trained())
        {
            self.start(index, self.generation > 0 && self.losses_made > 0);
        }
        let live = self.live();
        if live.is_empty() {
            return;
        }
        let index = live[self.dice.below(live.len() as u64) as usize];
        if self.plan.stops && self.dice.one_in(60) {
            self.worker(index).stop = true;
        }
        if self.plan.leaver && self.dice.one_in(30) {
            self.let_go(index);
        }
        let may_lose =
            self.losses_left > 0 && live.len() == self.plan.workers && self.workers.iter().all(Option::is_some);
        let others = || live.iter().copied().filter(|other| *other != index);
        let others_have_trained = others().all(|other| self.live_worker(other).has_trained());
        // A worker with the state stays.
        let one_stays = others().any(|other| !self.live_worker(other).leaves);
        if may_lose && others_have_trained && one_stays && self.dice.one_in(12) {
            self.lose(index);
        }
    }

    /// The coordinator lets one worker go that has trained, but not the first, which reports.
    fn let_go(&mut self, index: usize) {
        let is_wanted = self.workers.iter().flatten().any(|worker| worker.leaves);
        if index > 0 && self.live_worker(index).has_trained() && !is_wanted && self.live().len() == self.workers.len() {
            self.worker(index).leaves = true;
        }
    }

    /// A worker is gone. Where it was in a step, some of the others may have made that.
    fn lose(&mut self, index: usize) {
        (self.losses_left, self.losses_made) = (self.losses_left - 1, self.losses_made + 1);
        let live = self.live();
        let is_step = |world: &Self, other: &usize| matches!(world.live_worker(*other).at, Action::Step { .. });
        if self.plan.policy.is_group() && !self.is_broken(index) && live.iter().all(|other| is_step(self, other)) {
            for other in live.iter().copied().filter(|other| *other != index) {
                if self.dice.one_in(2) {
                    let event = self.step(other, None);
                    self.report(other, event);
                }
            }
        }
        if self.plan.policy.is_asynchronous() {
            self.answer_some(index, &live);
        }
        self.broken = self.generation;
        let held = self.splits.values_mut().flatten().filter(|split| **split == SplitState::Held(index));
        held.for_each(|split| *split = SplitState::Free);
        self.workers[index] = None;
    }

    /// A worker is gone in a call of all. Some of the others may have heard its result.
    fn answer_some(&mut self, lost: usize, live: &[usize]) {
        let call = self.worker(lost).at;
        let is_answered =
            matches!(call, Action::Vote(_) | Action::CloseEpoch { .. } | Action::Evaluate | Action::Checkpoint);
        let same = |world: &Self, other: &usize| {
            let worker = world.workers[*other].as_ref().expect("live");
            std::mem::discriminant(&worker.at) == std::mem::discriminant(&call) && !world.is_broken(*other)
        };
        if !is_answered || live.len() < self.expected || !live.iter().all(|other| same(self, other)) {
            return;
        }
        let events = self.events_of_all(live);
        for (other, event) in live.iter().copied().zip_eq(events) {
            // Where some leave, the coordinator keeps the result for a worker that has missed it.
            let is_kept = matches!(event, Event::BarrierDecided { decision: BarrierDecision::Regroup, .. });
            if other != lost && (is_kept || self.dice.one_in(2)) {
                self.report(other, event);
            }
        }
    }

    fn is_broken(&self, index: usize) -> bool {
        self.workers[index].as_ref().is_some_and(|worker| worker.generation > 0 && worker.generation <= self.broken)
    }

    /// A call of a group that is no more.
    fn lose_call(&mut self, index: usize) {
        let event = self.worker(index).lose_call();
        self.report(index, event);
    }

    fn report(&mut self, index: usize, event: Event) {
        for action in self.worker(index).reply(event) {
            match action {
                Action::AskForBarrier(number) => self.barrier = self.barrier.max(number),
                // A worker of a group without splits of its own has no stream.
                Action::StartRound { stream: false, .. } => {
                    assert!(self.worker(index).stream.is_empty() || self.worker(index).stop)
                }
                _ => {}
            }
        }
        match self.worker(index).ending {
            Some(LoopEnd::Left) => {
                let holds = self.splits.values().flatten().any(|split| *split == SplitState::Held(index));
                assert!(!holds, "worker {index} leaves with splits");
                self.expected -= 1;
            }
            // The coordinator counts it as lost.
            Some(LoopEnd::Failed(_)) => self.broken = self.generation,
            _ => {}
        }
    }
}
