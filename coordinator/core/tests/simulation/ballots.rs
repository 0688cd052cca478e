//! Votes at barriers under 2,000 random runs of one to four workers: votes, repeated requests, lost answers, workers on their
//! way, silent workers, replacements, restarts of the coordinator.
//!
//! In every run these hold. All workers that get a final answer of a ballot get the same one. A decision comes after every
//! worker has voted or left, and it is the function of the votes ([`decide_barrier`]). A failure names workers that have not
//! voted, and none that said in time that it is on its way. No worker waits for a silent one longer than the timeout. Once all
//! know that a worker leaves, the next group is without it, also while its process is still there (RK-4).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use zagros_coordinator_core::{Core, CoreConfig, MemberSlot, SplitOrder, decide_barrier};
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    BarrierDecision, BarrierReason, BarrierRequest, BarrierVote, DataFile, GroupRequest, HeartbeatRequest, JoinRequest,
    JoinResponse,
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
    /// The process of a worker is asked to end, and the run goes on without it.
    AskToEnd(usize),
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
        1 => worker.clone().prop_map(BallotAction::Mute),
        1 => worker.prop_map(BallotAction::AskToEnd),
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
    /// The run goes on without it.
    leaves: bool,
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
    /// Workers that leave by the last ballot of the group.
    left_by: BTreeSet<u32>,
    is_elastic: bool,
}

impl VotingRun {
    /// In an `elastic` run workers may leave, and none is silent: the coordinator does not wait for ever for one that is.
    fn new(workers: u32, elastic: bool) -> Self {
        let config = CoreConfig {
            min_workers: if elastic { 1 } else { workers },
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
            left_by: BTreeSet::new(),
            is_elastic: elastic,
        };
        let server = run.join(MemberSlot::server(0));
        run.replacements.push(server);
        for index in 0..workers {
            let joined = run.join(MemberSlot::worker(index));
            run.workers.push(VotingWorker { joined, ballot: 1, is_muted: false, is_done: false, leaves: false });
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
            BallotAction::Mute(worker) => self.workers[worker % count].is_muted = !self.is_elastic,
            BallotAction::AskToEnd(worker) => self.ask_to_end(worker % count),
            BallotAction::Restart => {
                let state = postcard::to_allocvec(&self.core).expect("a state can be written");
                self.core = postcard::from_bytes(&state).expect("a state can be read");
                self.core.recover(self.now);
            }
            BallotAction::Wait(seconds) => (0..seconds).for_each(|_| self.pass()),
        }
        self.pass();
    }

    /// Worker 0 stays, and no request ends the run.
    fn ask_to_end(&mut self, worker: usize) {
        let others = number_from(0, &self.workers).filter(|(index, other)| {
            *index != worker as u32 && !other.is_muted && !other.leaves && !self.gone.contains(index)
        });
        let is_spared = self.is_elastic && worker > 0 && others.count() > 0;
        let VotingWorker { joined, is_muted, .. } = &self.workers[worker];
        if !is_spared || *is_muted || self.gone.contains(&(worker as u32)) || self.core.outcome().is_some() {
            return;
        }
        let JoinResponse { member, incarnation, .. } = *joined;
        let request = HeartbeatRequest { member, incarnation, leaving: true, ..HeartbeatRequest::default() };
        let answer = self.core.heartbeat(self.now, &request).expect("a member is heard");
        assert!(answer.leave && answer.draining.is_empty(), "{answer:?}");
        self.workers[worker].leaves = true;
    }

    /// A worker that stays has heard that others leave.
    fn regroup(&mut self, worker: usize) {
        let JoinResponse { member, incarnation, .. } = self.workers[worker].joined;
        let group = self.core.group(self.now, &GroupRequest { member, incarnation, after: 1 }).expect("an answer");
        let leaves = |index: &u32| self.workers[*index as usize].leaves && !self.gone.contains(index);
        assert!(group.generation > 1 || !group.waiting_for.is_empty(), "{group:?}");
        assert!(!group.waiting_for.contains("give up"), "{group:?}");
        let leavers = self.left_by.iter().filter(|index| leaves(index));
        leavers.for_each(|index| assert!(!group.workers.contains(index), "{index} leaves: {group:?}"));
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
            (false, _) if self.workers[worker].leaves => BarrierReason::Leave,
            (false, 1..=3) => BarrierReason::Checkpoint,
            (false, _) => BarrierReason::EpochEnd,
        };
        let vote = BarrierVote { reason: reason.into(), called: ballot, counts: worker.to_string() };
        self.ask(worker, Some(vote), answer_lost);
    }

    fn ask(&mut self, worker: usize, vote: Option<BarrierVote>, answer_lost: bool) {
        let index = worker as u32;
        let VotingWorker { joined, ballot, is_muted, is_done, .. } = &self.workers[worker];
        if *is_muted || *is_done || self.gone.contains(&index) || self.core.outcome().is_some() {
            return;
        }
        let (ballot, JoinResponse { member, incarnation, .. }) = (*ballot, *joined);
        let request = BarrierRequest { member, incarnation, group: 1, ballot, vote: vote.clone() };
        let is_final_already = self.finals.contains_key(&ballot);
        if !is_final_already {
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
        let regroups = matches!(&state, State::Result(result) if result.decision() == BarrierDecision::Regroup);
        if regroups && is_final_already && self.left_by.contains(&index) {
            // What the others have done is nothing to it.
            self.workers[worker].is_done |= !answer_lost;
            return;
        }
        self.check(ballot, &state);
        if regroups {
            let leave = |(_, reason): &(&u32, &BarrierReason)| **reason == BarrierReason::Leave;
            self.left_by = self.sent[&ballot].reasons.iter().filter(leave).map(|(index, _)| *index).collect();
            if !answer_lost && !self.left_by.contains(&index) {
                self.regroup(worker);
            }
        }
        let worker = &mut self.workers[worker];
        match state {
            State::Result(_) if !answer_lost => (worker.ballot, worker.is_done) = (ballot + 1, regroups),
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
        elastic in any::<bool>(),
    ) {
        let mut run = VotingRun::new(workers, elastic);
        for action in actions {
            run.play(action);
        }
    }
}
