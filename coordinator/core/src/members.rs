//! Who holds which slot. A join takes a slot, heartbeats keep it, and a lease of silence loses it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{Disk, HeartbeatRequest, JoinRequest, LongWait, Progress, ServerLoad, ServerWait};
use zagros_protocol::{Lineage, Refusal, RefusalKind};

use crate::{MemberSlot, Role};

/// Everyone who ever joined, by slot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Members {
    lease: Duration,
    by_slot: BTreeMap<MemberSlot, MemberRecord>,
    /// Processes that another process has replaced, by slot, newest last. A join of theirs was on its way for long.
    replaced: BTreeMap<MemberSlot, VecDeque<u64>>,
}

/// Replaced processes that are remembered for each slot.
const REMEMBERED: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlierJoin {
    /// It joins for the first time.
    None,
    /// It is the member with this incarnation: its join was repeated, by itself or by the network.
    Holds { incarnation: u32 },
    /// It was lost, has left, or another process has taken its slot.
    Gone,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct MemberRecord {
    pub(crate) address: String,
    /// How a dense worker exchanges values with others.
    pub(crate) transport: String,
    pub(crate) instance: u64,
    pub(crate) incarnation: u32,
    /// Which log holds the rows of an embedding server. Without a log its rows end with its process.
    pub(crate) lineage: Option<Lineage>,
    pub(crate) state: MemberState,
    /// When its newest heartbeat came.
    pub(crate) heard: Duration,
    pub(crate) progress: Option<Progress>,
    /// What the earlier processes in the slot had reported when they were lost, added up: steps and samples.
    pub(crate) before: (u64, u64),
    pub(crate) departure: Departure,
    pub(crate) load: Option<ServerLoad>,
    pub(crate) waits: Vec<ServerWait>,
    /// Only for the status. A journal does not keep it: the next heartbeat has it again.
    #[serde(skip)]
    pub(crate) long_waits: Vec<LongWait>,
    pub(crate) disk: Option<Disk>,
    /// When its reported step last changed.
    pub(crate) stepped: Option<Duration>,
    /// Its epoch, and the ids of that epoch's splits that were reported as complete in its name.
    completed: (u32, BTreeSet<u64>),
}

/// How far a worker is on its way out of a run that goes on without it (invariant RK-4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Departure {
    #[default]
    Stays,
    /// It gets no more splits, and trains on what it has read.
    Leaves,
    /// The others have counted what it has done, at a barrier of asynchronous workers. It is in no process group from then on.
    Counted,
}

/// Whether a member still holds its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MemberState {
    #[default]
    Alive,
    Left {
        finished: bool,
    },
    /// It was silent for a lease. None of its work was given to others, so it returns when it is heard again.
    Silent,
    /// An embedding server whose rows are in a log was silent for a lease. The run waits for this process, or for another
    /// process that recovers the rows.
    Away,
    /// It was silent for a lease and its work was given to others, or its process is known to be gone. Only another process
    /// may take its slot.
    Lost,
    /// It was lost, and no other process is expected in its slot.
    GivenUp,
    /// An embedding server that has handed its buckets over. Its process is to end, even if the run wants a server in its slot
    /// again: that one is another process, which brings no rows.
    Released,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpiredLease {
    pub(crate) slot: MemberSlot,
    pub(crate) silence: Duration,
}

