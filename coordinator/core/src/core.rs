//! The state machine itself: each call of the coordinator, with its time.

use std::collections::VecDeque;
use std::time::Duration;

use zagros_protocol::control::{
    AssignRequest, AssignResponse, CompleteRequest, CompleteResponse, DataFile, Evaluation, HeartbeatRequest,
    HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, Outcome, PlacementResponse, Position,
    PositionRequest, PositionResponse, ReportEvaluationRequest, ReportEvaluationResponse, ServerEntry, Writer,
};
use zagros_protocol::{BucketMap, Refusal, RunId};

use crate::barrier::Barrier;
use crate::epochs::{Epochs, Shares};
use crate::group::Group;
use crate::members::{MemberState, Members};
use crate::placement::{Home, Placement};
use crate::run::RunState;
use crate::splits::{SplitOrder, plan_splits, uneven_shares};
use crate::transforms::Transforms;
use crate::watch::Watch;
use crate::{MemberSlot, Notice, Role, RunOutcome};

/// Evaluations that the status call remembers; older ones are in the worker's run folder.
const EVALUATIONS_KEPT: usize = 1000;
/// Bytes of a member's reason to leave that are kept.
const LONGEST_REASON: usize = 16 << 10;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Tells this run from every other.
    pub run: RunId,
    /// Name of the job, for the status page.
    pub job: String,
    /// Embedding servers.
    pub servers: u32,
    /// Dense workers.
    pub workers: u32,
    /// As many of them must be left for the run to go on without one that is lost.
    pub min_workers: u32,
    /// Buckets that rows are placed by; at least one per server.
    pub buckets: u32,
    /// epochs.
    pub epochs: u32,
    /// Whether a split belongs to one worker for good, so that who reads what is the same in every run.
    pub fixed_splits: bool,
    /// In which order the splits of an epoch are dealt out.
    pub order: SplitOrder,
    /// Whether each worker steps at its own pace, so that steps and samples add up.
    pub apart: bool,
    /// What staleness may be at most, batches.
    pub staleness: u32,
    /// How often the job asks for a checkpoint, where it does by time.
    pub checkpoint_every: Option<Duration>,
    /// How long a member may be silent.
    pub lease: Duration,
    /// How long the run waits for another process in the place of a lost worker.
    pub timeout: Duration,
    /// Fingerprint of what every role must agree on.
    pub fingerprint: u64,
}

/// The coordinator's whole memory. `now` is the time since any fixed moment; it may repeat but not run backwards.
#[derive(Debug)]
pub struct Core {
    pub(crate) config: CoreConfig,
    pub(crate) run: RunState,
    pub(crate) members: Members,
    pub(crate) placement: Placement,
    /// The first worker's list is the run's list.
    pub(crate) files: Vec<DataFile>,
    pub(crate) epochs: Option<Epochs>,
    /// Which workers have little or no data to read, in words.
    pub(crate) uneven: Option<String>,
    pub(crate) transforms: Transforms,
    /// Malformed rows of the complete splits, over all epochs and workers.
    bad_rows: u64,
    pub(crate) group: Group,
    pub(crate) barrier: Barrier,
    pub(crate) evaluations: VecDeque<Evaluation>,
    pub(crate) watch: Watch,
    /// The largest step or batch number that any worker has told.
    newest_batch: u64,
    /// Time of the last call.
    now: Option<Duration>,
    pub(crate) notices: Vec<Notice>,
}

impl Core {
    /// A run that nobody has joined.
    #[must_use]
    pub fn new(config: CoreConfig) -> Self {
        Self {
            run: RunState::Waiting,
            members: Members::new(config.lease),
            placement: Placement::new(config.servers, config.buckets),
            files: Vec::new(),
            epochs: None,
            uneven: None,
            transforms: Transforms::default(),
            bad_rows: 0,
            group: Group::default(),
            barrier: Barrier::default(),
            evaluations: VecDeque::new(),
            watch: Watch::default(),
            newest_batch: 0,
            now: None,
            notices: Vec::new(),
            config,
        }
    }

    /// A process takes its slot.
    ///
    /// # Errors
    /// `Mismatch` when release, job or files differ, `Invalid` when there is no such slot, `Unavailable` while another
    /// process holds it, `Fenced` when the run is over. Nothing has changed then.
    pub fn join(&mut self, now: Duration, request: &JoinRequest) -> Result<JoinResponse, Refusal> {
        let now = self.advance(now);
        if self.nothing_is_left_for(request) {
            return Ok(JoinResponse { over: true, ..JoinResponse::default() });
        }
        self.check_not_ended()?;
        self.check_same_run(request)?;
        let slot = self.slot(request)?;
        self.check_baggage(slot, request)?;
        let resumed = self.resumed(slot, request)?;
        self.check_vacant(now, slot, request)?;

        let incarnation = self.members.admit(now, slot, request);
        self.notices.push(Notice::Joined { slot, incarnation, address: request.address.clone() });
        match slot.role {
            Role::EmbeddingServer => self.place(slot, request),
            Role::DenseWorker => self.take_worker(slot, &request.files, resumed),
        }
        self.start_when_ready();
        Ok(JoinResponse {
            member: slot.member(),
            incarnation,
            lease_ms: u32::try_from(self.config.lease.as_millis()).unwrap_or(u32::MAX),
            generation: self.placement.generation().0,
            over: false,
            run: self.config.run.0,
        })
    }

