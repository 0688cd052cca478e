//! The end of a run: the first worker saves, the others wait for it at the coordinator.

use zagros_coordinator_core::CoreInput;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{BarrierReason, BarrierRequest, BarrierVote};
use zagros_worker_core::Event;

use crate::world::RunWorld;

impl RunWorld {
    /// A part of the save, or of the wait for it.
    pub(crate) fn save_together(&mut self, index: usize) -> Option<Event> {
        if index > 0 {
            return self.vote_saved(index);
        }
        let turns = 1 + self.dice.below(5);
        let left = self.worker(index).unsaved.get_or_insert(turns);
        if *left > 0 {
            *left -= 1;
            return self.at_barrier(index, None);
        }
        self.ledger.is_saved = true;
        self.vote_saved(index)
    }

    fn vote_saved(&mut self, index: usize) -> Option<Event> {
        let reason = BarrierReason::Saved.into();
        let saved = self.at_barrier(index, Some(BarrierVote { reason, ..BarrierVote::default() }));
        let may_leave = saved.is_none() || self.ledger.is_saved;
        assert!(may_leave, "worker {index} leaves before the model is saved: {}", self.describe());
        saved
    }

    /// Without a vote it only says that it is on its way.
    fn at_barrier(&mut self, index: usize, vote: Option<BarrierVote>) -> Option<Event> {
        let (generation, worker) = (self.worker(index).generation(), self.worker(index));
        let (member, incarnation) = (worker.member, worker.incarnation);
        let request = BarrierRequest { member, incarnation, group: generation, ballot: 1, vote };
        let input = CoreInput::Barrier(request.clone());
        match self.ask(input, |core, now| core.barrier(now, &request))? {
            Ok(answer) => match answer.state? {
                State::Result(_) => Some(Event::Saved),
                State::Failure(_) => {
                    self.lose_call(index, generation);
                    None
                }
                State::Wait(_) => None,
            },
            Err(refusal) => {
                self.refused(index, &refusal);
                None
            }
        }
    }
}
