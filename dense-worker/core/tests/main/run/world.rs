//! The run: coordinator, servers and workers, whose calls are lost, repeated and late, and whose processes die.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zagros_coordinator_core::{CoreConfig, CoreInput, MemberSlot};
use zagros_protocol::Refusal;
use zagros_protocol::control::{CompleteRequest, DataFile, PlacementResponse, ScaleRequest};
use zagros_worker_core::{EarlyStopRule, LoopEnd, TrainingPolicy};

use super::calls::{SplitId, WorkerProcess};
use super::recorded::{CoreCall, RecordedCore, core_config};
use super::server::{BucketNumber, PushId, PushPart, RunServer, ServerProcess};
use crate::simulated::{BatchId, SeededDice};

pub(crate) const BUCKETS: u32 = 8;
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// No history is longer: one that is hangs.
const LONGEST: Duration = Duration::from_secs(4000);
/// One call in so many is lost, one answer in so many, and one call in so many comes again later.
const LOST: u64 = 12;
const LATE: u64 = 10;
const SERVERS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryPlan {
    pub(crate) seed: u64,
    pub(crate) policy: TrainingPolicy,
    pub(crate) change: WorkerChange,
    pub(crate) early_stop: Option<EarlyStopRule>,
    pub(crate) max_steps: Option<u64>,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) epochs: u32,
    pub(crate) splits: u64,
    pub(crate) kills: u32,
    /// How often the number of servers changes.
    pub(crate) scales: u32,
}

/// What else happens to a worker while the run trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerChange {
    None,
    /// The last one is wanted no more.
    Leaves,
    /// The last one comes once the others train.
    JoinsLate,
    /// One is asked to end, and the run with it.
    Stops,
}

impl HistoryPlan {
    /// Workers that the first process group waits for.
    pub(crate) fn first_workers(&self) -> u32 {
        self.workers - u32::from(self.change == WorkerChange::JoinsLate)
    }

    /// Whether the run may end before all its data was trained on.
    pub(crate) fn ends_early(&self) -> bool {
        self.change == WorkerChange::Stops || self.early_stop.is_some() || self.max_steps.is_some()
    }

    /// Workers that may be lost. A group in a row that makes no step may also be one that a worker joins or leaves.
    fn most_losses(&self) -> u32 {
        match (self.policy, self.change) {
            (TrainingPolicy::OneWorker { .. } | TrainingPolicy::SynchronousGroup { in_turns: true }, _) => 0,
            (_, WorkerChange::Stops) => 0,
            (TrainingPolicy::SynchronousGroup { in_turns: false }, WorkerChange::None) => u32::MAX,
            (TrainingPolicy::AsynchronousWorkers, WorkerChange::None) => 3,
            (_, WorkerChange::Leaves | WorkerChange::JoinsLate) => 2,
        }
    }
}

/// A message that was on its way for long.
pub(crate) enum LateMessage {
    ToCoordinator(Box<CoreInput>),
    Push(usize, PushPart),
}

pub(crate) struct RunWorld {
    pub(crate) plan: HistoryPlan,
    pub(crate) dice: SeededDice,
    pub(crate) now: Duration,
    pub(crate) coordinator: RecordedCore,
    /// When another process of the coordinator starts; `None` while there is one.
    pub(crate) coordinator_due: Option<Duration>,
    /// Whether the coordinator has taken the last call. What it has taken counts, also where its answer is lost.
    pub(crate) is_taken: bool,
    pub(crate) servers: Vec<RunServer>,
    wanted: u32,
    /// By index; `None` while it is dead.
    pub(crate) workers: Vec<Option<WorkerProcess>>,
    due: Vec<Option<Duration>>,
    late: Vec<(Duration, LateMessage)>,
    pub(crate) instances: u64,
    kills_left: u32,
    losses_left: u32,
    scales_left: u32,
    /// The plan's change of a worker has not happened yet.
    change_is_due: bool,
    /// Steps of the run when a worker was last killed: with four groups in a row that make no step, a run ends.
    steps_at_kill: u64,
    kills_while_saving: u32,
    pub(crate) ledger: OracleLedger,
    /// What happened and how often, so that a test sees that something did.
    pub(crate) did: BTreeMap<&'static str, u32>,
}