    /// A member says that it lives.
    ///
    /// # Errors
    /// `Fenced` when it is no longer a member.
    pub fn heartbeat(&mut self, now: Duration, request: &HeartbeatRequest) -> Result<HeartbeatResponse, Refusal> {
        let now = self.advance(now);
        self.check_report(request)?;
        let (slot, was_lost) = self.renew(now, request.member, request.incarnation)?;
        self.members.report(now, slot, request);
        if let Some(progress) = request.progress {
            self.watch.told(now, progress);
            self.newest_batch = self.newest_batch.max(progress.step).max(progress.batch);
        }
        if was_lost {
            self.notices.push(Notice::Back { slot });
        }
        if self.config.apart {
            self.barrier.ask(now, request.barrier, self.config.lease);
        }
        if request.leaving && slot.role == Role::EmbeddingServer {
            self.start_drain(&format!("{slot} was asked to end"));
        }
        let outcome = self.run.outcome();
        let (barrier, barrier_in_ms) = self.barrier.told(now);
        Ok(HeartbeatResponse {
            generation: self.placement.generation().0,
            stop: outcome.is_some(),
            reason: outcome.map(ToString::to_string).unwrap_or_default(),
            group: self.group.generation(),
            barrier,
            barrier_in_ms,
            draining: self.draining().unwrap_or_default().to_owned(),
            broken_group: self.group.broken(),
            batch: self.newest_batch,
        })
    }

    /// A member says goodbye. The run ends when every worker has finished, and when anyone leaves for another reason.
    ///
    /// # Errors
    /// `Fenced` when it is no longer a member, `Invalid` when it does not say how.
    pub fn leave(&mut self, now: Duration, request: &LeaveRequest) -> Result<LeaveResponse, Refusal> {
        let now = self.advance(now);
        let slot = self.members.known(request.member, request.incarnation)?;
        if matches!(self.members.state(slot), Some(MemberState::Left { .. })) {
            // The answer to the first goodbye was lost.
            return Ok(LeaveResponse {});
        }
        if slot.role == Role::DenseWorker {
            self.renew(now, request.member, request.incarnation)?;
        }
        let outcome = left_as(slot, request)?;
        let how = RunOutcome::to_string(&outcome);
        self.members.leave(slot, outcome == RunOutcome::Finished);
        self.release(slot);
        self.notices.push(Notice::Left { slot, how });
        self.end_after(slot, outcome);
        self.end_drain();
        Ok(LeaveResponse {})
    }

    /// Which server owns which bucket, and what is waited for.
    pub fn placement(&mut self, now: Duration) -> PlacementResponse {
        self.advance(now);
        let entry = |(index, home): (u32, &Home)| ServerEntry {
            index,
            address: home.address.clone(),
            instance: home.instance,
            alive: self.members.alive(MemberSlot::server(index)).is_some(),
            run: self.config.run.0,
        };
        PlacementResponse {
            generation: self.placement.generation().0,
            owners: self.placement.map().map(BucketMap::pack_owners).unwrap_or_default().into(),
            servers: self.placement.homes().map(entry).collect(),
            waiting_for: self.waiting_for_servers().unwrap_or_default(),
            writers: self
                .members
                .workers()
                .map(|(slot, incarnation)| Writer { member: slot.member(), incarnation })
                .collect(),
        }
    }

    /// The next split for a worker.
    ///
    /// # Errors
    /// `Fenced` when it is no longer a member or the run is over, `Invalid` for an epoch that the job does not have.
    pub fn assign(&mut self, now: Duration, request: &AssignRequest) -> Result<AssignResponse, Refusal> {
        self.advance(now);
        self.check_not_ended()?;
        let (slot, epochs) = self.worker(request.member, request.incarnation)?;
        epochs.assign(request, slot)
    }

