//! The model: what drivers, coordinator and collective do for the machines of a run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use zagros_worker_core::{
    Action, BarrierVote, Ending, Event, GroupMember, InFlight, LoopConfig, LoopCounts, Loss, Policy, RankProgress,
    StepAgreement, StepFacts, TrainingLoop,
};

/// More events than any run of these sizes takes.
const MOST_EVENTS: u32 = 40_000;

/// What a run is to be.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub policy: Policy,
    pub workers: usize,
    pub epochs: u32,
    /// Splits of an epoch. A split is one batch.
    pub splits: u32,
    pub max_steps: Option<u64>,
    pub evaluate_every: Option<u64>,
    pub checkpoint_every: Option<u64>,
    pub losses: u32,
    pub late_joiner: bool,
    pub stops: bool,
}

/// A batch, by epoch and split.
type BatchId = (u32, u32);

impl Plan {
    pub fn batches(&self) -> BTreeSet<BatchId> {
        (0..self.epochs).flat_map(|epoch| (0..self.splits).map(move |split| (epoch, split))).collect()
    }
}

/// What the coordinator knows of a split.
#[derive(Clone, Copy, PartialEq)]
enum Split {
    Free,
    Held(usize),
    Done,
}

/// One worker, its driver and its machine.
struct Worker {
    training: TrainingLoop,
    /// What its driver is at.
    at: Action,
    epoch: u32,
    steps: u64,
    evaluated: Option<u64>,
    /// Read and not trained on.
    stream: VecDeque<BatchId>,
    batch: Option<BatchId>,
    in_flight: Option<BatchId>,
    /// Trained on, and its push is not acknowledged.
    unacknowledged: Vec<BatchId>,
    stop: bool,
    heard: u64,
    rank: u32,
    generation: u64,
    ending: Option<Ending>,
}

pub struct World {
    plan: Plan,
    random: u64,
    /// By index; `None` is not started.
    workers: Vec<Option<Worker>>,
    splits: BTreeMap<u32, Vec<Split>>,
    pushed: BTreeSet<BatchId>,
    generation: u64,
    /// The newest group in which a worker was lost.
    broken: u64,
    barrier: u64,
    /// Workers that were ever started.
    expected: usize,
    losses_left: u32,
    losses_made: u32,
    events: u32,
}

impl World {
    pub fn run(plan: Plan) -> Self {
        let (random, losses_left) = (plan.seed | 1, plan.losses);
        let mut world = Self {
            plan,
            random,
            workers: (0..plan.workers).map(|_| None).collect(),
            splits: BTreeMap::new(),
            pushed: BTreeSet::new(),
            generation: 0,
            broken: 0,
            barrier: 0,
            expected: 0,
            losses_left,
            losses_made: 0,
            events: 0,
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

    pub fn endings(&self) -> Vec<Ending> {
        self.workers.iter().flatten().filter_map(|worker| worker.ending).collect()
    }

    pub fn has_failed(&self) -> bool {
        self.endings().iter().any(|ending| matches!(ending, Ending::Failed(_)))
    }

    pub fn pushed(&self) -> BTreeSet<BatchId> {
        self.pushed.clone()
    }

    pub fn steps(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.steps).max().unwrap_or(0)
    }

    pub fn losses_made(&self) -> u32 {
        self.losses_made
    }

    fn states(&self) -> Vec<String> {
        self.workers
            .iter()
            .flatten()
            .map(|worker| format!("{:?} at {:?}", worker.training.state(), worker.at))
            .collect()
    }

    /// Xorshift64.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn is_over(&self) -> bool {
        self.workers.iter().flatten().all(|worker| worker.ending.is_some())
            && (self.workers.iter().all(Option::is_some) || self.workers.iter().flatten().count() > 0)
    }

