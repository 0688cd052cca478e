//! The state machine itself: each call of the coordinator, with its time.
//!
//! Each component has its own state and knows none of the others. This file connects them:
//!
//! ```text
//!            ┌──────────────── Core: one method per call ────────────────┐
//! members    data            placement    groups         barriers        watch       run
//! who holds  who reads       who owns     who makes      when, and       curve,      waiting, training,
//! a slot     which split     a bucket     steps together what follows    checkpoints draining, ended
//! ```

mod departure;
mod group_calls;
mod scale;
mod status;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{
    AssignRequest, AssignResponse, CompleteRequest, CompleteResponse, HeartbeatRequest, HeartbeatResponse, JoinRequest,
    JoinResponse, LeaveRequest, LeaveResponse, PlacementResponse, PositionRequest, PositionResponse,
    ReportEvaluationRequest, ReportEvaluationResponse, TransformsRequest, TransformsResponse,
};
use zagros_protocol::{Lineage, Refusal};

use crate::admission::{
    ServerContent, check_join_payload, check_report, check_same_run, check_same_transport, replaced_refusal,
    requested_slot, why_lost,
};
use crate::ballots::{Ballots, BarrierSchedule};
use crate::config::CoreConfig;
use crate::data::{ResumedData, TrainingData, Transforms};
use crate::groups::ProcessGroups;
use crate::members::{EarlierJoin, ExpiredLease, MemberState, Members};
use crate::placement::{ServerAddress, ServerPlacement};
use crate::resharding::Resharding;
use crate::roster::Roster;
use crate::run::RunState;
use crate::totals::TrainingTotals;
use crate::watch::TrainingWatch;
use crate::{MemberSlot, Role, RunEvent, RunOutcome};
use departure::nothing_more;

const RELEASED: &str = "its buckets were handed over to the other embedding servers";

/// The coordinator's whole memory. `now` is the time since any fixed moment; it may repeat but not run backwards.
/// A call of a process that is no longer a member is refused as `Fenced`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Core {
    config: CoreConfig,
    run: RunState,
    members: Members,
    placement: ServerPlacement,
    resharding: Resharding,
    /// How many dense workers a scale request has asked for while the run trained.
    wanted_workers: Option<u32>,
    data: TrainingData,
    transforms: Transforms,
    groups: ProcessGroups,
    barriers: BarrierSchedule,
    ballots: Ballots,
    watch: TrainingWatch,
    now: Option<Duration>,
    #[serde(skip)]
    events: Vec<RunEvent>,
}

impl Core {
    pub fn new(config: CoreConfig) -> Self {
        Self {
            run: RunState::Waiting,
            members: Members::new(config.lease),
            placement: ServerPlacement::new(config.servers, config.buckets),
            resharding: Resharding::default(),
            wanted_workers: None,
            data: TrainingData::default(),
            transforms: Transforms::default(),
            groups: ProcessGroups::default(),
            barriers: BarrierSchedule::default(),
            ballots: Ballots::default(),
            watch: TrainingWatch::default(),
            now: None,
            events: Vec::new(),
            config,
        }
    }

    /// A process takes its slot. The same call once more changes nothing.
    pub fn join(&mut self, now: Duration, request: &JoinRequest) -> Result<JoinResponse, Refusal> {
        let now = self.advance(now);
        if self.has_no_work_for(request) {
            return Ok(JoinResponse { over: true, ..JoinResponse::default() });
        }
        self.run.check_not_ended()?;
        check_same_run(&self.config, request)?;
        if self.was_released(request) {
            return Ok(JoinResponse { over: true, ..JoinResponse::default() });
        }
        let slot = requested_slot(&self.config, request)?;
        check_join_payload(slot, request)?;
        if slot.role == Role::DenseWorker {
            self.data.check_files(slot, &request.files)?;
            check_same_transport(self.roster(), slot, &request.transport)?;
        }
        match self.members.earlier_join(slot, request.instance) {
            EarlierJoin::None => {}
            // The answer was lost, or the network has repeated the request: nothing changes, not even the lease.
            EarlierJoin::Holds { incarnation } => return Ok(self.join_response(slot, incarnation)),
            EarlierJoin::Gone => return Err(replaced_refusal(slot)),
        }
        if self.run == RunState::Saved && slot.role == Role::DenseWorker {
            // It comes in the place of a worker that was lost after its work was done.
            self.check_vacant(now, slot, request)?;
            return Ok(JoinResponse { over: true, ..JoinResponse::default() });
        }
        let resumed = self.data.resumed_data(&self.config, slot, request)?;
        let content = self.content_of(slot, request);
        if content == ServerContent::Foreign {
            return Ok(JoinResponse { discard: true, ..JoinResponse::default() });
        }
        if content != ServerContent::Kept {
            self.check_vacant(now, slot, request)?;
        }
        if let ServerContent::Lost { known, brought } = content {
            self.finish_run(RunOutcome::Failed(why_lost(slot, known, brought)));
            self.run.check_not_ended()?;
        }

        let previous =
            self.members.newest_holder(slot).map(|previous| (previous.instance, now.saturating_sub(previous.heard)));
        if previous.is_some_and(|(instance, _)| instance != request.instance) {
            self.abandon_move_of(now, slot, "is another process now");
        }
        let incarnation = self.members.admit_member(now, slot, request);
        self.events.push(RunEvent::MemberJoined { slot, incarnation, address: request.address.clone() });
        if let (ServerContent::Kept, Some((instance, silence))) = (content, previous)
            && instance != request.instance
        {
            self.events.push(RunEvent::ServerRecovered { slot, incarnation, silence });
        }
        match slot.role {
            Role::EmbeddingServer => self.take_server(slot, request, content),
            Role::DenseWorker => self.take_worker(slot, request, resumed),
        }
        self.start_when_ready();
        Ok(self.join_response(slot, incarnation))
    }