impl Members {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, by_slot: BTreeMap::new(), replaced: BTreeMap::new() }
    }

    /// Whether a process of this instance has joined in the slot before (invariant MB-1).
    pub(crate) fn earlier_join(&self, slot: MemberSlot, instance: u64) -> EarlierJoin {
        let was_replaced = self.replaced.get(&slot).is_some_and(|replaced| replaced.contains(&instance));
        match self.by_slot.get(&slot).filter(|holder| holder.instance == instance) {
            Some(holder) if holder.state.may_be_heard() => EarlierJoin::Holds { incarnation: holder.incarnation },
            Some(_) => EarlierJoin::Gone,
            None if was_replaced => EarlierJoin::Gone,
            None => EarlierJoin::None,
        }
    }

    /// Checks that a process of this instance may take the slot: the slot is free, or its own.
    pub(crate) fn check_vacant(&self, now: Duration, slot: MemberSlot, instance: u64) -> Result<(), Refusal> {
        let Some(holder) = self.other_holder(slot, instance) else { return Ok(()) };
        let silence = now.saturating_sub(holder.heard);
        let address = if holder.address.is_empty() { String::new() } else { format!(" at {}", holder.address) };
        let message = format!(
            "{slot} is held by another process{address}, last heard {silence:.1?} ago; unless it is heard again its \
             slot is free in {:.1?}",
            self.lease.saturating_sub(silence)
        );
        Err(Refusal::new(RefusalKind::Unavailable, message))
    }

    /// Gives the slot to the process that asks for it. Returns its incarnation.
    pub(crate) fn admit_member(&mut self, now: Duration, slot: MemberSlot, request: &JoinRequest) -> u32 {
        let last = self.by_slot.get(&slot);
        let incarnation = last.map_or(0, |member| member.incarnation) + 1;
        let member = MemberRecord {
            address: request.address.clone(),
            transport: request.transport.clone(),
            instance: request.instance,
            incarnation,
            lineage: Lineage::from_wire(request.lineage),
            heard: now,
            before: last.map_or((0, 0), MemberRecord::reported_totals),
            ..MemberRecord::default()
        };
        if let Some(before) = self.by_slot.insert(slot, member) {
            let replaced = self.replaced.entry(slot).or_default();
            replaced.push_back(before.instance);
            replaced.drain(..replaced.len().saturating_sub(REMEMBERED));
        }
        incarnation
    }

    /// The slot of a caller in any state, unless another process has taken it (invariant MB-1).
    pub(crate) fn check_known(&self, member: u64, incarnation: u32) -> Result<MemberSlot, Refusal> {
        let fenced = |message: String| Err(Refusal::new(RefusalKind::Fenced, message));
        let Some(slot) = MemberSlot::from_member(member) else {
            return fenced(format!("member {member} does not belong to this run"));
        };
        match self.by_slot.get(&slot).map(|member| member.incarnation) {
            Some(current) if current == incarnation => Ok(slot),
            Some(current) if current > incarnation => fenced(format!(
                "{slot} has been taken by a newer process (incarnation {current}, this one has {incarnation}); stop this one"
            )),
            // The coordinator's memory ends with its process.
            Some(_) | None => fenced(format!(
                "{slot} with incarnation {incarnation} is not known: the coordinator was restarted; start the run again"
            )),
        }
    }

    /// As [`Self::check_known`], and the caller must still hold its slot.
    pub(crate) fn check_active(&self, member: u64, incarnation: u32) -> Result<MemberSlot, Refusal> {
        let slot = self.check_known(member, incarnation)?;
        let why = match self.by_slot.get(&slot).map(|member| member.state) {
            // A server that is released may ask what became of its last move.
            Some(MemberState::Alive | MemberState::Released) => return Ok(slot),
            Some(MemberState::Left { .. }) => "has left the run",
            Some(MemberState::Silent | MemberState::Away) => {
                let message = format!("{slot} was silent for longer than its lease; its next heartbeat renews it");
                return Err(Refusal::new(RefusalKind::Unavailable, message));
            }
            Some(MemberState::Lost | MemberState::GivenUp) | None => {
                "was silent for longer than its lease, and its work was given to others"
            }
        };
        Err(Refusal::new(RefusalKind::Fenced, format!("{slot} {why}; start it again to join anew")))
    }

    /// Renews the lease of a caller. A silent member returns where `may_return` allows it. Returns the slot, and whether
    /// the member was silent.
    pub(crate) fn renew_lease(
        &mut self,
        now: Duration,
        member: u64,
        incarnation: u32,
        may_return: impl FnOnce(MemberSlot) -> bool,
    ) -> Result<(MemberSlot, bool), Refusal> {
        let slot = self.check_known(member, incarnation)?;
        if self.member_state(slot) == Some(MemberState::Released) {
            return Ok((slot, false));
        }
        let was_silent = matches!(self.member_state(slot), Some(MemberState::Silent | MemberState::Away));
        let returns = was_silent && may_return(slot);
        if was_silent && !returns {
            self.end_lease(now, slot);
        }
        if !returns {
            self.check_active(member, incarnation)?;
        }
        if let Some(member) = self.by_slot.get_mut(&slot) {
            member.heard = now;
            member.state = MemberState::Alive;
        }
        Ok((slot, was_silent))
    }

    /// An empty list of waits says that the member waits for no server.
    pub(crate) fn note_report(&mut self, now: Duration, slot: MemberSlot, report: &HeartbeatRequest) {
        let Some(member) = self.by_slot.get_mut(&slot) else { return };
        let step = |progress: Option<Progress>| progress.map(|progress| progress.step);
        if report.progress.is_some() && step(report.progress) != step(member.progress) {
            member.stepped = Some(now);
        }
        member.progress = report.progress.or(member.progress);
        member.load = report.load.or(member.load);
        member.disk = report.disk.or(member.disk);
        member.waits.clone_from(&report.waits);
        member.long_waits.clone_from(&report.long_waits);
    }

    pub(crate) fn add_completed(&mut self, slot: MemberSlot, epoch: u32, splits: &[u64]) {
        let Some(MemberRecord { completed: (current, all), .. }) = self.by_slot.get_mut(&slot) else { return };
        if *current != epoch {
            (*current, *all) = (epoch, BTreeSet::new());
        }
        all.extend(splits);
    }

    /// Ids of the splits of an epoch that were reported as complete in a member's name.
    pub(crate) fn completed_of(&self, slot: MemberSlot, epoch: u32) -> Vec<u64> {
        let all = self.by_slot.get(&slot).map(|member| &member.completed).filter(|(current, _)| *current == epoch);
        all.map(|(_, splits)| splits.iter().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn note_leave(&mut self, slot: MemberSlot, finished: bool) {
        self.change(slot, |member| member.state = MemberState::Left { finished });
    }

    /// Notes that a worker was asked to end, and that the run goes on without it.
    pub(crate) fn let_go(&mut self, slot: MemberSlot) {
        self.change(slot, |member| member.departure = member.departure.max(Departure::Leaves));
    }

    pub(crate) fn is_leaving(&self, slot: MemberSlot) -> bool {
        self.by_slot.get(&slot).is_some_and(MemberRecord::is_leaving)
    }

    /// Notes that the others have counted what a worker has done that leaves.
    pub(crate) fn note_counted(&mut self, slot: MemberSlot) {
        if let Some(member) = self.by_slot.get_mut(&slot).filter(|member| member.is_leaving()) {
            member.departure = Departure::Counted;
        }
    }

    /// It is in no process group any more.
    pub(crate) fn is_counted(&self, slot: MemberSlot) -> bool {
        self.by_slot.get(&slot).is_some_and(|member| member.departure == Departure::Counted)
    }

    /// Marks each member whose lease has expired as silent, or as away.
    pub(crate) fn expire_leases(&mut self, now: Duration) -> Vec<ExpiredLease> {
        let mut expired = Vec::new();
        for (slot, member) in &mut self.by_slot {
            let silence = now.saturating_sub(member.heard);
            if member.state == MemberState::Alive && silence > self.lease {
                member.state = if member.lineage.is_some() { MemberState::Away } else { MemberState::Silent };
                expired.push(ExpiredLease { slot: *slot, silence });
            }
        }
        expired
    }

    /// The holder of a slot, if it is another process than that of `instance`.
    pub(crate) fn other_holder(&self, slot: MemberSlot, instance: u64) -> Option<&MemberRecord> {
        self.alive_member(slot).filter(|holder| holder.instance != instance)
    }

    /// Ends the lease of a member whose process is known to be gone. Returns how long the member has been silent.
    pub(crate) fn end_lease(&mut self, now: Duration, slot: MemberSlot) -> Duration {
        self.by_slot.get_mut(&slot).map_or(Duration::ZERO, |member| {
            member.state = MemberState::Lost;
            now.saturating_sub(member.heard)
        })
    }

    /// The buckets of an embedding server were handed over. A process that takes the slot later need not have its rows.
    pub(crate) fn release_server(&mut self, slot: MemberSlot) {
        self.change(slot, |member| {
            member.lineage = None;
            member.state = if member.state.may_be_heard() { MemberState::Released } else { member.state };
        });
    }

    pub(crate) fn give_up(&mut self, slot: MemberSlot) {
        self.change(slot, |member| member.state = MemberState::GivenUp);
    }

    fn change(&mut self, slot: MemberSlot, change: impl FnOnce(&mut MemberRecord)) {
        if let Some(member) = self.by_slot.get_mut(&slot) {
            change(member);
        }
    }

    /// A worker that was lost so long ago that no other process is expected in its slot (invariant WT-1). The coordinator
    /// never gives up a server: workers reach servers without the coordinator, and decide for themselves.
    pub(crate) fn overdue_worker(&self, now: Duration, timeout: Duration) -> Option<ExpiredLease> {
        let lost = self.iter().filter(|(slot, member)| slot.role == Role::DenseWorker && member.state.is_missing());
        let mut expired = lost.map(|(slot, member)| ExpiredLease { slot, silence: now.saturating_sub(member.heard) });
        expired.find(|expired| expired.silence.saturating_sub(self.lease) > timeout)
    }

    pub(crate) fn extend_leases(&mut self, gap: Duration) {
        self.by_slot.values_mut().for_each(|member| member.heard += gap);
    }

    /// Every lease starts at `now`. A member that was lost before a pause of `gap` counts as lost that much later.
    pub(crate) fn start_leases_anew(&mut self, now: Duration, gap: Duration) {
        for member in self.by_slot.values_mut() {
            member.heard = if member.state == MemberState::Alive { now } else { member.heard + gap };
        }
    }

    /// Dense workers that have ever joined, with the oldest incarnation of each that may push. It is that of the newest process. No push
    /// of a worker that was given up is taken any more: a server that waited for the rest of one would hand no bucket over.
    pub(crate) fn writer_incarnations(&self) -> impl Iterator<Item = (MemberSlot, u32)> {
        let workers = self.iter().filter(|(slot, _)| slot.role == Role::DenseWorker);
        workers.map(|(slot, member)| (slot, member.incarnation + u32::from(member.state == MemberState::GivenUp)))
    }

    /// Dense workers that read now.
    pub(crate) fn present_workers(&self) -> usize {
        let reads = |member: &MemberRecord| member.state == MemberState::Alive && !member.is_leaving();
        self.iter().filter(|(slot, member)| slot.role == Role::DenseWorker && reads(member)).count()
    }

    pub(crate) fn member_state(&self, slot: MemberSlot) -> Option<MemberState> {
        self.by_slot.get(&slot).map(|member| member.state)
    }

    pub(crate) fn newest_holder(&self, slot: MemberSlot) -> Option<&MemberRecord> {
        self.by_slot.get(&slot)
    }

    pub(crate) fn alive_member(&self, slot: MemberSlot) -> Option<&MemberRecord> {
        self.by_slot.get(&slot).filter(|member| member.state == MemberState::Alive)
    }

    /// Everyone, servers first, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MemberSlot, &MemberRecord)> {
        self.by_slot.iter().map(|(slot, member)| (*slot, member))
    }
}