#[derive(Debug, Default)]
pub(crate) struct OracleLedger {
    pub(crate) made: BTreeMap<PushId, BTreeSet<BucketNumber>>,
    pub(crate) acknowledged: BTreeSet<(PushId, BucketNumber)>,
    /// Who trained on a batch: slot and incarnation.
    pub(crate) trained: BTreeMap<BatchId, Vec<(u32, u32)>>,
    pub(crate) completed: BTreeMap<SplitId, (u32, u32)>,
    pub(crate) killed: BTreeSet<(u32, u32)>,
    pub(crate) is_saved: bool,
}

impl RunWorld {
    pub(crate) fn play(plan: HistoryPlan) -> Self {
        let mut world = Self::new(plan);
        while !world.is_over() {
            assert!(world.now < LONGEST, "seed {}: no end: {}", plan.seed, world.describe());
            world.turn();
        }
        world
    }

    fn new(plan: HistoryPlan) -> Self {
        let first = plan.first_workers();
        let config = CoreConfig {
            buckets: BUCKETS,
            epochs: plan.epochs,
            max_workers: plan.workers,
            min_workers: first - u32::from(plan.change == WorkerChange::Leaves),
            asynchronous: plan.policy.is_asynchronous(),
            ..core_config(plan.servers, first)
        };
        Self {
            plan,
            dice: SeededDice::new(plan.seed),
            now: Duration::ZERO,
            coordinator: RecordedCore::new(config),
            coordinator_due: None,
            is_taken: false,
            servers: (0..SERVERS).map(|_| RunServer::default()).collect(),
            wanted: plan.servers,
            workers: (0..plan.workers).map(|_| None).collect(),
            due: (0..plan.workers).map(|index| (index < first).then_some(Duration::ZERO)).collect(),
            late: Vec::new(),
            instances: 0,
            kills_left: plan.kills,
            losses_left: plan.most_losses(),
            scales_left: plan.scales,
            change_is_due: plan.change != WorkerChange::None,
            steps_at_kill: 0,
            kills_while_saving: 0,
            ledger: OracleLedger::default(),
            did: BTreeMap::new(),
        }
    }

    pub(crate) fn files(&self) -> Vec<DataFile> {
        let file = |number: u64| DataFile { path: format!("{number}"), bytes: 3, splittable: false, fingerprint: 0 };
        (0..self.plan.splits).map(file).collect()
    }

    fn is_over(&self) -> bool {
        // A worker that is to join late may not come before the others are done.
        let comes_no_more = |index: usize| self.change_is_due && index as u32 >= self.plan.first_workers();
        let has_left = |(index, worker): (usize, &Option<WorkerProcess>)| {
            worker.as_ref().map_or(comes_no_more(index), |worker| worker.has_left)
        };
        self.workers.iter().enumerate().all(has_left)
    }

    fn turn(&mut self) {
        self.now += Duration::from_millis(1 + self.dice.below(12));
        self.deliver_late();
        self.start_what_is_due();
        self.break_something();
        let actors = (SERVERS + self.workers.len()) as u64;
        let chosen = self.dice.below(actors) as usize;
        if chosen < SERVERS { self.server_turn(chosen) } else { self.worker_turn(chosen - SERVERS) }
    }

    /// Makes a call of the coordinator. `None` if the call or its answer is lost, or there is no process. A copy may come later.
    pub(crate) fn ask<R: CoreCall>(&mut self, request: &R) -> Option<Result<R::Answer, Refusal>> {
        self.is_taken = false;
        if self.dice.one_in(LOST) {
            return None;
        }
        let answer = self.reach(request)?;
        if self.dice.one_in(LATE) {
            self.later(LateMessage::ToCoordinator(Box::new(request.to_input())));
        }
        Some(answer).filter(|_| !self.dice.one_in(LOST))
    }

    /// `None` while the coordinator has no process.
    fn reach<R: CoreCall>(&mut self, request: &R) -> Option<Result<R::Answer, Refusal>> {
        if self.coordinator_due.is_some() {
            return None;
        }
        let answer = self.coordinator.call(self.now, request);
        self.coordinator.take_events();
        self.is_taken = answer.is_ok();
        Some(answer)
    }

