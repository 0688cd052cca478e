//! The run: coordinator, servers and workers, whose calls are lost, repeated and late, and whose processes die.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zagros_coordinator_core::{CoreConfig, CoreInput, MemberSlot, RunOutcome};
use zagros_protocol::Refusal;
use zagros_protocol::control::{CompleteRequest, DataFile, PlacementResponse, ScaleRequest};
use zagros_worker_core::LoopEnd;
use zagros_zip::number_from;

use super::calls::{SplitId, WorkerProcess};
use super::recorded::{CoreCall, RecordedCore, core_config};
use super::server::{BucketNumber, PushId, PushPart, RunServer, ServerProcess};
use crate::simulated::{BatchId, SeededDice, SimulatedWorker};

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
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) epochs: u32,
    pub(crate) splits: u64,
    pub(crate) kills: u32,
    /// How often the number of servers changes.
    pub(crate) scales: u32,
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
    coordinator_due: Option<Duration>,
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
    scales_left: u32,
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
        let run = core_config(plan.servers, plan.workers);
        let config = CoreConfig { buckets: BUCKETS, epochs: plan.epochs, ..run };
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
            due: vec![Some(Duration::ZERO); plan.workers as usize],
            late: Vec::new(),
            instances: 0,
            kills_left: plan.kills,
            scales_left: plan.scales,
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
        self.workers.iter().all(|worker| worker.as_ref().is_some_and(|worker| worker.has_left))
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

    fn break_something(&mut self) {
        if self.scales_left > 0
            && self.dice.one_in(150)
            && self.workers.iter().flatten().any(|process| process.worker.has_trained())
        {
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
        if self.workers[index].as_ref().is_some_and(|worker| worker.has_left) {
            return;
        }
        let steps = self.workers.iter().flatten().map(|process| process.worker.steps).max().unwrap_or(0);
        let is_saving = self.workers.iter().flatten().any(WorkerProcess::is_saving);
        let stays = |(other, process): (usize, &Option<WorkerProcess>)| {
            other != index && process.as_ref().is_some_and(|process| process.worker.has_trained())
        };
        let is_over = self.workers.iter().flatten().any(|process| process.worker.ending.is_some());
        let may_be_missed = if is_saving { self.kills_while_saving < 2 } else { steps > self.steps_at_kill };
        if is_over || self.workers.iter().enumerate().any(stays) && may_be_missed {
            self.steps_at_kill = steps;
            self.kills_while_saving += u32::from(is_saving);
            if is_saving || is_over {
                self.note("killed worker after the last step");
            }
            self.kills_left -= 1;
            self.note("killed worker");
            self.kill_worker(index);
        }
    }

    pub(crate) fn kill_worker(&mut self, index: usize) {
        self.share_the_last_step(index);
        if let Some(worker) = self.workers[index].take() {
            self.ledger.killed.insert((index as u32, worker.incarnation));
        }
        self.due[index] = Some(self.pause(3000));
    }

    /// What is wrong at the end of a history: nothing.
    pub(crate) fn check(&mut self) {
        let endings: Vec<Option<LoopEnd>> =
            self.workers.iter().flatten().map(|process| process.worker.ending).collect();
        assert!(endings.iter().all(|ending| *ending == Some(LoopEnd::Finished)), "{endings:?}");
        self.check_rows();
        self.check_samples();
        assert_eq!(self.coordinator.outcome(), Some(&RunOutcome::Finished));
    }

    fn check_rows(&mut self) {
        if self.coordinator_due.take().is_some() {
            self.coordinator.restart(self.now);
            self.coordinator.take_events();
        }
        let placement = self.placement().expect("it is up");
        let owners: Vec<u32> =
            placement.owners.as_chunks::<4>().0.iter().map(|owner| u32::from_le_bytes(*owner)).collect();
        for (bucket, owner) in number_from(0_u32, owners) {
            let rows = self.servers[owner as usize].tables.rows.get(&bucket).cloned().unwrap_or_default();
            let mut seen = BTreeSet::new();
            for id in &rows {
                assert!(seen.insert(*id), "push {id:?} is in bucket {bucket} twice");
                assert!(self.ledger.made.get(id).is_some_and(|made| made.contains(&bucket)), "no worker made {id:?}");
            }
            let lost: Vec<_> =
                self.ledger.acknowledged.iter().filter(|(id, of)| *of == bucket && !seen.contains(id)).collect();
            assert!(lost.is_empty(), "bucket {bucket} at server {owner} has lost {lost:?}");
        }
    }

    /// Each batch of each split counts once: it was trained on by the process that completed the split, and else only by processes
    /// that were killed.
    fn check_samples(&self) {
        let ledger = &self.ledger;
        let splits = u64::from(self.plan.epochs) * self.plan.splits;
        assert_eq!(ledger.completed.len() as u64, splits, "{:?}", ledger.completed);
        for (batch, trainers) in &ledger.trained {
            let completer = ledger.completed[&(batch.0, batch.1)];
            let counted = trainers.iter().filter(|trainer| **trainer == completer).count();
            assert_eq!(counted, 1, "batch {batch:?} of a split of {completer:?} was trained on by {trainers:?}");
            for other in trainers.iter().filter(|trainer| **trainer != completer) {
                assert!(ledger.killed.contains(other), "{batch:?} was trained on by {other:?}, too");
            }
        }
        for split in ledger.completed.keys() {
            let is_trained = |number| ledger.trained.contains_key(&(split.0, split.1, number));
            assert!((0..super::calls::batches_of(*split)).all(is_trained), "batches of {split:?} are missing");
        }
    }

    pub(crate) fn describe(&self) -> String {
        let workers = self.workers.iter().flatten().map(|process| {
            let WorkerProcess { worker, member, incarnation, pushes, open, has_left, .. } = process;
            let SimulatedWorker { training, at, stream, in_flight, .. } = worker;
            let state = training.state();
            format!(
                "worker {member} ({incarnation}) at {at:?} in {state:?}, left: {has_left}, {} pushes, to read {stream:?}, holds {open:?}, {in_flight:?}",
                pushes.len()
            )
        });
        let servers = self.servers.iter().map(|server| match &server.process {
            Some(process) => format!(
                "server of generation {}, {:?}, {:?}, half {:?}",
                process.generation, process.incoming, process.outgoing, server.tables.partial
            ),
            None => "no process".to_owned(),
        });
        let completed = format!("complete: {:?}", self.ledger.completed);
        workers.chain(servers).chain([completed]).collect::<Vec<_>>().join("\n")
    }
}
