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

/// Bytes of a vote's counts. The coordinator keeps them, and sends them to every worker of the group.
const LONGEST_COUNTS: usize = 4 << 10;

/// What workers with votes for these reasons do next: the same for every order of the votes. An epoch is over once all
/// workers came to end it; until then, those who did come again. `None` when the workers are not at the same point of their
/// runs, and for no votes.
#[must_use]
pub fn decide(reasons: &[BarrierReason]) -> Option<BarrierDecision> {
    let anyone = |reason| reasons.contains(&reason);
    if reasons.is_empty() || anyone(BarrierReason::Unspecified) {
        return None;
    }
    if anyone(BarrierReason::Stop) {
        return Some(BarrierDecision::Stop);
    }
    match (anyone(BarrierReason::Ready), anyone(BarrierReason::Checkpoint)) {
        (true, _) if reasons.iter().all(|reason| *reason == BarrierReason::Ready) => Some(BarrierDecision::Continue),
        (true, _) => None,
        (false, true) => Some(BarrierDecision::Checkpoint),
        (false, false) => Some(BarrierDecision::EpochOver),
    }
}

/// A worker of the group, as the members know it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Voter {
    pub(crate) index: u32,
    pub(crate) presence: Presence,
}

/// Whether a worker can still vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It may vote at any time. In words: when it was last heard.
    Expected(String),
    /// It has left the run, which goes on without it.
    Left,
    /// It never votes. In words: why.
    Gone(String),
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
    /// Takes the request of the worker with this `index`, and answers what is known of its ballot. `voters` are the workers
    /// of the group of this `generation`; a worker may be silent for `timeout`.
    ///
    /// # Errors
    /// `Invalid` for a ballot that is not the group's newest, the one before it or the next one, and for a malformed vote.
    pub(crate) fn take(
        &mut self,
        (now, timeout): (Duration, Duration),
        (generation, voters): (u64, &[Voter]),
        index: u32,
        request: &BarrierRequest,
    ) -> Result<BarrierResponse, Refusal> {
        check_vote(index, request.vote.as_ref())?;
        if self.group != generation {
            *self = Self { group: generation, ..Self::default() };
        }
        let ballot = self.ballot(index, request.ballot, voters.len())?;
        if let BallotState::Open(open) = &mut ballot.state {
            let rank = voters.iter().position(|voter| voter.index == index).unwrap_or_default();
            open.take(now, rank, request.vote.as_ref());
            if let Some(closed) = open.close((now, timeout), request.ballot, voters) {
                ballot.state = closed;
            }
        }
        Ok(BarrierResponse { state: Some(ballot.state.on_wire(voters)) })
    }

    /// The coordinator itself stood still for `gap` and could hear no worker.
    pub(crate) fn extend(&mut self, gap: Duration) {
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
            return Ok(self.newest.insert(Ballot { number, state: BallotState::Open(OpenBallot::of(world)) }));
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
    fn of(world: usize) -> Self {
        Self { first_vote: None, votes: vec![None; world], on_the_way: vec![None; world] }
    }

    /// The first vote of a worker stays: whoever did not hear the answer sends it again.
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

    /// What this ballot is now, where it is open no more.
    fn close(&self, (now, timeout): (Duration, Duration), number: u64, voters: &[Voter]) -> Option<BallotState> {
        let first_vote = self.first_vote?;
        let missing: Vec<&Voter> = self.missing(voters).collect();
        if missing.is_empty() {
            return Some(self.count(voters));
        }
        let lost: Vec<String> = missing.iter().filter_map(|voter| voter.loss()).collect();
        let silence =
            |voter: &Voter| now.saturating_sub(self.heard(voter, voters).map_or(first_vote, |at| at.max(first_vote)));
        let late: Vec<String> =
            missing.iter().filter(|voter| silence(voter) > timeout).filter_map(|voter| voter.lateness()).collect();
        let why = if lost.is_empty() { late } else { lost };
        if why.is_empty() {
            return None;
        }
        let waited = now.saturating_sub(first_vote);
        let reason = format!("barrier {number} of the process group waited {waited:.1?}, and {}", why.join(", "));
        let workers = missing.iter().map(|voter| voter.index).collect();
        Some(BallotState::Failed(BarrierFailure { workers, reason }))
    }

    /// Workers that have not voted and have not left the run.
    fn missing<'a>(&'a self, voters: &'a [Voter]) -> impl Iterator<Item = &'a Voter> {
        let all = voters.iter().enumerate();
        let missing = all.filter(|(rank, voter)| self.vote(*rank).is_none() && voter.presence != Presence::Left);
        missing.map(|(_, voter)| voter)
    }

    fn vote(&self, rank: usize) -> Option<&BarrierVote> {
        self.votes.get(rank).and_then(Option::as_ref)
    }

    fn heard(&self, voter: &Voter, voters: &[Voter]) -> Option<Duration> {
        let rank = voters.iter().position(|other| other.index == voter.index)?;
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
        match decide(&reasons) {
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
                let waiting_for: Vec<String> = open.missing(voters).map(Voter::name).collect();
                State::Wait(BarrierWait { waiting_for: waiting_for.join(", ") })
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

    fn loss(&self) -> Option<String> {
        match &self.presence {
            Presence::Gone(why) => Some(format!("{} {why}", self.name())),
            Presence::Expected(_) | Presence::Left => None,
        }
    }

    fn lateness(&self) -> Option<String> {
        match &self.presence {
            Presence::Expected(heard) => Some(format!("{} did not come ({heard})", self.name())),
            Presence::Gone(_) | Presence::Left => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_ends_once_all_came_to_end_it_and_whoever_stops_has_all_stop() {
        use BarrierReason::{Checkpoint, EpochEnd, Ready, Stop, Unspecified};
        assert_eq!(decide(&[EpochEnd; 3]), Some(BarrierDecision::EpochOver));
        assert_eq!(decide(&[EpochEnd, Checkpoint, EpochEnd]), Some(BarrierDecision::Checkpoint));
        assert_eq!(decide(&[Checkpoint, Stop, EpochEnd]), Some(BarrierDecision::Stop));
        assert_eq!([decide(&[Ready; 2]), decide(&[Ready, Stop])].map(Option::unwrap), {
            [BarrierDecision::Continue, BarrierDecision::Stop]
        });
        for nonsense in [&[Ready, EpochEnd][..], &[Checkpoint, Ready], &[EpochEnd, Unspecified], &[]] {
            assert_eq!(decide(nonsense), None, "{nonsense:?}");
        }
    }
}
