//! Ballots: the votes of all workers of a process group at one barrier, and what follows from them (invariant AS-1).
//!
//! A worker repeats its request until the answer is final, so each request may come twice and late. A ballot is decided once
//! every worker has voted or has left the run. It fails once a worker can come no more, or is late. Both are final, so all
//! workers learn the same.
//!
//! ```text
//!          the last vote
//!   Open ────────────────► Decided
//!    └───────────────────► Failed
//!          a worker is late or gone for good
//! ```
//!
//! A worker is late when it is silent for the job's timeout: since the first vote, or since it last said that it is on its way.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::Refusal;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    BarrierDecision, BarrierFailure, BarrierReason, BarrierRequest, BarrierResponse, BarrierResult, BarrierVote,
    BarrierWait, CountedVote,
};

use crate::MemberSlot;
use crate::members::MemberState;

/// Bytes of a vote's counts. The coordinator keeps them, and sends them to every worker of the group.
const LONGEST_COUNTS: usize = 4 << 10;

/// What workers with votes for these reasons do next: the same for every order of the votes. An epoch is over once all
/// workers came to end it; until then, those who did come again. `None` when the workers are not at the same point of their
/// runs, and for no votes. A checkpoint that was due when a worker leaves comes when the next one does.
pub fn decide_barrier(reasons: &[BarrierReason]) -> Option<BarrierDecision> {
    let anyone = |reason| reasons.contains(&reason);
    if reasons.is_empty() || anyone(BarrierReason::Unspecified) {
        return None;
    }
    if anyone(BarrierReason::Stop) {
        return Some(BarrierDecision::Stop);
    }
    for alone in [BarrierReason::Ready, BarrierReason::Saved] {
        if anyone(alone) {
            return reasons.iter().all(|reason| *reason == alone).then_some(BarrierDecision::Continue);
        }
    }
    if anyone(BarrierReason::Leave) {
        return Some(BarrierDecision::Regroup);
    }
    Some(if anyone(BarrierReason::Checkpoint) { BarrierDecision::Checkpoint } else { BarrierDecision::EpochOver })
}

/// Whether a request and its answer say that the first worker has saved what the run leaves: all have voted so.
pub(crate) fn says_saved(request: &BarrierRequest, response: &BarrierResponse) -> bool {
    let votes_so = request.vote.as_ref().is_some_and(|vote| vote.reason() == BarrierReason::Saved);
    let Some(State::Result(result)) = &response.state else { return false };
    votes_so && result.decision() == BarrierDecision::Continue
}

/// Indices of the workers that leave by this answer: they have voted so, and the others have counted what they have done.
pub(crate) fn leavers(response: &BarrierResponse) -> impl Iterator<Item = u32> {
    let result = match &response.state {
        Some(State::Result(result)) if result.decision() == BarrierDecision::Regroup => Some(result),
        _ => None,
    };
    let leaves = |vote: &BarrierVote| vote.reason() == BarrierReason::Leave;
    let votes = result.into_iter().flat_map(|result| &result.votes);
    votes.filter(move |counted| counted.vote.as_ref().is_some_and(leaves)).map(|counted| counted.worker)
}

/// The answer to a worker that leaves and has not heard that it may. What the others have done is nothing to it.
pub(crate) fn may_leave() -> BarrierResponse {
    let result = BarrierResult { decision: BarrierDecision::Regroup.into(), votes: Vec::new() };
    BarrierResponse { state: Some(State::Result(result)) }
}

/// Workers that an answer names of those that have not voted.
const NAMED: usize = 8;

/// A worker of the group, as the members know it now. Each request looks at all voters, so a voter has no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Voter {
    pub(crate) index: u32,
    /// `None` if another process has taken its place.
    pub(crate) state: Option<MemberState>,
    /// Since its last heartbeat.
    pub(crate) silence: Duration,
}

/// The ballots of the newest process group that has voted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ballots {
    group: u64,
    /// The newest ballot, and the one before it: a worker that did not hear its result asks for that one.
    newest: Option<Ballot>,
    before: Option<Ballot>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Ballot {
    number: u64,
    state: BallotState,
}

#[derive(Debug, Serialize, Deserialize)]
enum BallotState {
    Open(OpenBallot),
    Decided(BarrierResult),
    Failed(BarrierFailure),
}

