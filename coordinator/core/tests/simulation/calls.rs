//! What may happen in a simulated run: its actions, the calls of workers that change no split (groups, votes, transforms, evaluations), those of
//! processes that are no longer members, and how a run ends once nothing disturbs it.

use proptest::prelude::*;
use zagros_coordinator_core::{MemberSlot, Role, RunOutcome};
use zagros_protocol::RefusalKind;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    AssignRequest, BarrierReason, BarrierRequest, BarrierVote, CompleteRequest, Evaluation, GroupRequest,
    HeartbeatRequest, LeaveRequest, Outcome, ReportEvaluationRequest, ScaleRequest, Transform, TransformsRequest,
};

use super::recorded::EPOCHS;
use super::{SimulatedProcess, SimulatedRun};

/// One event. The `usize` picks the slot, modulo the number of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// A process is started at a slot whose process is gone.
    Start(usize),
    /// A process that missed the answer to its join asks again.
    Rejoin(usize),
    /// kill -9.
    Kill(usize),
    /// The process works on, but its heartbeats do not arrive.
    Mute(usize),
    Unmute(usize),
    Ask(usize),
    /// A process ends. The process that replaces it vouches for that.
    Replace(usize),
    /// A worker asks for the newest process group.
    JoinGroup(usize),
    Complete(usize),
    /// A worker votes at the next barrier of its group.
    Vote(usize),
    Transform(usize),
    Evaluate(usize),
    /// A stale process, which was replaced or lost, tries every call.
    CallStale(usize),
    /// Another number of workers is asked for.
    Scale(u32),
    /// A worker that is to leave, and holds no split, leaves.
    Depart(usize),
    /// The coordinator is killed, and comes back so many tenths of a lease later.
    RestartCoordinator(u32),
    /// The coordinator's journal is cut.
    TakeSnapshot,
    /// Nothing happens but time passes.
    Wait,
}

pub(crate) fn actions() -> impl Strategy<Value = Vec<Action>> {
    let slot = 0_usize..16;
    let action = prop_oneof![
        4 => slot.clone().prop_map(Action::Start),
        1 => slot.clone().prop_map(Action::Rejoin),
        1 => slot.clone().prop_map(Action::Kill),
        1 => slot.clone().prop_map(Action::Mute),
        2 => slot.clone().prop_map(Action::Unmute),
        1 => slot.clone().prop_map(Action::Replace),
        2 => slot.clone().prop_map(Action::JoinGroup),
        6 => slot.clone().prop_map(Action::Ask),
        5 => slot.clone().prop_map(Action::Complete),
        2 => slot.clone().prop_map(Action::Vote),
        1 => slot.clone().prop_map(Action::Transform),
        1 => slot.clone().prop_map(Action::Evaluate),
        1 => (0_u32..4).prop_map(Action::Scale),
        3 => slot.clone().prop_map(Action::Depart),
        2 => slot.prop_map(Action::CallStale),
        1 => (0_u32..40).prop_map(Action::RestartCoordinator),
        1 => Just(Action::TakeSnapshot),
        2 => Just(Action::Wait),
    ];
    prop::collection::vec(action, 0..200)
}

/// Whether a run of so many workers has no place for this one.
fn is_surplus(slot: MemberSlot, workers: u32) -> bool {
    slot.role == Role::DenseWorker && slot.index >= workers
}

