//! Changing the numbers of servers and workers while the run trains. Each step to another number of embedding servers is one
//! move of buckets (ADR 39).
//!
//! More dense workers (invariant RK-5, ADR 47): they may join from now on, whenever they come. The group takes each in between two steps.
//! The run waits for no worker that has never come. Fewer workers: those that are left over, the last ones by their indices, learn from
//! their heartbeats that they are to leave. They leave as a worker does that was asked to end (invariant RK-4).

use std::time::Duration;

use zagros_protocol::control::{
    JoinRequest, MoveStage, ReportMoveRequest, ReportMoveResponse, ScaleRequest, ScaleResponse,
};
use zagros_protocol::{Refusal, RefusalKind};

use super::Core;
use crate::members::MemberState;
use crate::resharding::{MoveProgress, MoveState, owners_of, plan_owners};
use crate::run::RunState;
use crate::{MemberSlot, Role, RunEvent};

impl Core {
    /// Changes the numbers of embedding servers and of dense workers, or one of them: both or none. New processes may join
    /// from now on. Buckets move once all new servers have joined. A server that is left over ends once it owns no bucket, a
    /// worker once it has trained on what it has read. The same call again changes nothing, and neither does a refused one.
    pub fn scale(&mut self, now: Duration, request: &ScaleRequest) -> Result<ScaleResponse, Refusal> {
        let now = self.advance(now);
        self.run.check_not_ended()?;
        let (servers, workers) = (self.checked_servers(request)?, self.checked_workers(request)?);
        self.check_scalable(request)?;
        let Some(map) = self.placement.bucket_map() else { return Err(not_yet()) };
        let owners = owners_of(map);
        if let Some(servers) = servers {
            self.aim_servers(now, servers, &owners);
        }
        if let Some(workers) = workers {
            self.aim_workers(now, workers);
        }
        self.advance_moves(now);
        let servers = self.resharding.wanted_servers().unwrap_or(self.config.servers);
        Ok(ScaleResponse { servers, workers: self.workers_wanted(), buckets: self.buckets_left() })
    }

    /// `owners` has the present owner of each bucket.
    fn aim_servers(&mut self, now: Duration, servers: u32, owners: &[u32]) {
        if self.resharding.wanted_servers() == Some(servers) && self.buckets_left() > 0 {
            return;
        }
        let goal = plan_owners(owners, servers);
        self.abandon_move(now, "another number of servers was asked for");
        self.resharding.set_goal(servers, goal);
        self.config.servers = self.config.servers.max(servers);
        let buckets = self.buckets_left();
        self.events.push(RunEvent::ScaleRequested { servers, buckets });
    }

    /// The source or target of a move reports, and learns what became of the move. A repeated report changes nothing.
    pub fn report_move(&mut self, now: Duration, request: &ReportMoveRequest) -> Result<ReportMoveResponse, Refusal> {
        let now = self.advance(now);
        let slot = self.members.check_active(request.member, request.incarnation)?;
        let id = request.bucket_move;
        let Some(active) = self.resharding.active.as_ref().filter(|active| active.id == id) else {
            return Ok(self.resharding.move_verdict(id));
        };
        let (is_target, state) = (slot == MemberSlot::server(active.target), active.state);
        let is_source = slot == MemberSlot::server(active.source);
        let progress =
            MoveProgress { rows: request.rows, bytes: request.bytes, frozen: Duration::from_micros(request.frozen_us) };
        match MoveStage::try_from(request.stage) {
            Ok(MoveStage::Failed) if is_target || is_source => {
                self.abandon_move(now, &format!("{slot}: {}", request.reason));
            }
            Ok(MoveStage::Copying) if is_target => self.resharding.note_progress(now, MoveState::Copying, progress),
            Ok(MoveStage::CaughtUp) if is_target => self.resharding.note_progress(now, MoveState::CaughtUp, progress),
            Ok(MoveStage::Copied) if is_target && state == MoveState::CaughtUp => self.commit_move(now, progress),
            _ => return Err(Refusal::invalid(format!("{slot} cannot report this of move {id}"))),
        }
        Ok(self.resharding.move_verdict(id))
    }

