//! Random runs: joins, leaves, kills, silences and late calls, with a number of workers that changes, given to the core through its public calls.
//!
//! Every run checks these properties. No split is held by two live workers (invariant SP-1). An epoch is complete only when
//! each of its splits was completed (SP-2). A worker that is to leave gets no split, and ends no run when it leaves (RK-5). Generations only rise. A stale process changes nothing (MB-1). Once faults end,
//! the run finishes.

mod ballots;
mod calls;
mod recorded;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use calls::{Action, actions};
use proptest::prelude::*;
use recorded::{EPOCHS, LEASE, ORDER, RecordedCore, core_config, join_request};
use zagros_coordinator_core::{CoreConfig, CoreInput, MemberSlot, Role, RunEvent, RunOutcome, plan_splits};
use zagros_protocol::RefusalKind;
use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{
    AssignRequest, CompleteRequest, DataFile, HeartbeatRequest, JoinRequest, LeaveRequest, Outcome,
};
use zagros_zip::number_from;

/// For so long after an answered heartbeat a worker makes steps.
const PROOF: Duration = LEASE.checked_mul(2).unwrap().checked_div(3).unwrap();

/// A process as it sees itself.
#[derive(Clone, Debug)]
struct SimulatedProcess {
    member: u64,
    incarnation: u32,
    instance: u64,
    muted: bool,
    /// When its last heartbeat was answered.
    heard: Duration,
    epoch: u32,
    /// Splits in hand: epoch and id.
    held: Vec<(u32, u64)>,
    /// The group that it is in, and the number of its next ballot there.
    ballot: (u64, u64),
    /// It is to leave, and gets no more splits.
    leaves: bool,
}

struct SimulatedRun {
    core: RecordedCore,
    now: Duration,
    files: Vec<DataFile>,
    slots: Vec<MemberSlot>,
    processes: BTreeMap<MemberSlot, SimulatedProcess>,
    /// Processes that were replaced or lost. Every call of theirs must be refused.
    stale: Vec<SimulatedProcess>,
    /// Who may work on a split now, by epoch and id.
    holders: BTreeMap<(u32, u64), MemberSlot>,
    completed: BTreeSet<(u32, u64)>,
    /// Bytes of completed splits: epoch, file, start, end.
    ranges: BTreeSet<(u32, u32, u64, u64)>,
    range_of: BTreeMap<(u32, u64), (u32, u64, u64)>,
    finished: BTreeSet<MemberSlot>,
    /// The members that were silent for a lease. Others may get their splits.
    silent: BTreeSet<MemberSlot>,
    /// Workers that left, or that the coordinator has given up, because fewer were wanted.
    departed: BTreeSet<MemberSlot>,
    generation: u64,
    group: u64,
    replaced: Option<MemberSlot>,
    instances: u64,
    /// Whether the rows of servers are in logs, which outlast their processes.
    has_logs: bool,
    /// Servers that have made their log.
    logs: BTreeSet<MemberSlot>,
}

impl SimulatedRun {
    fn new(servers: u32, workers: u32, sizes: &[u64], has_logs: bool) -> Self {
        // The others may come later.
        let first = workers.div_ceil(2);
        let config = CoreConfig { workers: first, min_workers: 1, ..core_config(servers, workers) };
        let file = |bytes: &u64| DataFile {
            path: "train".to_owned(),
            bytes: *bytes,
            splittable: !bytes.is_multiple_of(3),
            fingerprint: 0,
        };
        Self {
            core: RecordedCore::new(config),
            now: Duration::ZERO,
            files: sizes.iter().map(file).collect(),
            slots: (0..servers).map(MemberSlot::server).chain((0..workers).map(MemberSlot::worker)).collect(),
            processes: BTreeMap::new(),
            stale: Vec::new(),
            holders: BTreeMap::new(),
            completed: BTreeSet::new(),
            ranges: BTreeSet::new(),
            range_of: BTreeMap::new(),
            finished: BTreeSet::new(),
            silent: BTreeSet::new(),
            departed: BTreeSet::new(),
            generation: 0,
            group: 0,
            replaced: None,
            instances: 0,
            has_logs,
            logs: BTreeSet::new(),
        }
    }

    fn slot(&self, index: usize) -> MemberSlot {
        self.slots[index % self.slots.len()]
    }