    /// Renews the lease of a member and keeps its report.
    pub fn heartbeat(&mut self, now: Duration, request: &HeartbeatRequest) -> Result<HeartbeatResponse, Refusal> {
        let now = self.advance(now);
        check_report(&self.config, request)?;
        let (slot, was_silent) = self.renew(now, request.member, request.incarnation)?;
        self.members.note_report(now, slot, request);
        let is_first = slot == MemberSlot::worker(0);
        request.progress.into_iter().for_each(|progress| self.watch.note_progress(now, is_first, progress));
        if was_silent {
            self.events.push(RunEvent::MemberReturned { slot });
        }
        if self.config.asynchronous {
            self.barriers.request_barrier(now, request.barrier, self.config.lease);
        }
        let is_released = self.is_released(slot);
        if request.leaving && !is_released && !self.lets_go(slot) && !self.hand_over(now, slot) {
            self.start_drain(&format!("{slot} was asked to end"));
        }
        let outcome = self.run.outcome();
        let reason = outcome.map(ToString::to_string).or(is_released.then(|| RELEASED.to_owned()));
        let (barrier, barrier_in_ms) = self.barriers.newest_barrier(now);
        Ok(HeartbeatResponse {
            generation: self.placement.generation().0,
            stop: reason.is_some(),
            reason: reason.unwrap_or_default(),
            group: self.groups.generation,
            barrier,
            barrier_in_ms,
            draining: self.run.drain_reason().unwrap_or_default().to_owned(),
            broken_group: self.groups.broken,
            batch: self.watch.batches.newest_number(),
            bucket_move: self.resharding.active.as_ref().map_or(0, |active| active.id),
            leave: self.is_to_leave(slot),
            finished: outcome == Some(&RunOutcome::Finished),
        })
    }

    /// A member leaves. The run ends when every worker has finished, and when a member leaves for another reason.
    pub fn leave(&mut self, now: Duration, request: &LeaveRequest) -> Result<LeaveResponse, Refusal> {
        let now = self.advance(now);
        let slot = self.members.check_known(request.member, request.incarnation)?;
        if matches!(self.members.member_state(slot), Some(MemberState::Left { .. })) {
            // The answer to the first call was lost.
            return Ok(LeaveResponse {});
        }
        if self.note_departure(slot, request) {
            return Ok(LeaveResponse {});
        }
        if slot.role == Role::DenseWorker {
            self.renew(now, request.member, request.incarnation)?;
        }
        let outcome = RunOutcome::from_report(slot, request)?;
        self.members.note_leave(slot, outcome == RunOutcome::Finished);
        self.data.ledger.release_splits(slot);
        self.events.push(RunEvent::MemberLeft { slot, outcome: outcome.to_string() });
        self.end_after(slot, outcome);
        self.end_drain();
        Ok(LeaveResponse {})
    }

    pub fn placement(&mut self, now: Duration) -> PlacementResponse {
        self.advance(now);
        self.view_placement()
    }

    pub fn view_placement(&self) -> PlacementResponse {
        self.placement.placement_response(self.roster(), self.resharding.announced_move())
    }