    /// Where an epoch is: for a checkpoint, to which the workers add what is left of their streams.
    ///
    /// # Errors
    /// `Fenced` when the caller is no longer a member, `Invalid` for an epoch that the job does not have.
    pub fn position(&mut self, now: Duration, request: &PositionRequest) -> Result<PositionResponse, Refusal> {
        self.advance(now);
        let (slot, epochs) = self.worker(request.member, request.incarnation)?;
        let (position, held) = (epochs.position(request.epoch)?, epochs.held_in(request.epoch, slot));
        let completed = self.members.completed_of(slot, request.epoch);
        let position = Position { bad_rows: self.bad_rows, ..position };
        Ok(PositionResponse { position: Some(position), completed, held })
    }

    /// Splits whose every gradient is acknowledged.
    ///
    /// # Errors
    /// `Fenced` when the worker is no longer a member, `Invalid` when it does not hold one of them: none is booked then.
    pub fn complete(&mut self, now: Duration, request: &CompleteRequest) -> Result<CompleteResponse, Refusal> {
        self.advance(now);
        let CompleteRequest { epoch, splits, bad_rows, .. } = request;
        if !bad_rows.is_empty() && bad_rows.len() != splits.len() {
            return Err(Refusal::invalid(format!("{} counts of bad rows for {} splits", bad_rows.len(), splits.len())));
        }
        let (slot, epochs) = self.worker(request.member, request.incarnation)?;
        // Those of a call that is repeated were counted before.
        let is_new = |split: u64| !epochs.is_done(*epoch, split);
        let new = std::iter::zip(splits, bad_rows).filter(|(split, _)| is_new(**split)).map(|(_, bad)| *bad);
        let new = new.fold(0, u64::saturating_add);
        if epochs.complete(request.epoch, &request.splits, slot)? {
            self.notices.push(Notice::EpochDone { epoch: request.epoch });
        }
        self.members.completed(slot, request.epoch, &request.splits);
        self.bad_rows = self.bad_rows.saturating_add(new);
        Ok(CompleteResponse { bad_rows: self.bad_rows })
    }

    /// A worker's measures on the held-out part.
    ///
    /// # Errors
    /// `Fenced` when it is no longer a member, `Invalid` when it brings none.
    pub fn report_evaluation(
        &mut self,
        now: Duration,
        request: &ReportEvaluationRequest,
    ) -> Result<ReportEvaluationResponse, Refusal> {
        self.advance(now);
        self.worker(request.member, request.incarnation)?;
        let evaluation = request.evaluation.ok_or_else(|| Refusal::invalid("the report has no evaluation"))?;
        if self.evaluations.len() == EVALUATIONS_KEPT {
            self.evaluations.pop_front();
        }
        self.evaluations.push_back(evaluation);
        Ok(ReportEvaluationResponse {})
    }

    /// Time passes: leases run out. Every other call does this first.
    pub fn tick(&mut self, now: Duration) {
        self.advance(now);
    }

    /// Ends the run from outside, as when the coordinator's process is asked to stop. The first outcome stays.
    pub fn end(&mut self, now: Duration, outcome: RunOutcome) {
        self.advance(now);
        self.finish(outcome);
    }

