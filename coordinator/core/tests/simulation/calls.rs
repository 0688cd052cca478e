//! Calls of workers that change no split: groups, votes, transforms, evaluations; and the calls of processes that are no longer members.

use zagros_coordinator_core::{MemberSlot, Role};
use zagros_protocol::RefusalKind;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    AssignRequest, BarrierReason, BarrierRequest, BarrierVote, CompleteRequest, Evaluation, GroupRequest,
    HeartbeatRequest, LeaveRequest, Outcome, ReportEvaluationRequest, Transform, TransformsRequest,
};

use super::{SimulatedProcess, SimulatedRun};

impl SimulatedRun {
    /// A group has live workers only. The asker is one of them. The group is never older than the last one.
    pub(super) fn join_group(&mut self, slot: MemberSlot) {
        let Some(process) = self.processes.get(&slot).filter(|_| slot.role == Role::DenseWorker).cloned() else {
            return;
        };
        match self
            .core
            .group(self.now, &GroupRequest { member: process.member, incarnation: process.incarnation, after: 0 })
        {
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
                assert_eq!(group.world, self.workers());
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
        match self.core.barrier(self.now, &BarrierRequest { member, incarnation, group, ballot, vote }) {
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

    pub(super) fn transform(&mut self, slot: MemberSlot) {
        let Some(process) = self.processes.get(&slot).filter(|_| slot.role == Role::DenseWorker).cloned() else {
            return;
        };
        let SimulatedProcess { member, incarnation, .. } = process;
        let measured = if slot.index == 0 { vec![Transform { mean: 1.0, deviation: 2.0 }] } else { Vec::new() };
        let request = TransformsRequest { member, incarnation, measured, bytes: 9 };
        if let Err(refusal) = self.core.transforms(self.now, &request) {
            self.refused(slot, refusal.kind);
        }
    }

    pub(super) fn evaluate(&mut self, slot: MemberSlot) {
        let Some(process) = self.processes.get(&slot).filter(|_| slot.role == Role::DenseWorker).cloned() else {
            return;
        };
        let SimulatedProcess { member, incarnation, .. } = process;
        let evaluation = Some(Evaluation { step: self.completed.len() as u64, ..Evaluation::default() });
        let request = ReportEvaluationRequest { member, incarnation, evaluation };
        if let Err(refusal) = self.core.report_evaluation(self.now, &request) {
            self.refused(slot, refusal.kind);
        }
    }

    /// Makes every call of a process that is no longer a member. Each is refused and changes nothing.
    pub(super) fn call_stale(&mut self, index: usize) {
        let Some(stale) = self.stale.get(index % self.stale.len().max(1)).cloned() else { return };
        let before = self.core.status(self.now);
        self.read_events();
        let SimulatedProcess { member, incarnation, .. } = stale;
        let evaluation = Some(Evaluation::default());
        let splits = self.range_of.keys().filter(|(epoch, _)| *epoch == 0).map(|(_, id)| *id).collect();
        let leave = LeaveRequest { member, incarnation, outcome: Outcome::Failed as i32, reason: "stale".to_owned() };
        let (core, now) = (&mut self.core, self.now);
        let refusals = [
            core.heartbeat(now, &HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() }).err(),
            core.assign(now, &AssignRequest { member, incarnation, epoch: 0, continuing: false }).err(),
            core.complete(now, &CompleteRequest { member, incarnation, epoch: 0, splits, bad_rows: vec![] }).err(),
            core.report_evaluation(now, &ReportEvaluationRequest { member, incarnation, evaluation }).err(),
            core.leave(now, &leave).err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.map(|refusal| refusal.kind), Some(RefusalKind::Fenced));
        }
        assert_eq!(self.core.status(self.now), before);
        assert!(self.core.take_events().is_empty());
    }
}
