//! How a simulated run ends once nothing disturbs it.

use zagros_coordinator_core::{MemberSlot, Role};
use zagros_protocol::control::{LeaveRequest, Outcome};

use super::actions::Action;
use super::{EPOCHS, SimulatedRun};

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
            if let Err(refusal) = self.core.leave(self.now, &leave) {
                // The worker was silent for so long that others completed its splits.
                assert!(self.silent.contains(&slot), "{refusal}");
                return self.refused(slot, refusal.kind);
            }
            self.processes.remove(&slot);
            self.finished.insert(slot);
        }
    }
}