    fn start(&mut self, index: usize, is_replacement: bool) {
        let plan = self.plan;
        let config = LoopConfig {
            policy: plan.policy,
            from_memory: false,
            epochs: plan.epochs,
            max_steps: plan.max_steps,
            evaluate_every: plan.evaluate_every,
            has_held_out: true,
            keeps_checkpoints: true,
            checkpoint_every: plan.checkpoint_every.filter(|_| index == 0),
            is_replacement,
        };
        self.expected = self.expected.max(self.workers.iter().flatten().count() + 1);
        let mut training = TrainingLoop::new(config);
        let actions = training.start();
        let at = *actions.last().expect("a first action");
        self.workers[index] = Some(Worker {
            training,
            at,
            epoch: 0,
            steps: 0,
            evaluated: None,
            stream: VecDeque::new(),
            batch: None,
            in_flight: None,
            unacknowledged: Vec::new(),
            stop: false,
            heard: self.barrier,
            rank: 0,
            generation: 0,
            ending: None,
        });
    }

    fn live(&self) -> Vec<usize> {
        let is_live = |worker: &Option<Worker>| worker.as_ref().is_some_and(|worker| worker.ending.is_none());
        (0..self.workers.len()).filter(|index| is_live(&self.workers[*index])).collect()
    }

    fn worker(&mut self, index: usize) -> &mut Worker {
        self.workers[index].as_mut().expect("started")
    }

    fn go_on(&mut self) {
        self.inject_faults();
        let live = self.live();
        let Some(index) = live.get(self.draw(live.len().max(1) as u64) as usize).copied() else { return };
        let action = self.worker(index).at;
        let has_anyone_ended = !self.endings().is_empty();
        if matches!(action, Action::Form { .. }) && has_anyone_ended || self.has_failed() && self.draw(4) == 0 {
            // The coordinator has ended the run.
            return self.report(index, Event::Failed);
        }
        if !self.is_collective(&action) {
            let event = self.perform(index, action);
            return self.report(index, event);
        }
        if !matches!(action, Action::Form { .. }) && self.is_broken(index) {
            return self.lose_call(index);
        }
        let waiting = live.iter().filter(|other| {
            let at = self.workers[**other].as_ref().expect("live").at;
            self.is_collective(&at)
        });
        if waiting.count() == live.len() && self.is_complete(&live) {
            self.perform_together(&live);
        }
    }

    /// Whether all whom a call waits for take part in it.
    fn is_complete(&self, live: &[usize]) -> bool {
        let forming = |index: &usize| matches!(self.workers[*index].as_ref().expect("live").at, Action::Form { .. });
        let forms = live.iter().filter(|index| forming(index)).count();
        if forms > 0 && forms < live.len() {
            // The others hear that their group is no more once they call it.
            return live.iter().any(|index| !forming(index) && !self.is_broken(*index)) && self.newest_is_of(live);
        }
        forms == 0 || live.len() == self.expected
    }

    /// A late worker waits in `Form`; those of the group go on without it until they have agreed to regroup.
    fn newest_is_of(&self, live: &[usize]) -> bool {
        let at = |index: &usize| self.workers[*index].as_ref().expect("live").at;
        live.iter()
            .filter(|index| matches!(at(index), Action::Form { .. }))
            .all(|index| self.workers[*index].as_ref().expect("live").generation == 0)
    }

    fn inject_faults(&mut self) {
        if let Some(index) = self.workers.iter().position(Option::is_none)
            && self.draw(20) == 0
            && self.live().len() + 1 == self.workers.len()
        {
            self.start(index, self.generation > 0 && self.losses_made > 0);
        }
        let live = self.live();
        if live.is_empty() {
            return;
        }
        let index = live[self.draw(live.len() as u64) as usize];
        if self.plan.stops && self.draw(60) == 0 {
            self.worker(index).stop = true;
        }
        let may_lose =
            self.losses_left > 0 && live.len() == self.plan.workers && self.workers.iter().all(Option::is_some);
        let others_have_trained = live
            .iter()
            .filter(|other| **other != index)
            .all(|other| self.workers[*other].as_ref().expect("live").training.progress().has_trained);
        if may_lose && others_have_trained && self.draw(12) == 0 {
            self.lose(index);
        }
    }