    pub(crate) fn placement(&mut self) -> Option<PlacementResponse> {
        if self.coordinator_due.is_some() {
            return None;
        }
        let now = self.now;
        let placement = self.coordinator.ask(now, |core| core.placement(now));
        self.coordinator.take_events();
        Some(placement)
    }

    /// Whether a message, or the answer to it, is lost.
    pub(crate) fn loses(&mut self) -> bool {
        self.dice.one_in(LOST)
    }

    /// A copy of a push that may come later.
    pub(crate) fn copy_of_push(&mut self, server: usize, part: &PushPart) {
        if self.dice.one_in(LATE) {
            self.later(LateMessage::Push(server, part.clone()));
        }
    }

    pub(crate) fn note(&mut self, fault: &'static str) {
        *self.did.entry(fault).or_default() += 1;
    }

    fn later(&mut self, message: LateMessage) {
        let due = self.now + Duration::from_millis(self.dice.below(6000));
        self.late.push((due, message));
    }

    fn deliver_late(&mut self) {
        let now = self.now;
        let due: Vec<(Duration, LateMessage)> = self.late.extract_if(.., |(due, _)| *due <= now).collect();
        for (_, message) in due {
            self.note("late message");
            match message {
                LateMessage::ToCoordinator(input) => match *input {
                    CoreInput::Complete(request) => self.complete_late(&request),
                    // A repetition of a request.
                    input if self.coordinator_due.is_none() => self.coordinator.take(now, input),
                    _ => {}
                },
                LateMessage::Push(server, part) => {
                    self.push_to(server, &part);
                }
            }
        }
    }

    /// A report of complete splits that was on its way for long counts, too.
    fn complete_late(&mut self, request: &CompleteRequest) {
        if let Some(Ok(_)) = self.reach(request) {
            let slot = MemberSlot::from_member(request.member).expect("a member");
            self.note_completed((request.epoch, request.splits[0]), (slot.index, request.incarnation));
        }
    }

    pub(crate) fn note_completed(&mut self, split: SplitId, by: (u32, u32)) {
        let known = *self.ledger.completed.entry(split).or_insert(by);
        assert_eq!(known, by, "{split:?} is completed twice");
    }

    fn start_what_is_due(&mut self) {
        let now = self.now;
        if self.coordinator_due.is_some_and(|due| due <= now) {
            self.coordinator_due = None;
            self.coordinator.restart(now);
            self.coordinator.take_events();
        }
        for index in 0..SERVERS {
            let server = &self.servers[index];
            let is_missing = server.process.is_none() && server.due.is_none() && (index as u32) < self.wanted;
            if is_missing || server.due.is_some_and(|due| due <= now) {
                self.instances += 1;
                let process = ServerProcess::new(self.instances);
                let server = &mut self.servers[index];
                (server.process, server.due) = (Some(process), None);
                if server.lineage == 0 {
                    server.lineage = self.instances;
                }
            }
        }
        for index in 0..self.workers.len() {
            if self.due[index].is_some_and(|due| due <= now) {
                self.due[index] = None;
                self.instances += 1;
                self.workers[index] = Some(WorkerProcess { instance: self.instances, ..WorkerProcess::default() });
            }
        }
    }

    fn has_trained(&self) -> bool {
        self.workers.iter().flatten().any(|process| process.worker.has_trained())
    }

    fn change_a_worker(&mut self) {
        let last = self.workers.len() - 1;
        let chosen = self.dice.below(self.workers.len() as u64) as usize;
        let trains = |index: usize| self.workers[index].as_ref().is_some_and(|process| process.worker.has_trained());
        let (last_trains, chosen_trains) = (trains(last), trains(chosen));
        match self.plan.change {
            WorkerChange::Leaves if last_trains => {
                let request = ScaleRequest { servers: 0, workers: self.plan.workers - 1 };
                // It learns so with a heartbeat.
                let _ = self.ask(&request);
                self.change_is_due = !self.is_taken;
            }
            WorkerChange::JoinsLate => {
                self.note("late worker");
                (self.due[last], self.change_is_due) = (Some(self.now), false);
            }
            WorkerChange::Stops if chosen_trains => {
                self.note("stop");
                self.worker(chosen).stop = true;
                self.change_is_due = false;
            }
            _ => {}
        }
    }