    /// The next split for a worker. `Invalid` for an epoch that the job does not have.
    pub fn assign(&mut self, now: Duration, request: &AssignRequest) -> Result<AssignResponse, Refusal> {
        self.advance(now);
        self.run.check_not_ended()?;
        let slot = self.worker(request.member, request.incarnation)?;
        if self.members.is_leaving(slot) {
            return Ok(nothing_more());
        }
        self.data.ledger.assign_split(request, slot, self.members.present_workers())
    }

    /// How much of an epoch has been read, for a checkpoint, as of the last call. The workers add their resume cursors.
    pub fn view_position(&self, request: &PositionRequest) -> Result<PositionResponse, Refusal> {
        let slot = self.worker(request.member, request.incarnation)?;
        let (position, held) = self.data.read_position(slot, request.epoch)?;
        let completed = self.members.completed_of(slot, request.epoch);
        Ok(PositionResponse { position: Some(position), completed, held })
    }

    /// A worker reports the transforms of numeric columns, or asks for them. The first report stays.
    pub fn transforms(&mut self, now: Duration, request: &TransformsRequest) -> Result<TransformsResponse, Refusal> {
        self.advance(now);
        let slot = self.worker(request.member, request.incarnation)?;
        self.transforms.exchange(slot, request)
    }

    /// A worker reports splits whose every gradient is acknowledged. If it does not hold one of them, none is complete.
    pub fn complete(&mut self, now: Duration, request: &CompleteRequest) -> Result<CompleteResponse, Refusal> {
        self.advance(now);
        let slot = self.worker(request.member, request.incarnation)?;
        if self.data.complete_splits(slot, request)? {
            self.events.push(RunEvent::EpochCompleted { epoch: request.epoch });
        }
        self.members.add_completed(slot, request.epoch, &request.splits);
        Ok(CompleteResponse { bad_rows: self.data.bad_rows })
    }

    /// A worker reports its measures on the held-out part.
    pub fn report_evaluation(
        &mut self,
        now: Duration,
        request: &ReportEvaluationRequest,
    ) -> Result<ReportEvaluationResponse, Refusal> {
        self.advance(now);
        self.worker(request.member, request.incarnation)?;
        let evaluation = request.evaluation.ok_or_else(|| Refusal::invalid("the report has no evaluation"))?;
        self.watch.add_evaluation(evaluation);
        Ok(ReportEvaluationResponse {})
    }

    /// Lets leases expire. Every other call does this first.
    pub fn tick(&mut self, now: Duration) {
        self.advance(now);
    }

    /// Drains the run, because a process was asked to end. Without a worker the run is over at once.
    ///
    /// A checkpoint needs every server and the coordinator (invariant MB-4). A server or coordinator that is asked to end
    /// therefore continues to serve. Each worker learns of the drain with its next heartbeat, finishes its step, writes a
    /// checkpoint and leaves. The run is then over. The servers learn so with their next heartbeat and end.
    pub fn drain_run(&mut self, now: Duration, reason: &str) {
        self.advance(now);
        self.start_drain(reason);
    }

    /// The coordinator's process came back after a pause up to `now`, with the state of the process before. It heard
    /// no member meanwhile. So the leases start anew, and it waits for a missing member as if no time had passed.
    ///
    /// A worker's proof of its lease ended at most a lease after the process before answered it last. Its splits are given to
    /// others a lease after `now` at the earliest, which is later (invariant MB-3).
    pub fn recover(&mut self, now: Duration) {
        let last = self.now.unwrap_or(now);
        let now = now.max(last);
        self.now = Some(now);
        self.members.start_leases_anew(now, now - last);
        self.ballots.extend_deadlines(now - last);
        self.resharding.extend_wait(now - last);
        self.events.push(RunEvent::CoordinatorRecovered { gap: now - last });
    }

    pub fn config(&self) -> &CoreConfig {
        &self.config
    }

    /// Ends the run from outside, as when the coordinator's process is asked to stop. The first outcome stays.
    pub fn end_run(&mut self, now: Duration, outcome: RunOutcome) {
        self.advance(now);
        self.finish_run(outcome);
    }

    pub fn outcome(&self) -> Option<&RunOutcome> {
        self.run.outcome()
    }