    /// A worker is gone. Where it was in a step, some of the others may have made that.
    fn lose(&mut self, index: usize) {
        (self.losses_left, self.losses_made) = (self.losses_left - 1, self.losses_made + 1);
        let live = self.live();
        let is_step = |world: &Self, other: &usize| {
            matches!(world.workers[*other].as_ref().expect("live").at, Action::Step { .. })
        };
        if self.plan.policy.is_group() && !self.is_broken(index) && live.iter().all(|other| is_step(self, other)) {
            for other in live.into_iter().filter(|other| *other != index) {
                if self.draw(2) == 0 {
                    let event = self.step(other, None);
                    self.report(other, event);
                }
            }
        }
        self.broken = self.generation;
        for splits in self.splits.values_mut() {
            splits.iter_mut().filter(|split| **split == Split::Held(index)).for_each(|split| *split = Split::Free);
        }
        self.workers[index] = None;
    }

    fn is_broken(&self, index: usize) -> bool {
        self.workers[index].as_ref().is_some_and(|worker| worker.generation > 0 && worker.generation <= self.broken)
    }

    /// A call of a group that is no more.
    fn lose_call(&mut self, index: usize) {
        let worker = self.worker(index);
        if let Action::Step { batch: true, .. } = worker.at {
            worker.in_flight = worker.batch.take();
        }
        let loss = Loss { generation: worker.generation, about_others: true, stop_requested: worker.stop };
        self.report(index, Event::Lost(loss));
    }

    fn is_collective(&self, action: &Action) -> bool {
        let several = !matches!(self.plan.policy, Policy::OneWorker { .. });
        match action {
            Action::Step { .. } => self.plan.policy.is_group(),
            Action::Form { .. } => true,
            Action::Resume
            | Action::Follow { .. }
            | Action::Agree { .. }
            | Action::Evaluate
            | Action::Checkpoint
            | Action::Vote(_)
            | Action::WaitForAll
            | Action::CloseEpoch { .. }
            | Action::FinalCheckpoint
            | Action::Conclude { finished: true } => several,
            _ => false,
        }
    }

    /// All are in the same call, of the same step.
    fn perform_together(&mut self, live: &[usize]) {
        let late = |world: &Self, index: &usize| {
            let worker = world.workers[*index].as_ref().expect("live");
            matches!(worker.at, Action::Form { .. }) && worker.generation == 0
        };
        let all_form =
            live.iter().all(|index| matches!(self.workers[*index].as_ref().expect("live").at, Action::Form { .. }));
        let ranks: Vec<usize> =
            if all_form { live.to_vec() } else { live.iter().copied().filter(|index| !late(self, index)).collect() };
        let calls: BTreeSet<String> = ranks.iter().map(|index| self.call_of(*index)).collect();
        assert_eq!(calls.len(), 1, "workers are in different calls: {:?}", self.states());
        let events = self.events_of_all(&ranks);
        for (index, event) in ranks.into_iter().zip(events) {
            self.report(index, event);
        }
    }