/// The votes so far. Workers are in the order of the group.
#[derive(Debug, Serialize, Deserialize)]
struct OpenBallot {
    first_vote: Option<Duration>,
    votes: Vec<Option<BarrierVote>>,
    /// When each worker last said that it is on its way.
    on_the_way: Vec<Option<Duration>>,
}

impl Ballots {
    /// `voters` are the workers of the group of this `generation`, by rank; a worker may be silent for `timeout`.
    pub(crate) fn take_request(
        &mut self,
        (now, timeout): (Duration, Duration),
        (generation, voters): (u64, &[Voter]),
        rank: usize,
        request: &BarrierRequest,
    ) -> Result<BarrierResponse, Refusal> {
        let index = voters.get(rank).map_or(0, |voter| voter.index);
        check_vote(index, request.vote.as_ref())?;
        if self.group != generation {
            *self = Self { group: generation, ..Self::default() };
        }
        let ballot = self.ballot(index, request.ballot, voters.len())?;
        if let BallotState::Open(open) = &mut ballot.state {
            open.take(now, rank, request.vote.as_ref());
            if let Some(closed) = open.close((now, timeout), request.ballot, voters) {
                ballot.state = closed;
            }
        }
        Ok(BarrierResponse { state: Some(ballot.state.on_wire(voters)) })
    }

    /// The result of this ballot, where some of the workers leave by it. A worker that has missed it learns what these have done,
    /// also once the others have formed the next group: no other process says it again.
    pub(crate) fn regroup_result(&self, group: u64, number: u64) -> Option<BarrierResponse> {
        let newest = self.newest.as_ref().filter(|ballot| (self.group, ballot.number) == (group, number))?;
        match &newest.state {
            BallotState::Decided(result) if result.decision() == BarrierDecision::Regroup => {
                Some(BarrierResponse { state: Some(State::Result(result.clone())) })
            }
            _ => None,
        }
    }

    /// The coordinator itself stood still for `gap` and could hear no worker.
    pub(crate) fn extend_deadlines(&mut self, gap: Duration) {
        if let Some(Ballot { state: BallotState::Open(open), .. }) = &mut self.newest {
            open.first_vote.iter_mut().chain(open.on_the_way.iter_mut().flatten()).for_each(|heard| *heard += gap);
        }
    }

    /// The ballot of this number. A worker that asks for the one after a decided ballot opens it.
    fn ballot(&mut self, index: u32, number: u64, world: usize) -> Result<&mut Ballot, Refusal> {
        let (newest, is_decided) = match &self.newest {
            Some(ballot) => (ballot.number, matches!(ballot.state, BallotState::Decided(_))),
            None => (0, true),
        };
        if number == newest + 1 && is_decided {
            self.before = self.newest.take();
            return Ok(self.newest.insert(Ballot { number, state: BallotState::Open(OpenBallot::new(world)) }));
        }
        let kept = [&mut self.newest, &mut self.before].into_iter().flatten();
        kept.into_iter().find(|ballot| ballot.number == number).ok_or_else(|| {
            let slot = MemberSlot::worker(index);
            Refusal::invalid(format!(
                "{slot} asks for ballot {number} of its process group, and the newest is {newest}"
            ))
        })
    }
}

impl OpenBallot {
    fn new(world: usize) -> Self {
        Self { first_vote: None, votes: vec![None; world], on_the_way: vec![None; world] }
    }

    /// The first vote of a worker stays: a worker that did not hear the answer sends it again.
    fn take(&mut self, now: Duration, rank: usize, vote: Option<&BarrierVote>) {
        let (Some(known), Some(heard)) = (self.votes.get_mut(rank), self.on_the_way.get_mut(rank)) else { return };
        match vote {
            None => *heard = Some(now),
            Some(vote) => {
                known.get_or_insert_with(|| vote.clone());
                self.first_vote.get_or_insert(now);
            }
        }
    }