impl SimulatedRun {
    /// A group has live workers only. The asker is one of them. The group is never older than the last one.
    pub(super) fn join_group(&mut self, slot: MemberSlot) {
        let Some(process) = self.worker(slot) else { return };
        let SimulatedProcess { member, incarnation, .. } = process;
        match self.core.call(self.now, &GroupRequest { member, incarnation, after: 0 }) {
            Ok(group) if group.generation == 0 => assert!(!group.waiting_for.is_empty()),
            Ok(group) => {
                assert!(group.generation >= self.group, "group {} after {}", group.generation, self.group);
                self.group = group.generation;
                assert_eq!(group.workers[group.rank as usize], slot.index);
                let generation = group.generation;
                self.change(slot, |process| {
                    if process.ballot.0 != generation {
                        process.ballot = (generation, 1);
                    }
                });
                // The group has no more workers than the run, and has every worker that must be in it.
                let first = self.core.config().workers;
                assert!((1..=self.workers()).contains(&group.world), "{group:?}");
                assert!(group.workers.contains(&0) && group.workers.is_sorted(), "{group:?}");
                let away = |index: &u32| self.departed.contains(&MemberSlot::worker(*index));
                let missing = (0..first).filter(|index| !away(index)).find(|index| !group.workers.contains(index));
                assert_eq!(missing, None, "{group:?}");
            }
            Err(refusal) if !refusal.message.contains("has finished") => self.refused(slot, refusal.kind),
            Err(refusal) => assert!(refusal.message.contains("has finished its part"), "{refusal}"),
        }
    }

    /// A ballot is decided for all or for none, and a worker that goes on votes in the next one.
    pub(super) fn vote(&mut self, slot: MemberSlot) {
        let Some(process) = self.processes.get(&slot).filter(|process| process.ballot.0 > 0).cloned() else { return };
        let SimulatedProcess { member, incarnation, ballot: (group, ballot), .. } = process;
        let vote = Some(BarrierVote { reason: BarrierReason::Ready.into(), ..BarrierVote::default() });
        match self.core.call(self.now, &BarrierRequest { member, incarnation, group, ballot, vote }) {
            Ok(answer) => match answer.state.expect("a state") {
                State::Wait(wait) => assert!(!wait.waiting_for.is_empty()),
                State::Result(_) => self.change(slot, |process| process.ballot.1 += 1),
                State::Failure(failure) => assert!(!failure.reason.is_empty()),
            },
            Err(refusal) if refusal.kind == RefusalKind::Invalid => {
                assert!(refusal.message.contains("process group"), "{refusal}");
            }
            Err(refusal) => self.refused(slot, refusal.kind),
        }
    }

    /// The workers that are left over are to leave from now on, whatever they do.
    pub(super) fn scale(&mut self, number: u32) {
        let workers = 1 + number % self.workers();
        let earlier = self.core.status(self.now).workers;
        match self.core.call(self.now, &ScaleRequest { servers: 0, workers }) {
            Ok(answer) => {
                assert_eq!((answer.workers, self.core.status(self.now).workers), (workers, workers));
                let surplus = self.processes.iter_mut().filter(|(slot, _)| is_surplus(**slot, workers));
                surplus.filter(|_| earlier != workers).for_each(|(_, process)| process.leaves = true);
            }
            Err(refusal) => {
                assert!(matches!(refusal.kind, RefusalKind::Unavailable | RefusalKind::Fenced), "{refusal}");
                assert_eq!(self.core.status(self.now).workers, earlier);
            }
        }
    }

    /// A worker leaves once it has trained on what it was given. The run goes on.
    pub(super) fn depart(&mut self, slot: MemberSlot) {
        let leaves = |process: &&SimulatedProcess| process.leaves && process.held.is_empty();
        let Some(SimulatedProcess { member, incarnation, .. }) = self.processes.get(&slot).filter(leaves).cloned()
        else {
            return;
        };
        let outcome = Outcome::Interrupted as i32;
        let leave = LeaveRequest { member, incarnation, outcome, reason: "fewer are wanted".to_owned() };
        let earlier = self.core.outcome().cloned();
        match self.core.call(self.now, &leave) {
            Ok(_) => {
                // Where the first worker has finished, the last one to leave ends a run that is done.
                let later = self.core.outcome().cloned();
                let is_done = later == Some(RunOutcome::Finished);
                assert!(later == earlier || is_done, "{earlier:?} became {later:?} with a worker that was to leave");
                self.processes.remove(&slot);
                self.departed.insert(slot);
            }
            Err(refusal) => self.refused(slot, refusal.kind),
        }
    }