    fn play(&mut self, action: Action) {
        match action {
            Action::Start(index) => self.start(self.slot(index)),
            Action::Rejoin(index) => self.rejoin(self.slot(index)),
            Action::Kill(index) => drop(self.processes.remove(&self.slot(index))),
            Action::Mute(index) => self.mute(self.slot(index), true),
            Action::Unmute(index) => self.mute(self.slot(index), false),
            Action::Replace(index) => self.replace(self.slot(index)),
            Action::JoinGroup(index) => self.join_group(self.slot(index)),
            Action::Ask(index) => self.ask(self.slot(index)),
            Action::Complete(index) => self.complete(self.slot(index)),
            Action::Vote(index) => self.vote(self.slot(index)),
            Action::Transform(index) => self.transform(self.slot(index)),
            Action::Evaluate(index) => self.evaluate(self.slot(index)),
            Action::Scale(number) => self.scale(number),
            Action::Depart(index) => self.depart(self.slot(index)),
            Action::CallStale(index) => self.call_stale(index),
            Action::RestartCoordinator(tenths) => self.restart_coordinator(tenths),
            Action::TakeSnapshot => self.core.take_snapshot(),
            Action::Wait => {}
        }
        self.now += LEASE / 10;
        self.core.tick(self.now);
        self.beat();
        self.read_events();
    }

    fn restart_coordinator(&mut self, tenths: u32) {
        self.now += LEASE / 10 * tenths;
        self.core.restart(self.now);
        let events = self.core.take_events();
        assert!(matches!(events[..], [RunEvent::CoordinatorRecovered { .. }]), "{events:?}");
    }

    fn mute(&mut self, slot: MemberSlot, muted: bool) {
        if let Some(process) = self.processes.get_mut(&slot) {
            process.muted = muted;
        }
    }

    fn start(&mut self, slot: MemberSlot) {
        if self.processes.contains_key(&slot) || self.finished.contains(&slot) {
            return;
        }
        self.instances += 1;
        self.join(slot, self.instances, false);
    }

    fn replace(&mut self, slot: MemberSlot) {
        if let Some(gone) = self.processes.remove(&slot) {
            self.instances += 1;
            self.replaced = Some(slot);
            self.join(slot, self.instances, true);
            self.replaced = None;
            let is_worker = slot.role == Role::DenseWorker;
            assert!(!is_worker || self.processes.contains_key(&slot), "{gone:?} still holds its slot");
        }
    }

    fn rejoin(&mut self, slot: MemberSlot) {
        if let Some(process) = self.processes.get(&slot) {
            self.join(slot, process.instance, false);
        }
    }

    fn join(&mut self, slot: MemberSlot, instance: u64, supersede: bool) {
        let has_log = self.has_logs && slot.role == Role::EmbeddingServer;
        let request = JoinRequest {
            lineage: if has_log { u64::from(slot.index) + 1 } else { 0 },
            recovered: has_log && self.logs.contains(&slot),
            supersede,
            ..join_request(slot, instance, self.files.clone())
        };
        match self.core.call(self.now, &request) {
            Ok(joined) if joined.over => {
                assert_eq!(self.core.outcome(), Some(&RunOutcome::Finished));
                self.finished.insert(slot);
            }
            Ok(joined) => {
                assert!(!joined.discard, "{slot} has no rows of another run");
                self.see_generation(joined.generation);
                self.logs.extend(has_log.then_some(slot));
                let (member, incarnation) = (joined.member, joined.incarnation);
                let known = self.processes.get(&slot).filter(|process| process.instance == instance);
                if let Some(process) = known {
                    // It asked again, or the network repeated its request: nothing has changed.
                    return assert_eq!(process.incarnation, incarnation, "{slot} is fenced by its own join");
                }
                let process = SimulatedProcess {
                    member,
                    incarnation,
                    instance,
                    muted: false,
                    heard: self.now,
                    epoch: 0,
                    held: Vec::new(),
                    ballot: (0, 1),
                    leaves: false,
                };
                self.stale.push(SimulatedProcess { incarnation: incarnation - 1, ..process.clone() });
                self.processes.insert(slot, process);
            }
            // Its splits were given to others.
            Err(refusal) if refusal.kind == RefusalKind::Fenced => self.fence(slot, refusal.kind),
            Err(refusal) => assert_eq!(refusal.kind, RefusalKind::Unavailable, "{refusal}"),
        }
        self.read_events();
    }