    /// What must be equal on all who take part in a call.
    fn call_of(&self, index: usize) -> String {
        let worker = self.workers[index].as_ref().expect("live");
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

    fn events_of_all(&mut self, ranks: &[usize]) -> Vec<Event> {
        let action = self.worker(ranks[0]).at;
        match action {
            Action::Form { .. } => self.form(ranks),
            Action::Agree { .. } => vec![Event::Agreed(self.agreement(ranks)); ranks.len()],
            Action::Step { .. } => {
                let ahead = self.ahead(ranks);
                ranks.iter().map(|index| self.step(*index, ahead)).collect()
            }
            Action::Evaluate => {
                let stop = ranks.iter().any(|index| self.worker(*index).stop) && self.draw(2) == 0;
                let settled = self.draw(20) == 0 && self.plan.max_steps.is_some();
                ranks.iter().map(|index| self.evaluate(*index, stop, settled)).collect()
            }
            Action::Vote(_) => self.votes(ranks),
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
        (0..)
            .zip(ranks)
            .map(|(rank, index)| {
                let worker = self.worker(*index);
                (worker.rank, worker.generation) = (rank, generation);
                let several = !matches!(self.plan.policy, Policy::OneWorker { .. });
                let group = several.then_some(GroupMember { rank, generation });
                Event::Formed { group, progress: if several { progress.clone() } else { Vec::new() } }
            })
            .collect()
    }

    fn follow(&mut self, ranks: &[usize], source: usize) -> Vec<Event> {
        let (steps, evaluated, epoch) = {
            let lead = self.worker(ranks[source]);
            (lead.steps, lead.evaluated, lead.training.epoch())
        };
        ranks
            .iter()
            .map(|index| {
                let Action::Follow { in_flight, adopt, same_epoch, .. } = self.worker(*index).at else {
                    unreachable!()
                };
                if let Some(batch) = self.worker(*index).in_flight.take() {
                    match in_flight {
                        InFlight::Push => self.push(*index, batch),
                        InFlight::ReadAgain => self.worker(*index).stream.push_front(batch),
                    }
                }
                let worker = self.worker(*index);
                assert!(same_epoch || worker.stream.is_empty(), "a stream of another epoch is left");
                if adopt {
                    (worker.steps, worker.evaluated, worker.epoch) = (steps, evaluated, epoch);
                }
                assert_eq!(worker.steps, steps);
                let epoch = if adopt { epoch } else { worker.training.epoch() };
                Event::Ready(LoopCounts { epoch, steps, evaluated, ..LoopCounts::default() })
            })
            .collect()
    }

    fn agreement(&mut self, ranks: &[usize]) -> StepAgreement {
        let mut all = StepAgreement::default();
        for index in ranks {
            let Action::Agree { vote, batch } = self.worker(*index).at else { unreachable!() };
            all.samples += u64::from(batch);
            all.stop |= vote.stop;
            all.checkpoint |= vote.checkpoint;
            all.regroup |= vote.regroup;
        }
        all
    }

    /// All know their next batch in time, sometimes.
    fn ahead(&mut self, ranks: &[usize]) -> Option<StepAgreement> {
        let mut all = StepAgreement::default();
        for index in ranks {
            let facts = self.facts(*index);
            let worker = self.worker(*index);
            let Action::Step { ahead: Some(rule), .. } = worker.at else { return None };
            if worker.stream.is_empty() || worker.stop {
                return None;
            }
            let vote = rule.vote(facts);
            all.samples += 1;
            all.checkpoint |= vote.checkpoint;
            all.regroup |= vote.regroup;
        }
        (self.draw(3) > 0).then_some(all)
    }

    fn facts(&mut self, _index: usize) -> StepFacts {
        let joins = self.workers.iter().flatten().any(|worker| worker.generation == 0 && worker.ending.is_none());
        let checkpoint_by_time = self.plan.checkpoint_every.is_some() && self.draw(15) == 0;
        StepFacts { checkpoint_by_time, newest_group: self.generation + u64::from(joins) }
    }

    fn votes(&mut self, ranks: &[usize]) -> Vec<Event> {
        let votes: Vec<BarrierVote> = ranks
            .iter()
            .map(|index| {
                let worker = self.worker(*index);
                let Action::Vote(reason) = worker.at else { unreachable!() };
                BarrierVote { reason, called: worker.heard }
            })
            .collect();
        let all: u64 = ranks.iter().map(|index| self.worker(*index).steps).sum();
        ranks
            .iter()
            .map(|index| {
                let others_steps = all - self.worker(*index).steps;
                Event::Votes { votes: votes.clone(), others_steps }
            })
            .collect()
    }

    fn evaluate(&mut self, index: usize, stop: bool, settled: bool) -> Event {
        assert!(self.worker(index).in_flight.is_none());
        if stop {
            return Event::Interrupted;
        }
        let worker = self.worker(index);
        worker.evaluated = Some(worker.steps);
        Event::Evaluated { settled }
    }

    fn step(&mut self, index: usize, ahead: Option<StepAgreement>) -> Event {
        let Action::Step { batch, .. } = self.worker(index).at else { unreachable!() };
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
        self.splits.get_mut(&batch.0).expect("dealt")[batch.1 as usize] = Split::Done;
    }

    fn acknowledge(&mut self, index: usize) {
        self.worker(index).unacknowledged.clear();
    }

    fn perform(&mut self, index: usize, action: Action) -> Event {
        match action {
            Action::Resume => Event::Ready(LoopCounts { untouched: true, ..LoopCounts::default() }),
            Action::LeaveGroup => {
                let worker = self.worker(index);
                if let Some(batch) = worker.batch.take() {
                    worker.stream.push_front(batch);
                }
                self.acknowledge(index);
                Event::Left
            }
            Action::FindStream(epoch) => self.find_stream(index, epoch),
            Action::WaitForSplits { barriers_after, .. } => {
                self.barrier_due(index, barriers_after).unwrap_or(Event::WaitOver)
            }
            Action::NextBatch { stop, barriers_after, .. } => self.next_batch(index, stop, barriers_after),
            Action::Step { .. } => self.step(index, None),
            Action::Drain => {
                self.acknowledge(index);
                Event::Drained
            }
            Action::CloseRound { .. } => {
                let worker = self.worker(index);
                if let Some(batch) = worker.batch.take() {
                    worker.stream.push_front(batch);
                }
                self.acknowledge(index);
                Event::Drained
            }
            Action::CompleteStream => {
                assert!(self.worker(index).stream.is_empty(), "a stream is complete with batches left");
                Event::Drained
            }
            Action::Evaluate => {
                let (stop, settled) = (self.worker(index).stop && self.draw(2) == 0, false);
                self.evaluate(index, stop, settled)
            }
            Action::Checkpoint | Action::FinalCheckpoint => Event::CheckpointDone,
            Action::WaitForAll => Event::AllHere,
            Action::CloseEpoch { epoch, check_books } => {
                let all_done =
                    self.splits.get(&epoch).is_none_or(|splits| splits.iter().all(|split| *split == Split::Done));
                assert!(!check_books || all_done, "epoch {epoch} ends with splits that nobody read");
                Event::EpochClosed
            }
            Action::Conclude { .. } => Event::Concluded,
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
        let count = self.plan.splits as usize;
        let most = 1 + self.draw(3) as usize;
        let splits = self.splits.entry(epoch).or_insert_with(|| vec![Split::Free; count]);
        let free: Vec<usize> = (0..count).filter(|split| splits[*split] == Split::Free).take(most).collect();
        if free.is_empty() {
            let is_done = splits.iter().all(|split| *split == Split::Done);
            let held = Event::SplitsHeld { pause: Duration::from_millis(1), checkpoint_by_time: false };
            return if is_done { Event::NoSplits } else { held };
        }
        free.iter().for_each(|split| splits[*split] = Split::Held(index));
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

    fn report(&mut self, index: usize, event: Event) {
        let actions = self.worker(index).training.on(event);
        let (last, before) = actions.split_last().expect("actions follow");
        assert!(before.iter().all(|action| !action.has_reply()), "{actions:?}");
        for action in before {
            match action {
                Action::AskForBarrier(number) => self.barrier = self.barrier.max(*number),
                // A worker of a group without splits of its own has no stream.
                Action::StartRound { stream: false, .. } => {
                    assert!(self.worker(index).stream.is_empty() || self.worker(index).stop)
                }
                _ => {}
            }
        }
        self.worker(index).at = *last;
        if let Action::End(ending) = last {
            self.worker(index).ending = Some(*ending);
            if matches!(ending, Ending::Failed(_)) {
                // The coordinator counts it as lost.
                self.broken = self.generation;
            }
        }
    }
}