    /// How the run ended, once it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&RunOutcome> {
        self.run.outcome()
    }

    /// Whether nobody is left to be told something.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        self.members.iter().all(|(_, member)| member.state != MemberState::Alive)
    }

    /// What has happened since the last time this was asked.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Who is missing, in words: `embedding server 2 has not joined`; `None` when everyone is there.
    #[must_use]
    pub fn waiting_for(&self) -> Option<String> {
        self.waiting_for_servers().or_else(|| self.waiting_for_workers())
    }

    pub(crate) fn waiting_for_workers(&self) -> Option<String> {
        list((0..self.config.workers).map(MemberSlot::worker).filter_map(|slot| self.absence(slot)))
    }

    fn waiting_for_servers(&self) -> Option<String> {
        list((0..self.config.servers).map(MemberSlot::server).filter_map(|slot| self.absence(slot)))
    }

    fn absence(&self, slot: MemberSlot) -> Option<String> {
        match self.members.state(slot) {
            None => Some(format!("{slot} has not joined")),
            Some(MemberState::Silent | MemberState::Lost) => {
                Some(format!("{slot} is lost: silent for longer than its lease"))
            }
            Some(MemberState::Left { finished: false }) => Some(format!("{slot} has left")),
            Some(MemberState::Alive | MemberState::Left { finished: true } | MemberState::GivenUp) => None,
        }
    }

    /// Moves the clock and lets leases run out. Answers the time, which never runs backwards.
    pub(crate) fn advance(&mut self, now: Duration) -> Duration {
        let last = self.now.unwrap_or(now);
        let now = now.max(last);
        self.now = Some(now);
        let gap = now - last;
        // Without a call for so long it was this process that stood still, and so members could not be heard.
        if gap > self.config.lease / 2 && !self.is_deserted() {
            self.members.excuse(gap);
            self.notices.push(Notice::Stalled { gap });
        }
        self.expire(now);
        self.end_drain();
        if self.run == RunState::Training {
            self.watch.look(now, &self.config, &self.members);
        }
        now
    }

    fn place(&mut self, slot: MemberSlot, request: &JoinRequest) {
        let home = Home { address: request.address.clone(), instance: request.instance };
        if let Some(generation) = self.placement.joined(slot.index, home) {
            self.notices.push(Notice::Placed { generation });
        }
    }

    fn take_worker(&mut self, slot: MemberSlot, files: &[DataFile], resumed: Option<(Epochs, u64)>) {
        // Held under an earlier incarnation, which is fenced now.
        self.release(slot);
        if self.epochs.is_none() {
            self.files = files.to_vec();
            let plan = plan_splits(files, self.config.workers, self.config.order);
            self.uneven = uneven_shares(&plan, files, self.config.workers);
            self.notices.extend(self.uneven.clone().map(|why| Notice::Uneven { why }));
            self.epochs = Some(Epochs::new(plan, self.config.epochs, self.shares()));
        }
        if let Some((epochs, bad_rows)) = resumed {
            (self.epochs, self.bad_rows) = (Some(epochs), bad_rows);
        }
    }

    /// The books of a run that goes on from where another was left, and the malformed rows until there. A worker that trains alone goes back by itself;
    /// one of several comes back to what the others have now.
    fn resumed(&self, slot: MemberSlot, request: &JoinRequest) -> Result<Option<(Epochs, u64)>, Refusal> {
        let Some(position) = request.position.as_ref().filter(|_| slot == MemberSlot::worker(0)) else {
            return Ok(None);
        };
        let goes_back = self.config.workers == 1 || self.epochs.as_ref().is_none_or(Epochs::is_untouched);
        let resume = || Epochs::resume(position, self.config.epochs, self.shares(), request.files.len());
        let books = goes_back.then(resume).transpose()?;
        Ok(books.map(|books| (books, position.bad_rows)))
    }

    fn shares(&self) -> Shares {
        let CoreConfig { workers, fixed_splits: fixed, order, .. } = self.config;
        Shares { workers, fixed, order }
    }

    fn start_when_ready(&mut self) {
        if self.run == RunState::Waiting && self.placement.map().is_some() && self.epochs.is_some() {
            self.run = RunState::Training;
            self.notices.push(Notice::Started);
        }
    }

    /// The caller's slot and the books, for calls that only workers make.
    pub(crate) fn worker(&mut self, member: u64, incarnation: u32) -> Result<(MemberSlot, &mut Epochs), Refusal> {
        let slot = self.members.active(member, incarnation)?;
        match self.epochs.as_mut() {
            Some(epochs) if slot.role == Role::DenseWorker => Ok((slot, epochs)),
            _ => Err(Refusal::invalid(format!("{slot} is no dense worker"))),
        }
    }

    pub(crate) fn release(&mut self, slot: MemberSlot) -> usize {
        self.epochs.as_mut().map_or(0, |epochs| epochs.release(slot))
    }

    fn end_after(&mut self, slot: MemberSlot, outcome: RunOutcome) {
        match (slot.role, outcome) {
            (Role::DenseWorker, RunOutcome::Finished) => {
                self.finish_after_the_last();
            }
            (Role::EmbeddingServer, RunOutcome::Finished) => {
                self.finish(RunOutcome::Failed(format!("{slot} left before the run was over")));
            }
            (_, outcome) => self.finish(outcome),
        }
    }

    pub(crate) fn finish(&mut self, outcome: RunOutcome) {
        if self.run.outcome().is_none() {
            self.run = RunState::Ended(outcome.clone());
            self.notices.push(Notice::Ended(outcome));
        }
    }
}

/// A member's own account of its end, with its name.
fn left_as(slot: MemberSlot, request: &LeaveRequest) -> Result<RunOutcome, Refusal> {
    // It is kept, told to every member and shown.
    let told = &request.reason[..request.reason.floor_char_boundary(LONGEST_REASON)];
    let reason = if told.is_empty() { slot.to_string() } else { format!("{slot}: {told}") };
    match Outcome::try_from(request.outcome) {
        Ok(Outcome::Finished) => Ok(RunOutcome::Finished),
        Ok(Outcome::Interrupted) => Ok(RunOutcome::Interrupted(reason)),
        Ok(Outcome::Failed) => Ok(RunOutcome::Failed(reason)),
        Ok(Outcome::Unspecified) | Err(_) => Err(Refusal::invalid(format!("{slot} leaves without an outcome"))),
    }
}

fn list(parts: impl Iterator<Item = String>) -> Option<String> {
    let all: Vec<String> = parts.collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests;
