//! The calls of a process group: who is in it, and what its workers do after a barrier.

use std::time::Duration;

use zagros_protocol::Refusal;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    BarrierFailure, BarrierReason, BarrierRequest, BarrierResponse, GroupRequest, GroupResponse,
};

use super::Core;
use crate::MemberSlot;
use crate::ballots::{leavers, may_leave, says_saved};
use crate::roster::Roster;
use crate::run::RunState;

impl Core {
    /// The process group of a worker, once every worker is in. `Invalid` once a worker has finished: it joins no group.
    pub fn group(&mut self, now: Duration, request: &GroupRequest) -> Result<GroupResponse, Refusal> {
        self.advance(now);
        self.run.check_not_ended()?;
        let slot = self.worker(request.member, request.incarnation)?;
        if self.run == RunState::Saved {
            // It has come in the place of a worker that was lost after its last vote.
            let waiting_for = "the others to leave: all work of the run is done".to_owned();
            return Ok(GroupResponse { waiting_for, ..GroupResponse::default() });
        }
        let roster = Roster { config: &self.config, members: &self.members };
        self.groups.form_group(roster, slot, request.after)
    }

    /// A worker votes at a barrier of its process group, or is on its way there. A repeated request changes nothing.
    /// The barriers of a group fail once there is a newer group.
    pub fn barrier(&mut self, now: Duration, request: &BarrierRequest) -> Result<BarrierResponse, Refusal> {
        let now = self.advance(now);
        self.run.check_not_ended()?;
        let slot = self.worker(request.member, request.incarnation)?;
        if self.members.is_counted(slot) {
            return Ok(may_leave());
        }
        self.check_leave(slot, request)?;
        if self.groups.is_outdated(request.group) {
            let missed = self.ballots.regroup_result(request.group, request.ballot);
            return Ok(missed.unwrap_or_else(|| outdated(request.group, self.groups.generation)));
        }
        let (voters, rank) = self.groups.voters(self.roster(), now, request.group, (slot, request.incarnation))?;
        let response =
            self.ballots.take_request((now, self.config.timeout), (request.group, &voters), rank, request)?;
        if self.run == RunState::Training && says_saved(request, &response) {
            self.run = RunState::Saved;
        }
        self.count_leavers(&response);
        Ok(response)
    }

    fn check_leave(&self, slot: MemberSlot, request: &BarrierRequest) -> Result<(), Refusal> {
        let wants = request.vote.as_ref().is_some_and(|vote| vote.reason() == BarrierReason::Leave);
        if wants && !self.members.is_leaving(slot) {
            return Err(Refusal::invalid(format!("{slot} votes to leave, and the run does not go on without it")));
        }
        Ok(())
    }

    /// All have voted, and some of them to leave: these are in no process group any more. They only have to end.
    fn count_leavers(&mut self, response: &BarrierResponse) {
        for slot in leavers(response).map(MemberSlot::worker) {
            // Not a process that has taken the slot since.
            if self.members.newest_holder(slot).is_some_and(|holder| self.groups.has_member(slot, holder.incarnation)) {
                self.members.note_counted(slot);
            }
        }
    }
}

fn outdated(group: u64, newest: u64) -> BarrierResponse {
    let reason = format!("the process group of generation {newest} has formed in place of that of generation {group}");
    BarrierResponse { state: Some(State::Failure(BarrierFailure { workers: Vec::new(), reason })) }
}