    /// The workers that a drain waits for, in words; empty when there is none.
    pub fn drain_waits_for(&self) -> String {
        self.roster().alive_workers().map(|(slot, _)| slot.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Whether every member has left or is lost, so that no member listens to the coordinator.
    pub fn is_deserted(&self) -> bool {
        self.roster().is_deserted()
    }

    pub fn take_events(&mut self) -> Vec<RunEvent> {
        std::mem::take(&mut self.events)
    }

    fn roster(&self) -> Roster<'_> {
        Roster { config: &self.config, members: &self.members }
    }

    /// Returns the time, which never runs backwards.
    fn advance(&mut self, now: Duration) -> Duration {
        let last = self.now.unwrap_or(now);
        let now = now.max(last);
        self.now = Some(now);
        let gap = now - last;
        // No call came for so long, so this process itself stood still and heard no member.
        if gap > self.config.lease / 2 && !self.is_deserted() {
            self.members.extend_leases(gap);
            self.ballots.extend_deadlines(gap);
            self.resharding.extend_wait(gap);
            self.events.push(RunEvent::CoordinatorStalled { gap });
        }
        self.expire_leases(now);
        self.end_drain();
        self.advance_moves(now);
        if self.run == RunState::Training && self.watch.is_due(now) {
            self.watch.sample(now, TrainingTotals::new(&self.members, self.config.asynchronous, now));
        }
        now
    }

    /// The content of an embedding server that joins. Before training a run has put no rows anywhere.
    fn content_of(&self, slot: MemberSlot, request: &JoinRequest) -> ServerContent {
        let content = ServerContent::new(slot, self.members.newest_holder(slot), request);
        if self.run == RunState::Waiting { content.before_training(request) } else { content }
    }

    fn take_server(&mut self, slot: MemberSlot, request: &JoinRequest, content: ServerContent) {
        let lineage = Lineage::from_wire(request.lineage);
        let address = ServerAddress { address: request.address.clone(), instance: request.instance, lineage };
        if content == ServerContent::Kept && self.placement.bucket_map().is_some() {
            // Perhaps another process at another address. The generation stays.
            self.placement.addresses.insert(slot.index, address);
            return;
        }
        if let Some(generation) = self.placement.set_address(slot.index, address) {
            self.events.push(RunEvent::PlacementChanged { generation });
        }
    }

    fn take_worker(&mut self, slot: MemberSlot, request: &JoinRequest, resumed: Option<ResumedData>) {
        // An earlier incarnation held these splits. It is fenced now.
        self.data.ledger.release_splits(slot);
        let uneven = self.data.plan_once(&self.config, &request.files);
        self.events.extend(uneven.map(|why| RunEvent::UnevenShares { why }));
        resumed.into_iter().for_each(|resumed| self.data.go_on_from(resumed));
    }

    fn start_when_ready(&mut self) {
        if self.run == RunState::Waiting && self.placement.bucket_map().is_some() && self.data.is_known() {
            self.run = RunState::Training;
            self.events.push(RunEvent::TrainingStarted);
        }
    }

    fn worker(&self, member: u64, incarnation: u32) -> Result<MemberSlot, Refusal> {
        let slot = self.members.check_active(member, incarnation)?;
        if slot.role == Role::DenseWorker && self.data.is_known() {
            return Ok(slot);
        }
        Err(Refusal::invalid(format!("{slot} is no dense worker")))
    }

    /// Renews the lease of a caller. A silent server may always return, because no other process has its rows. A silent
    /// worker may return while no other worker reads its splits. A short outage of the coordinator therefore ends no run.
    fn renew(&mut self, now: Duration, member: u64, incarnation: u32) -> Result<(MemberSlot, bool), Refusal> {
        let Self { members, data, .. } = self;
        let may_return = |slot: MemberSlot| slot.role == Role::EmbeddingServer || data.ledger.reclaim_splits(slot);
        members.renew_lease(now, member, incarnation, may_return)
    }

    /// Checks that the caller may take the slot. A caller that vouches for the end of the last holder does not wait for the
    /// lease of that holder.
    fn check_vacant(&mut self, now: Duration, slot: MemberSlot, request: &JoinRequest) -> Result<(), Refusal> {
        let is_held = self.members.other_holder(slot, request.instance).is_some();
        if is_held && request.supersede && slot.role == Role::DenseWorker {
            let silence = self.members.end_lease(now, slot);
            self.note_loss(now, ExpiredLease { slot, silence });
        }
        self.members.check_vacant(now, slot, request.instance)
    }

    fn join_response(&self, slot: MemberSlot, incarnation: u32) -> JoinResponse {
        JoinResponse {
            member: slot.member_id(),
            incarnation,
            lease_ms: u32::try_from(self.config.lease.as_millis()).unwrap_or(u32::MAX),
            generation: self.placement.generation().0,
            over: false,
            run: self.config.run.0,
            discard: false,
        }
    }
}

#[cfg(test)]
mod tests;