impl MemberRecord {
    pub(crate) fn is_leaving(&self) -> bool {
        self.departure > Departure::Stays
    }

    /// Steps and samples that all processes in the slot have reported as their own.
    pub(crate) fn reported_totals(&self) -> (u64, u64) {
        let (steps, samples) = self.before;
        self.progress.map_or(self.before, |progress| {
            (steps.saturating_add(progress.step), samples.saturating_add(progress.samples))
        })
    }
}

impl MemberState {
    /// Whether the next heartbeat of the process may be taken.
    fn may_be_heard(self) -> bool {
        matches!(self, Self::Alive | Self::Silent | Self::Away)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Left { .. } | Self::Released => "left",
            Self::Silent | Self::Lost => "lost",
            Self::Away => "away",
            Self::GivenUp => "given up",
        }
    }

    /// Whether the slot waits for its holder or for another process.
    pub(crate) fn is_missing(self) -> bool {
        matches!(self, Self::Silent | Self::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::totals::tests::time;

    const SLOT: MemberSlot = MemberSlot::worker(1);
    const LEASE: Duration = Duration::from_secs(10);

    fn join(members: &mut Members, seconds: u64, slot: MemberSlot, instance: u64) -> Result<u32, Refusal> {
        members.check_vacant(time(seconds), slot, instance)?;
        let request = JoinRequest { instance, address: "10.0.0.1:1".to_owned(), ..JoinRequest::default() };
        Ok(members.admit_member(time(seconds), slot, &request))
    }

    #[test]
    fn a_slot_is_held_until_its_lease_runs_out() {
        let mut members = Members::new(LEASE);
        assert_eq!(join(&mut members, 0, SLOT, 1), Ok(1));
        let refused = join(&mut members, 4, SLOT, 2).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Unavailable);
        let held = "dense worker 1 is held by another process at 10.0.0.1:1, last heard 4.0s";
        assert!(refused.message.starts_with(held), "{refused}");
        assert!(refused.message.ends_with("free in 6.0s"), "{refused}");
        assert!(members.expire_leases(time(10)).is_empty());
        assert_eq!(members.expire_leases(time(11)).len(), 1);
        assert_eq!(join(&mut members, 11, SLOT, 2), Ok(2));
        assert!(members.expire_leases(time(12)).is_empty());
    }

    #[test]
    fn an_unknown_member_is_fenced() {
        let mut members = Members::new(LEASE);
        join(&mut members, 0, SLOT, 1).unwrap();
        for (member, incarnation) in [(SLOT.member_id(), 9), (MemberSlot::worker(0).member_id(), 1), (3, 1)] {
            assert_eq!(members.check_known(member, incarnation).unwrap_err().kind, RefusalKind::Fenced);
        }
        // Its answer was lost, and it joined again.
        assert_eq!(join(&mut members, 1, SLOT, 1), Ok(2));
        let newer = members.check_known(SLOT.member_id(), 1).unwrap_err().message;
        assert!(newer.contains("taken by a newer process (incarnation 2"), "{newer}");
        members.note_leave(SLOT, true);
        assert!(members.check_active(SLOT.member_id(), 2).unwrap_err().message.contains("has left the run"));
    }
}