    pub(super) fn transform(&mut self, slot: MemberSlot) {
        let Some(process) = self.worker(slot) else { return };
        let SimulatedProcess { member, incarnation, .. } = process;
        let measured = if slot.index == 0 {
            vec![Transform { mean: 1.0, deviation: 2.0, ..Transform::default() }]
        } else {
            Vec::new()
        };
        let request = TransformsRequest { member, incarnation, measured, bytes: 9 };
        if let Err(refusal) = self.core.call(self.now, &request) {
            self.refused(slot, refusal.kind);
        }
    }

    pub(super) fn evaluate(&mut self, slot: MemberSlot) {
        let Some(process) = self.worker(slot) else { return };
        let SimulatedProcess { member, incarnation, .. } = process;
        let evaluation = Some(Evaluation { step: self.completed.len() as u64, ..Evaluation::default() });
        let request = ReportEvaluationRequest { member, incarnation, evaluation };
        if let Err(refusal) = self.core.call(self.now, &request) {
            self.refused(slot, refusal.kind);
        }
    }

    /// Makes every call of a process that is no longer a member. Each is refused and changes nothing.
    pub(super) fn call_stale(&mut self, index: usize) {
        let Some(stale) = self.stale.get(index % self.stale.len().max(1)).cloned() else { return };
        let earlier = self.core.status(self.now);
        self.read_events();
        let SimulatedProcess { member, incarnation, .. } = stale;
        let evaluation = Some(Evaluation::default());
        let splits = self.range_of.keys().filter(|(epoch, _)| *epoch == 0).map(|(_, id)| *id).collect();
        let leave = LeaveRequest { member, incarnation, outcome: Outcome::Failed as i32, reason: "stale".to_owned() };
        let (core, now) = (&mut self.core, self.now);
        let refusals = [
            core.call(now, &HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() }).err(),
            core.call(now, &AssignRequest { member, incarnation, ..AssignRequest::default() }).err(),
            core.call(now, &CompleteRequest { member, incarnation, epoch: 0, splits, bad_rows: vec![] }).err(),
            core.call(now, &ReportEvaluationRequest { member, incarnation, evaluation }).err(),
            core.call(now, &leave).err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.map(|refusal| refusal.kind), Some(RefusalKind::Fenced));
        }
        assert_eq!(self.core.status(self.now), earlier);
        assert!(self.core.take_events().is_empty());
    }
}

impl SimulatedRun {
    /// Plays without faults: every process is started, is heard, and works until the run is over.
    pub(super) fn play_without_faults(&mut self) {
        for _ in 0..2000 {
            if self.core.outcome().is_some() {
                return;
            }
            for slot in self.slots.clone() {
                self.start(slot);
                self.mute(slot, false);
                self.ask(slot);
                self.complete(slot);
                self.depart(slot);
                self.finish_if_done(slot);
            }
            self.play(Action::Wait);
        }
        panic!("the run did not end: {:?}", self.core.status(self.now));
    }

    fn finish_if_done(&mut self, slot: MemberSlot) {
        let all = self.splits() * EPOCHS as usize;
        let Some(process) = self.processes.get(&slot).filter(|_| slot.role == Role::DenseWorker) else { return };
        if self.completed.len() == all {
            let (member, incarnation) = (process.member, process.incarnation);
            let outcome = Outcome::Finished as i32;
            let leave = LeaveRequest { member, incarnation, outcome, reason: String::new() };
            if let Err(refusal) = self.core.call(self.now, &leave) {
                // The worker was silent for so long that others completed its splits.
                assert!(self.silent.contains(&slot), "{refusal}");
                return self.refused(slot, refusal.kind);
            }
            self.processes.remove(&slot);
            self.finished.insert(slot);
        }
    }
}