    /// A process was asked to end. The run goes on without an embedding server if it is the last one by its index, others remain and
    /// buckets can move: then it ends once the others have its buckets. Returns whether it is so.
    pub(super) fn hand_over(&mut self, now: Duration, slot: MemberSlot) -> bool {
        if slot.role != Role::EmbeddingServer {
            return false;
        }
        let wanted = self.resharding.wanted_servers().unwrap_or(self.config.servers);
        let is_last = slot.index > 0 && slot.index + 1 == wanted;
        // It repeats its wish with every heartbeat.
        slot.index >= wanted || is_last && self.scale(now, &ScaleRequest { servers: slot.index, workers: 0 }).is_ok()
    }

    /// Starts what is due, gives up what cannot go on, and lets servers go that own nothing any more.
    pub(super) fn advance_moves(&mut self, now: Duration) {
        let can_move = self.run == RunState::Training && !self.roster().is_trained();
        if self.resharding.active.is_some() {
            if !can_move {
                self.abandon_move(now, "the run is ending");
            } else if self.resharding.is_silent(now, self.config.timeout) {
                let why = format!("its target has reported nothing for {:.0?}", self.config.timeout);
                self.abandon_move(now, &why);
            }
        }
        if !can_move || self.resharding.active.is_some() || !self.resharding.has_goal() {
            return;
        }
        self.release_servers();
        let Some(map) = self.placement.bucket_map().filter(|_| self.all_servers_are_alive()) else { return };
        if let Some(started) = self.resharding.start_next(now, map) {
            let (id, buckets) = (started.id, started.buckets.len() as u32);
            let (source, target) = (MemberSlot::server(started.source), MemberSlot::server(started.target));
            self.events.push(RunEvent::MoveStarted { id, source, target, buckets });
        }
    }

    /// A server is lost, or another process has taken its slot: the rows of a move that was under way may not be there any more.
    pub(super) fn abandon_move_of(&mut self, now: Duration, slot: MemberSlot, why: &str) {
        let concerns = |index: u32| slot == MemberSlot::server(index);
        if self.resharding.active.as_ref().is_some_and(|active| concerns(active.source) || concerns(active.target)) {
            self.abandon_move(now, &format!("{slot} {why}"));
        }
    }

    /// Whether the newest process in a server's slot has handed its buckets over, or the run wants no server in the slot.
    pub(super) fn is_released(&self, slot: MemberSlot) -> bool {
        let is_beyond = slot.role == Role::EmbeddingServer && slot.index >= self.config.servers;
        is_beyond || self.members.member_state(slot) == Some(MemberState::Released)
    }

    /// Whether a process asks for the slot of a server that was released, with the rows of a log: the process before was killed
    /// before it deleted the log. Nothing is left to do but that.
    pub(super) fn was_released(&self, request: &JoinRequest) -> bool {
        let slot = MemberSlot::server(request.index);
        let is_server = Role::from_wire(request.role) == Some(Role::EmbeddingServer);
        is_server && request.recovered && self.is_released(slot) && self.members.newest_holder(slot).is_some()
    }

    pub(super) fn buckets_left(&self) -> u32 {
        self.placement.bucket_map().map_or(0, |map| self.resharding.buckets_left(map))
    }

    fn check_scalable(&self, request: &ScaleRequest) -> Result<(), Refusal> {
        match &self.run {
            RunState::Waiting => Err(not_yet()),
            RunState::Draining(why) => Err(Refusal::invalid(format!(
                "the run is ending ({why}); the numbers of its servers and workers do not change any more"
            ))),
            _ if request.servers == 0 && request.workers == 0 => {
                Err(Refusal::invalid("nothing to change: name a number of servers or of workers"))
            }
            _ => Ok(()),
        }
    }

    /// The number of servers that a request asks for; `None` if it leaves the number as it is.
    fn checked_servers(&self, request: &ScaleRequest) -> Result<Option<u32>, Refusal> {
        let servers = request.servers;
        if servers == 0 {
            return Ok(None);
        }
        if servers > self.config.buckets {
            return Err(Refusal::invalid(format!(
                "{servers} servers cannot share {} buckets (`cluster.buckets`); ask for fewer",
                self.config.buckets
            )));
        }
        Ok(Some(servers))
    }

    fn commit_move(&mut self, now: Duration, progress: MoveProgress) {
        let Some(active) = self.resharding.active.clone() else { return };
        let Some(generation) = self.placement.move_buckets(&active.buckets, active.target) else { return };
        self.resharding.commit(generation, progress);
        self.events.push(RunEvent::MoveCommitted {
            id: active.id,
            buckets: active.buckets.len() as u32,
            rows: progress.rows,
            bytes: progress.bytes,
            frozen: progress.frozen,
        });
        self.events.push(RunEvent::PlacementChanged { generation });
        self.advance_moves(now);
    }

