//! Votes at barriers under 2,000 random runs of one to four workers: votes, repeated requests, lost answers, workers on their
//! way, silent workers, replacements, restarts of the coordinator.
//!
//! In every run these hold. All workers that get a final answer of a ballot get the same one. A decision comes after every
//! worker has voted or left, and it is the function of the votes ([`decide_barrier`]). A failure names workers that have not
//! voted, and none that said in time that it is on its way. No worker waits for a silent one longer than the timeout.
//!
//! Workers that leave (RK-4) are in `src/core/tests/ballot.rs`, and in the simulation of the whole run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use zagros_coordinator_core::{Core, CoreConfig, MemberSlot, SplitOrder, decide_barrier};
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    BarrierReason, BarrierRequest, BarrierVote, DataFile, GroupRequest, HeartbeatRequest, JoinRequest, JoinResponse,
};
use zagros_zip::number_from;

use super::recorded::{core_config, join_request};

const TIMEOUT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_secs(1);

/// What happens. `usize` picks the worker, modulo their number.
#[derive(Clone, Copy, Debug)]
enum BallotAction {
    /// A worker votes at its next ballot. Where the answer is lost it does not learn of it.
    Vote {
        worker: usize,
        reason: usize,
        answer_lost: bool,
    },
    /// A worker says that it is on its way, so many times, five seconds apart.
    OnTheWay {
        worker: usize,
        times: u8,
    },
    /// A worker is gone, and another process takes its slot.
    Replace(usize),
    /// A worker is heard no more.
    Mute(usize),
    Wait(u8),
    /// The coordinator's process is replaced by one that has its state.
    Restart,
}

fn actions() -> impl Strategy<Value = Vec<BallotAction>> {
    let worker = 0_usize..8;
    let vote = (worker.clone(), 0_usize..8, any::<bool>());
    let action = prop_oneof![
        12 => vote.prop_map(|(worker, reason, answer_lost)| BallotAction::Vote { worker, reason, answer_lost }),
        3 => (worker.clone(), 1_u8..9).prop_map(|(worker, times)| BallotAction::OnTheWay { worker, times }),
        1 => worker.clone().prop_map(BallotAction::Replace),
        1 => worker.prop_map(BallotAction::Mute),
        3 => (1_u8..8).prop_map(BallotAction::Wait),
        1 => Just(BallotAction::Restart),
    ];
    prop::collection::vec(action, 0..120)
}

/// A worker of the group as it sees itself.
struct VotingWorker {
    joined: JoinResponse,
    ballot: u64,
    is_muted: bool,
    /// The group is over for it.
    is_done: bool,
}

#[derive(Default)]
struct SentVotes {
    first: Option<Duration>,
    reasons: BTreeMap<u32, BarrierReason>,
    on_the_way: BTreeMap<u32, Duration>,
}

struct VotingRun {
    core: Core,
    now: Duration,
    workers: Vec<VotingWorker>,
    sent: BTreeMap<u64, SentVotes>,
    finals: BTreeMap<u64, State>,
    /// Workers that were replaced, and the processes in their slots.
    gone: BTreeSet<u32>,
    /// And the embedding server.
    replacements: Vec<JoinResponse>,
    instances: u64,
}

impl VotingRun {
    fn new(workers: u32) -> Self {
        let config = CoreConfig {
            epochs: 1,
            order: SplitOrder::AsInFiles,
            asynchronous: true,
            timeout: TIMEOUT,
            ..core_config(1, workers)
        };
        let mut run = Self {
            core: Core::new(config),
            now: Duration::ZERO,
            workers: Vec::new(),
            sent: BTreeMap::new(),
            finals: BTreeMap::new(),
            gone: BTreeSet::new(),
            replacements: Vec::new(),
            instances: 0,
        };
        let server = run.join(MemberSlot::server(0));
        run.replacements.push(server);
        for index in 0..workers {
            let joined = run.join(MemberSlot::worker(index));
            run.workers.push(VotingWorker { joined, ballot: 1, is_muted: false, is_done: false });
        }
        for worker in &run.workers {
            let JoinResponse { member, incarnation, .. } = worker.joined;
            let group = run.core.group(run.now, &GroupRequest { member, incarnation, after: 0 }).expect("a group");
            assert_eq!(group.generation, 1);
        }
        run
    }

    fn join(&mut self, slot: MemberSlot) -> JoinResponse {
        self.instances += 1;
        let file = DataFile { path: "train".to_owned(), bytes: 9, splittable: true, fingerprint: 0 };
        let request = JoinRequest { supersede: true, ..join_request(slot, self.instances, vec![file]) };
        self.core.join(self.now, &request).expect("a worker joins")
    }

    fn play(&mut self, action: BallotAction) {
        let count = self.workers.len();
        match action {
            BallotAction::Vote { worker, reason, answer_lost } => self.vote(worker % count, reason, answer_lost),
            BallotAction::OnTheWay { worker, times } => (0..times).for_each(|_| {
                self.ask(worker % count, None, true);
                (0..5).for_each(|_| self.pass());
            }),
            BallotAction::Replace(worker) => {
                let index = (worker % count) as u32;
                if self.core.outcome().is_none() && self.gone.insert(index) {
                    let joined = self.join(MemberSlot::worker(index));
                    self.replacements.push(joined);
                }
            }
            BallotAction::Mute(worker) => self.workers[worker % count].is_muted = true,
            BallotAction::Restart => {
                let state = postcard::to_allocvec(&self.core).expect("a state can be written");
                self.core = postcard::from_bytes(&state).expect("a state can be read");
                self.core.recover(self.now);
            }
            BallotAction::Wait(seconds) => (0..seconds).for_each(|_| self.pass()),
        }
        self.pass();
    }