    fn close(&self, (now, timeout): (Duration, Duration), number: u64, voters: &[Voter]) -> Option<BallotState> {
        let first_vote = self.first_vote?;
        let is_late =
            |rank: usize| now.saturating_sub(self.heard(rank).map_or(first_vote, |at| at.max(first_vote))) > timeout;
        if self.missing(voters).next().is_none() {
            return Some(self.count(voters));
        }
        if !self.missing(voters).any(|(rank, voter)| voter.is_lost() || is_late(rank)) {
            return None;
        }
        // It fails: because of the workers that are lost, else of those that are late.
        let lost: Vec<String> = self.missing(voters).filter_map(|(_, voter)| voter.loss()).collect();
        let late = || self.missing(voters).filter(|(rank, _)| is_late(*rank)).filter_map(|(_, voter)| voter.lateness());
        let why = if lost.is_empty() { late().collect() } else { lost };
        let waited = now.saturating_sub(first_vote);
        let reason = format!("barrier {number} of the process group waited {waited:.1?}, and {}", why.join(", "));
        let workers = self.missing(voters).map(|(_, voter)| voter.index).collect();
        Some(BallotState::Failed(BarrierFailure { workers, reason }))
    }

    /// Workers that have not voted and have not left the run, with their ranks.
    fn missing<'a>(&'a self, voters: &'a [Voter]) -> impl Iterator<Item = (usize, &'a Voter)> {
        let all = voters.iter().enumerate();
        all.filter(|(rank, voter)| self.vote(*rank).is_none() && !voter.has_left())
    }

    fn vote(&self, rank: usize) -> Option<&BarrierVote> {
        self.votes.get(rank).and_then(Option::as_ref)
    }

    fn heard(&self, rank: usize) -> Option<Duration> {
        self.on_the_way.get(rank).copied().flatten()
    }

    fn count(&self, voters: &[Voter]) -> BallotState {
        let all = voters.iter().enumerate();
        let counted = |(rank, voter): (usize, &Voter)| {
            self.vote(rank).map(|vote| CountedVote { worker: voter.index, vote: Some(vote.clone()) })
        };
        let votes: Vec<CountedVote> = all.filter_map(counted).collect();
        let reasons: Vec<BarrierReason> =
            votes.iter().flat_map(|counted| &counted.vote).map(BarrierVote::reason).collect();
        match decide_barrier(&reasons) {
            Some(decision) => BallotState::Decided(BarrierResult { decision: decision.into(), votes }),
            None => BallotState::Failed(BarrierFailure {
                workers: Vec::new(),
                reason: format!(
                    "the workers are at different points of the run: {reasons:?}; this is a bug, please report it"
                ),
            }),
        }
    }
}

impl BallotState {
    fn on_wire(&self, voters: &[Voter]) -> State {
        match self {
            Self::Open(open) => {
                let mut missing = open.missing(voters).map(|(_, voter)| voter.name());
                let named: Vec<String> = missing.by_ref().take(NAMED).collect();
                let more = match missing.count() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                State::Wait(BarrierWait { waiting_for: format!("{}{more}", named.join(", ")) })
            }
            Self::Decided(result) => State::Result(result.clone()),
            Self::Failed(failure) => State::Failure(failure.clone()),
        }
    }
}

impl Voter {
    fn name(&self) -> String {
        MemberSlot::worker(self.index).to_string()
    }

    /// The run goes on without it.
    fn has_left(&self) -> bool {
        matches!(self.state, Some(MemberState::Left { finished: true } | MemberState::GivenUp | MemberState::Released))
    }

    /// Whether it never votes.
    fn is_lost(&self) -> bool {
        matches!(self.state, None | Some(MemberState::Left { finished: false } | MemberState::Lost))
    }

    fn loss(&self) -> Option<String> {
        let why = match self.state {
            None => "was replaced by another process, which is not in this group".to_owned(),
            Some(MemberState::Left { .. }) => "has left the run".to_owned(),
            Some(_) => format!("is lost: silent for {:.1?}", self.silence),
        };
        self.is_lost().then(|| format!("{} {why}", self.name()))
    }

    fn lateness(&self) -> Option<String> {
        let silence = self.silence;
        let heard = match self.state? {
            MemberState::Alive => format!("it was last heard {silence:.1?} ago"),
            // It votes if it is heard again.
            MemberState::Silent | MemberState::Away => format!("it is lost: silent for {silence:.1?}"),
            _ => return None,
        };
        Some(format!("{} did not come ({heard})", self.name()))
    }
}

fn check_vote(index: u32, vote: Option<&BarrierVote>) -> Result<(), Refusal> {
    let Some(vote) = vote else { return Ok(()) };
    let slot = MemberSlot::worker(index);
    if vote.counts.len() > LONGEST_COUNTS {
        let bytes = vote.counts.len();
        return Err(Refusal::invalid(format!(
            "the vote of {slot} has {bytes} bytes of counts, at most {LONGEST_COUNTS}"
        )));
    }
    match vote.reason() {
        BarrierReason::Unspecified => Err(Refusal::invalid(format!("{slot} votes without a reason"))),
        _ => Ok(()),
    }
}