    fn beat(&mut self) {
        for slot in self.slots.clone() {
            let Some(process) = self.processes.get(&slot).filter(|process| !process.muted).cloned() else { continue };
            let SimulatedProcess { member, incarnation, .. } = process;
            let request = HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() };
            match self.core.call(self.now, &request) {
                Ok(answer) => {
                    self.see_generation(answer.generation);
                    let now = self.now;
                    assert_eq!(answer.leave, process.leaves, "{slot}");
                    self.change(slot, |process| process.heard = now);
                }
                Err(refusal) => self.fence(slot, refusal.kind),
            }
        }
    }

    /// The process of a slot, if it is a worker.
    fn worker(&self, slot: MemberSlot) -> Option<SimulatedProcess> {
        self.processes.get(&slot).filter(|_| slot.role == Role::DenseWorker).cloned()
    }

    fn ask(&mut self, slot: MemberSlot) {
        let Some(process) = self.worker(slot) else { return };
        let SimulatedProcess { member, incarnation, epoch, .. } = process;
        let request = AssignRequest { member, incarnation, epoch, ..AssignRequest::default() };
        match self.core.call(self.now, &request).map(|answer| answer.work.expect("an answer without work")) {
            Ok(Work::Split(split)) => {
                self.read_events();
                let other = self.holders.get(&(epoch, split.id)).copied();
                assert!(other.is_none_or(|other| self.silent.contains(&other)), "split {} given to two", split.id);
                // Invariant MB-3: a worker that loses a split cannot prove its lease any more.
                let unproven = |process: &SimulatedProcess| self.now - process.heard >= PROOF;
                let earlier = other.and_then(|other| self.processes.get(&other));
                assert!(earlier.is_none_or(unproven), "split {}", split.id);
                // A worker that has lost one split has lost them all.
                self.holders.retain(|_, holder| Some(*holder) != other);
                self.holders.insert((epoch, split.id), slot);
                assert!(!process.leaves, "{slot} is to leave, and was given a split");
                assert!(!self.completed.contains(&(epoch, split.id)), "a complete split is read again");
                self.range_of.insert((epoch, split.id), (split.file, split.start, split.end));
                self.change(slot, |process| process.held.push((epoch, split.id)));
            }
            Ok(Work::Wait(wait)) => assert!(wait.retry_ms > 0 && !wait.reason.is_empty()),
            Ok(Work::ResumeCursor(cursor)) => panic!("a run from the start has a resume cursor: {cursor:?}"),
            Ok(Work::EpochDone(_)) if process.leaves => {}
            Ok(Work::EpochDone(_)) => {
                self.check_nothing_left(epoch, slot);
                self.change(slot, |process| process.epoch = (epoch + 1).min(EPOCHS - 1));
            }
            Err(refusal) => self.refused(slot, refusal.kind),
        }
    }

    fn complete(&mut self, slot: MemberSlot) {
        let Some(process) = self.processes.get(&slot).filter(|process| !process.held.is_empty()).cloned() else {
            return;
        };
        let (SimulatedProcess { member, incarnation, .. }, (epoch, id)) = (&process, process.held[0]);
        let (member, incarnation, splits) = (*member, *incarnation, vec![id]);
        let request = CompleteRequest { member, incarnation, epoch, splits, bad_rows: vec![] };
        match self.core.call(self.now, &request) {
            Ok(_) => {
                assert_eq!(self.holders.remove(&(epoch, id)), Some(slot), "completed by a worker that did not hold it");
                let (file, start, end) = self.range_of[&(epoch, id)];
                assert!(self.ranges.insert((epoch, file, start, end)), "a range of bytes was completed twice");
                self.completed.insert((epoch, id));
                self.change(slot, |process| process.held.retain(|held| *held != (epoch, id)));
                // Repeats the call, as if its answer was lost.
                self.core.call(self.now, &request).expect("a repeated completion was refused");
            }
            Err(refusal) => self.refused(slot, refusal.kind),
        }
    }

    fn change(&mut self, slot: MemberSlot, change: impl FnOnce(&mut SimulatedProcess)) {
        change(self.processes.get_mut(&slot).expect("no process at this slot"));
    }

    /// Handles the refusal of a process that was silent for a lease. The process asks again once its heartbeat is answered.
    fn refused(&mut self, slot: MemberSlot, kind: RefusalKind) {
        if kind == RefusalKind::Unavailable {
            assert!(self.silent.contains(&slot), "{slot} must wait though it was heard");
        } else {
            self.fence(slot, kind);
        }
    }

    /// Stops a process that learns that it is fenced.
    fn fence(&mut self, slot: MemberSlot, kind: RefusalKind) {
        assert_eq!(kind, RefusalKind::Fenced);
        assert_eq!(slot.role, Role::DenseWorker, "a server that was not replaced was fenced");
        self.stale.extend(self.processes.remove(&slot));
    }

    fn see_generation(&mut self, generation: u64) {
        assert!(generation >= self.generation, "generation went from {} to {generation}", self.generation);
        self.generation = generation;
    }

    fn check_nothing_left(&self, epoch: u32, slot: MemberSlot) {
        let own = self.holders.iter().filter(|(key, holder)| key.0 == epoch && **holder == slot).count();
        let done = self.completed.iter().filter(|key| key.0 == epoch).count();
        assert_eq!(own + done, self.splits(), "epoch {epoch} is not over for {slot}");
    }

    fn splits(&self) -> usize {
        plan_splits(&self.files, self.workers(), ORDER).len()
    }

    fn workers(&self) -> u32 {
        self.slots.iter().filter(|slot| slot.role == Role::DenseWorker).count() as u32
    }

    fn read_events(&mut self) {
        for event in self.core.take_events() {
            match event {
                RunEvent::MemberLost { slot, silence, .. } => {
                    // The silence is shorter than a lease only when another process has replaced the member on purpose.
                    assert!(silence > LEASE || self.replaced == Some(slot));
                    self.silent.insert(slot);
                }
                RunEvent::ServerAway { slot, silence, .. } => {
                    assert!(silence > LEASE && self.has_logs);
                    self.silent.insert(slot);
                }
                RunEvent::MemberReturned { slot } => {
                    assert!(self.silent.remove(&slot), "{slot} is back and was never gone")
                }
                RunEvent::MemberJoined { slot, .. } => {
                    self.silent.remove(&slot);
                    self.departed.remove(&slot);
                    self.holders.retain(|_, holder| *holder != slot);
                }
                RunEvent::EpochCompleted { epoch } => {
                    let done = self.completed.iter().filter(|key| key.0 == epoch).count();
                    // The call adds its completion to this list only after the epoch has ended.
                    assert_eq!(done, self.splits());
                }
                // Others may read its splits from now on.
                RunEvent::WorkerGivenUp { slot, .. } => {
                    self.departed.insert(slot);
                    self.holders.retain(|_, holder| *holder != slot);
                }
                RunEvent::CoordinatorStalled { gap } => panic!("the clock jumped by {gap:?}"),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_run_with_kills_ends_with_every_split_completed_once(
        actions in actions(),
        servers in 1_u32..4,
        workers in 1_u32..4,
        sizes in prop::collection::vec(1_u64..20 << 20, 1..4),
        has_logs in any::<bool>(),
    ) {
        let mut world = SimulatedRun::new(servers, workers, &sizes, has_logs);
        for action in actions {
            world.play(action);
        }
        world.play_without_faults();
        prop_assert_eq!(world.core.outcome(), Some(&RunOutcome::Finished));
        // Each server that came back had its rows.
        prop_assert!(!has_logs || world.generation == 1, "generation {}", world.generation);
        for epoch in 0..EPOCHS {
            for (file, size) in number_from(0_u32, &sizes) {
                let ranges = world.ranges.iter().filter(|range| (range.0, range.1) == (epoch, file));
                let covered = ranges.fold(0, |covered, (_, _, start, end)| {
                    assert_eq!(*start, covered, "a hole in file {file} of epoch {epoch}");
                    *end
                });
                prop_assert_eq!(covered, *size);
            }
        }
    }

    /// Whatever ends a run, another process of the coordinator knows it (invariant MB-5).
    #[test]
    fn a_run_that_is_drained_or_ended_is_so_for_the_next_process_too(
        actions in actions(),
        workers in 1_u32..4,
        is_drained in any::<bool>(),
        pause in 0_u32..20,
    ) {
        let mut world = SimulatedRun::new(1, workers, &[5 << 20], false);
        for action in actions {
            world.play(action);
        }
        if is_drained {
            world.core.take(world.now, CoreInput::Drain("the coordinator was asked to end".to_owned()));
        } else {
            world.core.take(world.now, CoreInput::End(RunOutcome::Interrupted("Ctrl-C".to_owned())));
        }
        world.core.take_events();
        world.restart_coordinator(pause);
        for slot in world.slots.clone() {
            let Some(process) = world.processes.remove(&slot) else { continue };
            let SimulatedProcess { member, incarnation, .. } = process;
            let outcome = Outcome::Interrupted as i32;
            // A process that was silent for long is refused, and the run ends without its word.
            let _ = world.core.call(world.now, &LeaveRequest { member, incarnation, outcome, reason: String::new() });
        }
        // In small steps: after a long one the coordinator itself would count as having stood still.
        for _ in 0..40 {
            world.now += LEASE / 10;
            world.core.tick(world.now);
        }
        world.core.take_events();
        let outcome = world.core.outcome().map(RunOutcome::as_str);
        prop_assert!(matches!(outcome, Some("interrupted" | "failed")), "{outcome:?}");
        world.restart_coordinator(0);
        prop_assert_eq!(world.core.outcome().map(RunOutcome::as_str), outcome);
    }
}