    fn abandon_move(&mut self, now: Duration, reason: &str) {
        if let Some(active) = self.resharding.abandon(now, reason) {
            self.events.push(RunEvent::MoveAbandoned { what: active.to_string(), reason: reason.to_owned() });
        }
    }

    fn all_servers_are_alive(&self) -> bool {
        (0..self.config.servers).all(|index| self.members.alive_member(MemberSlot::server(index)).is_some())
    }

    /// Lets the servers go that are left over, once none of them owns a bucket. They learn so with their next heartbeat.
    fn release_servers(&mut self) {
        let Some(wanted) = self.resharding.wanted_servers().filter(|_| self.buckets_left() == 0) else { return };
        for index in wanted..self.config.servers {
            let slot = MemberSlot::server(index);
            self.placement.addresses.remove(&index);
            self.members.release_server(slot);
            self.events.push(RunEvent::ServerReleased { slot });
        }
        self.config.servers = wanted;
        self.resharding.reach_goal();
    }
}

fn not_yet() -> Refusal {
    Refusal::new(RefusalKind::Unavailable, "the run does not train yet; try again once it does")
}

impl Core {
    /// The number of dense workers that a request asks for; `None` if it leaves the number as it is.
    pub(super) fn checked_workers(&self, request: &ScaleRequest) -> Result<Option<u32>, Refusal> {
        let (wanted, now) = (request.workers, self.workers_wanted());
        if wanted == 0 || wanted == now {
            return Ok(None);
        }
        if let Some(why) = &self.config.fixed_workers {
            return Err(Refusal::invalid(format!(
                "the run has {now} dense workers, and their number cannot change: {why}"
            )));
        }
        let (least, most) = (self.config.min_workers, self.config.slot_count(Role::DenseWorker));
        if wanted > most {
            return Err(Refusal::invalid(format!(
                "the run takes {most} dense workers at most (`cluster.max_workers`), and {wanted} were asked for"
            )));
        }
        if wanted < least {
            return Err(Refusal::invalid(format!(
                "{least} dense workers must stay (`cluster.min_workers`; without this key those that the run began with), \
                 and {wanted} were asked for"
            )));
        }
        if self.roster().is_trained() || self.run == RunState::Saved {
            return Err(Refusal::invalid("training is over; the workers save what they have learned, and end"));
        }
        Ok(Some(wanted))
    }

    pub(super) fn aim_workers(&mut self, now: Duration, wanted: u32) {
        self.wanted_workers = Some(wanted);
        // The first group waits for no worker that is not wanted.
        self.config.workers = self.config.workers.min(wanted);
        self.events.push(RunEvent::WorkersRequested { workers: wanted });
        let surplus = self.members.iter().map(|(slot, _)| slot).filter(|slot| is_surplus(*slot, wanted));
        for slot in surplus.collect::<Vec<_>>() {
            self.members.let_go(slot);
        }
        self.give_up_released(now);
    }

    pub(crate) fn workers_wanted(&self) -> u32 {
        self.wanted_workers.unwrap_or(self.config.workers)
    }

    pub(super) fn is_to_leave(&self, slot: MemberSlot) -> bool {
        self.run.is_under_way() && slot.role == Role::DenseWorker && self.members.is_leaving(slot)
    }

    /// A worker that was to leave and is lost is not waited for. Others read its splits.
    pub(super) fn give_up_released(&mut self, now: Duration) {
        let wanted = self.wanted_workers.unwrap_or(u32::MAX);
        while let Some(slot) = self.roster().released_and_lost(wanted) {
            debug_assert_ne!(self.members.member_state(slot), Some(MemberState::Alive));
            let silence = self.members.end_lease(now, slot);
            self.members.give_up(slot);
            self.data.ledger.release_splits(slot);
            self.groups.note_loss(slot);
            let left = self.roster().alive_worker_count();
            self.events.push(RunEvent::WorkerGivenUp { slot, timeout: silence, left });
        }
    }
}

fn is_surplus(slot: MemberSlot, wanted: u32) -> bool {
    slot.role == Role::DenseWorker && slot.index >= wanted
}