    fn pass(&mut self) {
        self.now += STEP;
        let is_heard = |(index, worker): &(u32, &VotingWorker)| !worker.is_muted && !self.gone.contains(index);
        let heard = number_from(0, &self.workers).filter(is_heard).map(|(_, worker)| &worker.joined);
        for JoinResponse { member, incarnation, .. } in heard.chain(&self.replacements) {
            let beat = HeartbeatRequest { member: *member, incarnation: *incarnation, ..HeartbeatRequest::default() };
            self.core.heartbeat(self.now, &beat).expect("a member is heard");
        }
        self.core.tick(self.now);
    }

    /// Ballots 1, 3, … are of what all do together, the others of epochs and checkpoints.
    fn vote(&mut self, worker: usize, reason: usize, answer_lost: bool) {
        let ballot = self.workers[worker].ballot;
        let reason = match (ballot % 2 == 1, reason) {
            (_, 0) => BarrierReason::Stop,
            (true, _) => BarrierReason::Ready,
            (false, 1..=3) => BarrierReason::Checkpoint,
            (false, _) => BarrierReason::EpochEnd,
        };
        let vote = BarrierVote { reason: reason.into(), called: ballot, counts: worker.to_string() };
        self.ask(worker, Some(vote), answer_lost);
    }

    fn ask(&mut self, worker: usize, vote: Option<BarrierVote>, answer_lost: bool) {
        let index = worker as u32;
        let VotingWorker { joined, ballot, is_muted, is_done } = &self.workers[worker];
        if *is_muted || *is_done || self.gone.contains(&index) || self.core.outcome().is_some() {
            return;
        }
        let (ballot, JoinResponse { member, incarnation, .. }) = (*ballot, *joined);
        let request = BarrierRequest { member, incarnation, group: 1, ballot, vote: vote.clone() };
        if !self.finals.contains_key(&ballot) {
            let sent = self.sent.entry(ballot).or_default();
            match vote {
                Some(vote) => {
                    sent.reasons.entry(index).or_insert(vote.reason());
                    sent.first.get_or_insert(self.now);
                }
                None => drop(sent.on_the_way.insert(index, self.now)),
            }
        }
        let state = match self.core.barrier(self.now, &request) {
            Ok(answer) => answer.state.expect("a state"),
            Err(refusal) => {
                assert!(self.core.outcome().is_some(), "{refusal}");
                return;
            }
        };
        self.check(ballot, &state);
        let worker = &mut self.workers[worker];
        match state {
            State::Result(_) if !answer_lost => worker.ballot = ballot + 1,
            State::Failure(_) => worker.is_done = true,
            State::Result(_) | State::Wait(_) => {}
        }
    }

    fn check(&mut self, ballot: u64, state: &State) {
        let sent = &self.sent[&ballot];
        let all = 0..self.workers.len() as u32;
        let missing: Vec<u32> = all.filter(|index| !sent.reasons.contains_key(index)).collect();
        let heard = |index: &u32| sent.on_the_way.get(index).copied().max(sent.first);
        let is_late = |index: &u32| heard(index).is_some_and(|heard| self.now - heard > TIMEOUT);
        match state {
            State::Wait(wait) => {
                assert!(!self.finals.contains_key(&ballot) && !missing.is_empty());
                missing.iter().for_each(|index| assert!(wait.waiting_for.contains(&format!("dense worker {index}"))));
                if sent.first.is_some() {
                    assert!(!missing.iter().any(is_late), "{missing:?} are late for ballot {ballot}");
                    let is_gone = missing.iter().any(|index| self.gone.contains(index));
                    assert!(!is_gone, "a process that is gone is waited for");
                }
            }
            State::Result(result) => {
                assert!(missing.is_empty(), "ballot {ballot} is decided without {missing:?}");
                let reasons: Vec<BarrierReason> = sent.reasons.values().copied().collect();
                assert_eq!(decide_barrier(&reasons), Some(result.decision()));
                let counts: Vec<u32> = result
                    .votes
                    .iter()
                    .map(|counted| counted.vote.as_ref().expect("a vote").counts.parse().expect("a number"))
                    .collect();
                assert_eq!(counts, result.votes.iter().map(|counted| counted.worker).collect::<Vec<_>>());
            }
            State::Failure(failure) => {
                assert_eq!(failure.workers, missing, "{failure:?}");
                let is_new = !self.finals.contains_key(&ballot);
                let is_cause = |index: &u32| is_late(index) || self.gone.contains(index);
                assert!(!is_new || missing.iter().any(is_cause), "no worker is late: {failure:?}");
                assert!(missing.iter().any(|index| failure.reason.contains(&format!("dense worker {index}"))));
            }
        }
        if !matches!(state, State::Wait(_)) {
            assert_eq!(self.finals.entry(ballot).or_insert_with(|| state.clone()), state, "two answers of one ballot");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_worker_learns_the_same_decision_and_nobody_waits_for_ever(
        actions in actions(),
        workers in 1_u32..5,
    ) {
        let mut run = VotingRun::new(workers);
        for action in actions {
            run.play(action);
        }
    }
}
