//! A run as a random story of joins, kills, silences and late words, told to the core through its public calls.
//!
//! Whatever happens: no split is held by two live workers (invariant SP-1), a pass is complete only when each of its
//! splits was completed (SP-2), generations only rise, who was replaced changes nothing (MB-1), and once faults end the
//! run finishes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use zagros_coordinator_core::{Core, CoreConfig, Notice, Role, RunOutcome, Seat, SplitOrder, plan_splits};
use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{
    AssignRequest, CompleteRequest, DataFile, Evaluation, GroupRequest, HeartbeatRequest, JoinRequest, LeaveRequest,
    Outcome, ReportEvaluationRequest,
};
use zagros_protocol::{PROTOCOL_VERSION, RefusalKind, RunId};

const LEASE: Duration = Duration::from_secs(8);
const PASSES: u32 = 2;
const ORDER: SplitOrder = SplitOrder::Shuffled { seed: 3, window_rows: 1 << 20 };

/// One thing that happens. `usize` picks the seat, modulo their number.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A process is started at a seat whose process is gone.
    Start(usize),
    /// A process that did not hear the answer to its join asks again.
    Rejoin(usize),
    /// kill -9.
    Kill(usize),
    /// The process goes on but is not heard for a while.
    Mute(usize),
    Unmute(usize),
    /// A worker asks for a split.
    Ask(usize),
    /// A process ends, which whoever starts the next one has seen.
    Replace(usize),
    /// A worker asks for the newest group.
    Meet(usize),
    /// A worker completes its oldest split.
    Complete(usize),
    /// A process that was replaced or lost tries everything.
    Haunt(usize),
    /// Nothing but time.
    Pass,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let seat = 0_usize..16;
    let step = prop_oneof![
        4 => seat.clone().prop_map(Step::Start),
        1 => seat.clone().prop_map(Step::Rejoin),
        1 => seat.clone().prop_map(Step::Kill),
        1 => seat.clone().prop_map(Step::Mute),
        2 => seat.clone().prop_map(Step::Unmute),
        1 => seat.clone().prop_map(Step::Replace),
        2 => seat.clone().prop_map(Step::Meet),
        6 => seat.clone().prop_map(Step::Ask),
        5 => seat.clone().prop_map(Step::Complete),
        2 => seat.prop_map(Step::Haunt),
        2 => Just(Step::Pass),
    ];
    prop::collection::vec(step, 0..200)
}

/// A process as it sees itself.
#[derive(Clone, Debug)]
struct Process {
    member: u64,
    epoch: u32,
    incarnation: u64,
    muted: bool,
    pass: u32,
    /// Splits in hand: pass and id.
    held: Vec<(u32, u64)>,
}

struct World {
    core: Core,
    now: Duration,
    files: Vec<DataFile>,
    seats: Vec<Seat>,
    processes: BTreeMap<Seat, Process>,
    /// Replaced or lost: their every word must be refused.
    ghosts: Vec<Process>,
    /// Who may work on a split now, by pass and id.
    holders: BTreeMap<(u32, u64), Seat>,
    completed: BTreeSet<(u32, u64)>,
    /// Bytes of completed splits: pass, file, start, end.
    ranges: BTreeSet<(u32, u32, u64, u64)>,
    range_of: BTreeMap<(u32, u64), (u32, u64, u64)>,
    finished: BTreeSet<Seat>,
    /// Not heard for a lease: what they hold may be given to others.
    silent: BTreeSet<Seat>,
    generation: u64,
    group: u64,
    /// Whose process is being replaced.
    replaced: Option<Seat>,
    incarnations: u64,
}

impl World {
    fn new(servers: u32, workers: u32, sizes: &[u64]) -> Self {
        let config = CoreConfig {
            run: RunId(1),
            job: "simulation".to_owned(),
            servers,
            workers,
            min_workers: workers,
            buckets: 16,
            passes: PASSES,
            fixed_splits: false,
            order: ORDER,
            apart: false,
            staleness: 4,
            checkpoint_every: None,
            lease: LEASE,
            // Longer than any story: whoever is killed is started again.
            patience: LEASE * 1000,
            fingerprint: 1,
        };
        let file = |bytes: &u64| DataFile {
            path: "train".to_owned(),
            bytes: *bytes,
            splittable: !bytes.is_multiple_of(3),
            fingerprint: 0,
        };
        Self {
            core: Core::new(config),
            now: Duration::ZERO,
            files: sizes.iter().map(file).collect(),
            seats: (0..servers).map(Seat::server).chain((0..workers).map(Seat::worker)).collect(),
            processes: BTreeMap::new(),
            ghosts: Vec::new(),
            holders: BTreeMap::new(),
            completed: BTreeSet::new(),
            ranges: BTreeSet::new(),
            range_of: BTreeMap::new(),
            finished: BTreeSet::new(),
            silent: BTreeSet::new(),
            generation: 0,
            group: 0,
            replaced: None,
            incarnations: 0,
        }
    }