/// The longest time from the request of a barrier to the barrier.
const LONGEST_NOTICE: Duration = Duration::from_secs(2);

/// When the newest barrier of asynchronous workers is, between two steps of each; number 0 before the first. A worker requests a barrier by its number, which is one more than that of
/// the newest. Any number of workers may therefore request the same barrier, and more than once.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BarrierSchedule {
    number: u64,
    at: Duration,
}

impl BarrierSchedule {
    /// Notes that a worker requests a barrier. A lease has three heartbeats. The barrier is two of them away, so every
    /// worker learns of the barrier before it happens.
    pub(crate) fn request_barrier(&mut self, now: Duration, number: u64, lease: Duration) {
        // A request that is ahead of all others would be the last one.
        if self.number.checked_add(1) == Some(number) {
            *self = Self { number, at: now + (lease * 2 / 3).min(LONGEST_NOTICE) };
        }
    }

    /// The number of the newest barrier, and in how many milliseconds it is.
    pub(crate) fn newest_barrier(self, now: Duration) -> (u64, u32) {
        let left = self.at.saturating_sub(now).as_millis();
        (self.number, u32::try_from(left).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_ends_once_all_came_to_end_it_and_whoever_stops_has_all_stop() {
        use BarrierReason::{Checkpoint, EpochEnd, Leave, Ready, Saved, Stop, Unspecified};
        for (reasons, decided) in [
            (&[EpochEnd; 3][..], Some(BarrierDecision::EpochOver)),
            (&[EpochEnd, Checkpoint, EpochEnd], Some(BarrierDecision::Checkpoint)),
            (&[Checkpoint, Stop, EpochEnd], Some(BarrierDecision::Stop)),
            (&[Ready; 2], Some(BarrierDecision::Continue)),
            (&[Ready, Stop], Some(BarrierDecision::Stop)),
            (&[Saved; 2], Some(BarrierDecision::Continue)),
            (&[Saved, Stop], Some(BarrierDecision::Stop)),
            (&[Checkpoint, Leave, EpochEnd], Some(BarrierDecision::Regroup)),
            (&[Leave, Stop], Some(BarrierDecision::Stop)),
            (&[Ready, EpochEnd], None),
            (&[Leave, Ready], None),
            (&[Saved, Leave], None),
            (&[Checkpoint, Ready], None),
            (&[Saved, Ready], None),
            (&[EpochEnd, Saved], None),
            (&[EpochEnd, Unspecified], None),
            (&[], None),
        ] {
            assert_eq!(decide_barrier(reasons), decided, "{reasons:?}");
        }
    }

    const LEASE: Duration = Duration::from_millis(900);

    fn time(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_barrier_is_two_heartbeats_away_and_a_second_request_does_not_delay_it() {
        let mut barriers = BarrierSchedule::default();
        barriers.request_barrier(time(5), 0, LEASE);
        assert_eq!(barriers.newest_barrier(time(5)), (0, 0));
        barriers.request_barrier(time(100), 1, LEASE);
        barriers.request_barrier(time(400), 1, LEASE);
        let found = [100, 400, 700, 900].map(|now| barriers.newest_barrier(time(now)));
        assert_eq!(found, [(1, 600), (1, 300), (1, 0), (1, 0)]);
        barriers.request_barrier(time(1000), 2, LEASE);
        assert_eq!(barriers.newest_barrier(time(1000)), (2, 600));
        // A worker that has not heard of the next barrier requests one that is over.
        barriers.request_barrier(time(1100), 1, LEASE);
        assert_eq!(barriers.newest_barrier(time(1100)), (2, 500));
    }

    /// No barrier could come after the last number.
    #[test]
    fn a_request_for_a_barrier_beyond_the_next_one_is_for_none() {
        let mut barriers = BarrierSchedule::default();
        for number in [2, 1 << 40, u64::MAX] {
            barriers.request_barrier(time(5), number, LEASE);
            assert_eq!(barriers.newest_barrier(time(5)), (0, 0));
        }
        barriers.request_barrier(time(5), 1, LEASE);
        assert_eq!(barriers.newest_barrier(time(5)), (1, 600));
    }
}