    fn break_something(&mut self) {
        if self.change_is_due && self.dice.one_in(100) && self.has_trained() {
            self.change_a_worker();
        }
        if self.scales_left > 0 && self.dice.one_in(150) && self.has_trained() {
            let servers = 1 + self.dice.below(SERVERS as u64) as u32;
            let request = ScaleRequest { servers, workers: 0 };
            if let Some(Ok(_)) = self.ask(&request) {
                self.wanted = servers;
                self.scales_left -= 1;
            }
        }
        // The end is short, so more happens in it.
        let is_ending = self.workers.iter().flatten().any(WorkerProcess::is_saving);
        if self.kills_left == 0 || !self.dice.one_in(if is_ending { 15 } else { 60 }) {
            return;
        }
        match self.dice.below(3) {
            0 => self.kill_coordinator(),
            1 => {
                let index = self.dice.below(SERVERS as u64) as usize;
                if self.servers[index].process.is_some() {
                    self.kills_left -= 1;
                    self.kill_server(index);
                }
            }
            _ => self.kill_some_worker(),
        }
    }

    fn kill_coordinator(&mut self) {
        if self.coordinator_due.is_none() {
            self.kills_left -= 1;
            self.note("killed coordinator");
            self.coordinator_due = Some(self.pause(7000));
        }
    }

    pub(crate) fn kill_server(&mut self, index: usize) {
        self.note("killed server");
        self.servers[index].process = None;
        // Its log is there, whether it has joined with it or not.
        self.servers[index].is_known = true;
        self.servers[index].due = Some(self.pause(5000));
    }

    pub(crate) fn may_die_half_way(&mut self) -> bool {
        self.kills_left > 0 && self.dice.one_in(40)
    }

    pub(crate) fn died_half_way(&mut self, server: usize) {
        self.kills_left = self.kills_left.saturating_sub(1);
        self.note("half push");
        self.kill_server(server);
    }

    fn pause(&mut self, most: u64) -> Duration {
        self.now + Duration::from_millis(self.dice.below(most))
    }

    /// A worker with the state stays, and a step was made since the last loss. At the end there are no more steps: two workers may die
    /// while the model is saved, and any afterwards.
    fn kill_some_worker(&mut self) {
        let index = self.dice.below(self.workers.len() as u64) as usize;
        let is_to_leave = self.plan.change == WorkerChange::Leaves && !self.change_is_due;
        let may_be_lost = self.workers[index].as_ref().is_some_and(|worker| !worker.has_left)
            && !(is_to_leave && index + 1 == self.workers.len());
        if self.losses_left == 0 || !may_be_lost {
            return;
        }
        let steps = self.workers.iter().flatten().map(|process| process.worker.steps).max().unwrap_or(0);
        let is_saving = self.workers.iter().flatten().any(WorkerProcess::is_saving);
        let stays = |(other, process): (usize, &Option<WorkerProcess>)| {
            let has_state = |process: &WorkerProcess| process.worker.has_trained() && !process.worker.leaves;
            other != index && process.as_ref().is_some_and(has_state)
        };
        let has_finished = |process: &WorkerProcess| process.worker.ending == Some(LoopEnd::Finished);
        let is_over = self.workers.iter().flatten().any(has_finished);
        let may_be_missed = if is_saving { self.kills_while_saving < 2 } else { steps > self.steps_at_kill };
        if is_over || self.workers.iter().enumerate().any(stays) && may_be_missed {
            self.steps_at_kill = steps;
            self.kills_while_saving += u32::from(is_saving);
            if is_saving || is_over {
                self.note("killed worker after the last step");
            }
            self.kills_left -= 1;
            self.losses_left -= 1;
            self.note("killed worker");
            self.kill_worker(index);
        }
    }

    pub(crate) fn kill_worker(&mut self, index: usize) {
        self.share_the_last_call(index);
        if let Some(worker) = self.workers[index].take() {
            self.ledger.killed.insert((index as u32, worker.incarnation));
        }
        self.due[index] = Some(self.pause(3000));
    }
}