    fn seat(&self, index: usize) -> Seat {
        self.seats[index % self.seats.len()]
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Start(index) => self.start(self.seat(index)),
            Step::Rejoin(index) => self.rejoin(self.seat(index)),
            Step::Kill(index) => drop(self.processes.remove(&self.seat(index))),
            Step::Mute(index) => self.mute(self.seat(index), true),
            Step::Unmute(index) => self.mute(self.seat(index), false),
            Step::Replace(index) => self.replace(self.seat(index)),
            Step::Meet(index) => self.meet(self.seat(index)),
            Step::Ask(index) => self.ask(self.seat(index)),
            Step::Complete(index) => self.complete(self.seat(index)),
            Step::Haunt(index) => self.haunt(index),
            Step::Pass => {}
        }
        self.now += LEASE / 10;
        self.core.tick(self.now);
        self.beat();
        self.read_notices();
    }

    fn mute(&mut self, seat: Seat, muted: bool) {
        if let Some(process) = self.processes.get_mut(&seat) {
            process.muted = muted;
        }
    }

    fn start(&mut self, seat: Seat) {
        if self.processes.contains_key(&seat) || self.finished.contains(&seat) {
            return;
        }
        self.incarnations += 1;
        self.join(seat, self.incarnations, false);
    }

    fn replace(&mut self, seat: Seat) {
        if let Some(gone) = self.processes.remove(&seat) {
            self.incarnations += 1;
            self.replaced = Some(seat);
            self.join(seat, self.incarnations, true);
            self.replaced = None;
            let is_worker = seat.role == Role::DenseWorker;
            assert!(!is_worker || self.processes.contains_key(&seat), "{gone:?} still holds its seat");
        }
    }

    /// A group is of live workers only, the asker among them, and never an older one than before.
    fn meet(&mut self, seat: Seat) {
        let Some(process) = self.processes.get(&seat).filter(|_| seat.role == Role::DenseWorker).cloned() else {
            return;
        };
        match self.core.group(self.now, &GroupRequest { member: process.member, epoch: process.epoch, after: 0 }) {
            Ok(group) if group.generation == 0 => assert!(!group.waiting_for.is_empty()),
            Ok(group) => {
                assert!(group.generation >= self.group, "group {} after {}", group.generation, self.group);
                self.group = group.generation;
                assert_eq!(group.workers[group.rank as usize], seat.index);
                assert_eq!(group.world, self.workers());
            }
            Err(refusal) if !refusal.message.contains("has finished") => self.refused(seat, refusal.kind),
            Err(refusal) => assert!(refusal.message.contains("has finished its part"), "{refusal}"),
        }
    }

    fn rejoin(&mut self, seat: Seat) {
        if let Some(process) = self.processes.get(&seat) {
            self.join(seat, process.incarnation, false);
        }
    }

    fn join(&mut self, seat: Seat, incarnation: u64, supersede: bool) {
        let is_worker = seat.role == Role::DenseWorker;
        let request = JoinRequest {
            role: seat.role.to_wire(),
            index: seat.index,
            address: format!("host:{incarnation}"),
            incarnation,
            job_fingerprint: 1,
            protocol_version: PROTOCOL_VERSION,
            release: String::new(),
            files: if is_worker { self.files.clone() } else { Vec::new() },
            position: None,
            supersede,
        };
        match self.core.join(self.now, &request) {
            Ok(joined) if joined.over => {
                assert_eq!(self.core.outcome(), Some(&RunOutcome::Finished));
                self.finished.insert(seat);
            }
            Ok(joined) => {
                self.see_generation(joined.generation);
                let (member, epoch) = (joined.member, joined.epoch);
                let process = Process { member, epoch, incarnation, muted: false, pass: 0, held: Vec::new() };
                self.ghosts.push(Process { epoch: epoch - 1, ..process.clone() });
                self.processes.insert(seat, process);
            }
            Err(refusal) => assert_eq!(refusal.kind, RefusalKind::Unavailable, "{refusal}"),
        }
        self.read_notices();
    }

    fn beat(&mut self) {
        for seat in self.seats.clone() {
            let Some(process) = self.processes.get(&seat).filter(|process| !process.muted).cloned() else { continue };
            let request =
                HeartbeatRequest { member: process.member, epoch: process.epoch, ..HeartbeatRequest::default() };
            match self.core.heartbeat(self.now, &request) {
                Ok(answer) => self.see_generation(answer.generation),
                Err(refusal) => self.fence(seat, refusal.kind),
            }
        }
    }

    fn ask(&mut self, seat: Seat) {
        let Some(process) = self.processes.get(&seat).filter(|_| seat.role == Role::DenseWorker).cloned() else {
            return;
        };
        let pass = process.pass;
        let request = AssignRequest { member: process.member, epoch: process.epoch, pass, continuing: false };
        match self.core.assign(self.now, &request).map(|answer| answer.work.expect("an answer without work")) {
            Ok(Work::Split(split)) => {
                self.read_notices();
                let other = self.holders.get(&(pass, split.id)).copied();
                assert!(other.is_none_or(|other| self.silent.contains(&other)), "split {} given to two", split.id);
                // One that has lost a split has lost them all.
                self.holders.retain(|_, holder| Some(*holder) != other);
                self.holders.insert((pass, split.id), seat);
                assert!(!self.completed.contains(&(pass, split.id)), "a complete split is read again");
                self.range_of.insert((pass, split.id), (split.file, split.start, split.end));
                self.change(seat, |process| process.held.push((pass, split.id)));
            }
            Ok(Work::Wait(wait)) => assert!(wait.retry_ms > 0 && !wait.reason.is_empty()),
            Ok(Work::Rest(rest)) => panic!("a run from the start has a rest: {rest:?}"),
            Ok(Work::PassDone(_)) => {
                self.check_nothing_left(pass, seat);
                self.change(seat, |process| process.pass = (pass + 1).min(PASSES - 1));
            }
            Err(refusal) => self.refused(seat, refusal.kind),
        }
    }

    fn complete(&mut self, seat: Seat) {
        let Some(process) = self.processes.get(&seat).filter(|process| !process.held.is_empty()).cloned() else {
            return;
        };
        let (pass, id) = process.held[0];
        let request =
            CompleteRequest { member: process.member, epoch: process.epoch, pass, splits: vec![id], bad_rows: vec![] };
        match self.core.complete(self.now, &request) {
            Ok(_) => {
                assert_eq!(self.holders.remove(&(pass, id)), Some(seat), "completed by one who did not hold it");
                let (file, start, end) = self.range_of[&(pass, id)];
                assert!(self.ranges.insert((pass, file, start, end)), "a range of bytes was completed twice");
                self.completed.insert((pass, id));
                self.change(seat, |process| process.held.retain(|held| *held != (pass, id)));
                // The same call once more, as when its answer was lost.
                self.core.complete(self.now, &request).expect("a repeated completion was refused");
            }
            Err(refusal) => self.refused(seat, refusal.kind),
        }
    }

    /// Every call of a process that is no longer a member is refused and leaves no trace.
    fn haunt(&mut self, index: usize) {
        let Some(ghost) = self.ghosts.get(index % self.ghosts.len().max(1)).cloned() else { return };
        let before = self.core.status(self.now);
        self.read_notices();
        let Process { member, epoch, .. } = ghost;
        let evaluation = Some(Evaluation::default());
        let splits = self.range_of.keys().filter(|(pass, _)| *pass == 0).map(|(_, id)| *id).collect();
        let leave = LeaveRequest { member, epoch, outcome: Outcome::Failed as i32, reason: "ghost".to_owned() };
        let (core, now) = (&mut self.core, self.now);
        let refusals = [
            core.heartbeat(now, &HeartbeatRequest { member, epoch, ..HeartbeatRequest::default() }).err(),
            core.assign(now, &AssignRequest { member, epoch, pass: 0, continuing: false }).err(),
            core.complete(now, &CompleteRequest { member, epoch, pass: 0, splits, bad_rows: vec![] }).err(),
            core.report_evaluation(now, &ReportEvaluationRequest { member, epoch, evaluation }).err(),
            core.leave(now, &leave).err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.map(|refusal| refusal.kind), Some(RefusalKind::Fenced));
        }
        assert_eq!(self.core.status(self.now), before);
        assert!(self.core.take_notices().is_empty());
    }

    fn change(&mut self, seat: Seat, change: impl FnOnce(&mut Process)) {
        change(self.processes.get_mut(&seat).expect("no process at this seat"));
    }

    /// One that was not heard for a lease asks again once its heartbeat is answered.
    fn refused(&mut self, seat: Seat, kind: RefusalKind) {
        if kind == RefusalKind::Unavailable {
            assert!(self.silent.contains(&seat), "{seat} is asked to wait though it was heard");
        } else {
            self.fence(seat, kind);
        }
    }

    /// A process that is told it is fenced stops.
    fn fence(&mut self, seat: Seat, kind: RefusalKind) {
        assert_eq!(kind, RefusalKind::Fenced);
        assert_eq!(seat.role, Role::DenseWorker, "a server that nobody replaced was fenced");
        self.ghosts.extend(self.processes.remove(&seat));
    }

    fn see_generation(&mut self, generation: u64) {
        assert!(generation >= self.generation, "generation went from {} to {generation}", self.generation);
        self.generation = generation;
    }

    fn check_nothing_left(&self, pass: u32, seat: Seat) {
        let own = self.holders.iter().filter(|(key, holder)| key.0 == pass && **holder == seat).count();
        let done = self.completed.iter().filter(|key| key.0 == pass).count();
        assert_eq!(
            own + done,
            plan_splits(&self.files, self.workers(), ORDER).len(),
            "pass {pass} is not over for {seat}"
        );
    }

    fn workers(&self) -> u32 {
        self.seats.iter().filter(|seat| seat.role == Role::DenseWorker).count() as u32
    }

    fn read_notices(&mut self) {
        for notice in self.core.take_notices() {
            match notice {
                Notice::Lost { seat, silence, .. } => {
                    // Or it was replaced by one who knew better.
                    assert!(silence > LEASE || self.replaced == Some(seat));
                    self.silent.insert(seat);
                }
                Notice::Back { seat } => assert!(self.silent.remove(&seat), "{seat} is back and was never gone"),
                Notice::Joined { seat, .. } => {
                    self.silent.remove(&seat);
                    self.holders.retain(|_, holder| *holder != seat);
                }
                Notice::PassDone { pass } => {
                    let done = self.completed.iter().filter(|key| key.0 == pass).count();
                    // The completion that ended the pass is booked here after the call.
                    assert_eq!(done, plan_splits(&self.files, self.workers(), ORDER).len());
                }
                Notice::Stalled { gap } => panic!("the clock jumped by {gap:?}"),
                _ => {}
            }
        }
    }

    /// No more faults: everyone is started, heard, and works until the run is over.
    fn settle(&mut self) {
        for _ in 0..2000 {
            if self.core.outcome().is_some() {
                return;
            }
            for seat in self.seats.clone() {
                self.start(seat);
                self.mute(seat, false);
                self.ask(seat);
                self.complete(seat);
                self.finish_if_done(seat);
            }
            self.play(Step::Pass);
        }
        panic!("the run did not end: {:?}", self.core.status(self.now));
    }

    fn finish_if_done(&mut self, seat: Seat) {
        let all = plan_splits(&self.files, self.workers(), ORDER).len() * PASSES as usize;
        let Some(process) = self.processes.get(&seat).filter(|_| seat.role == Role::DenseWorker) else { return };
        if self.completed.len() == all {
            let (member, epoch) = (process.member, process.epoch);
            let outcome = Outcome::Finished as i32;
            let goodbye = LeaveRequest { member, epoch, outcome, reason: String::new() };
            if let Err(refusal) = self.core.leave(self.now, &goodbye) {
                // Silent for so long that others completed its splits.
                assert!(self.silent.contains(&seat), "{refusal}");
                return self.refused(seat, refusal.kind);
            }
            self.processes.remove(&seat);
            self.finished.insert(seat);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_run_with_kills_ends_with_every_split_completed_once(
        steps in steps(),
        servers in 1_u32..4,
        workers in 1_u32..4,
        sizes in prop::collection::vec(1_u64..20 << 20, 1..4),
    ) {
        let mut world = World::new(servers, workers, &sizes);
        for step in steps {
            world.play(step);
        }
        world.settle();
        prop_assert_eq!(world.core.outcome(), Some(&RunOutcome::Finished));
        for pass in 0..PASSES {
            for (file, size) in (0_u32..).zip(&sizes) {
                let ranges = world.ranges.iter().filter(|range| (range.0, range.1) == (pass, file));
                let covered = ranges.fold(0, |covered, (_, _, start, end)| {
                    assert_eq!(*start, covered, "a hole in file {file} of pass {pass}");
                    *end
                });
                prop_assert_eq!(covered, *size);
            }
        }
    }
}
