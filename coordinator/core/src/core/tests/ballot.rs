//! Votes at barriers: each worker by value (invariant AS-1).

use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    BarrierDecision, BarrierFailure, BarrierReason, BarrierRequest, BarrierVote, CountedVote,
};

use super::reports::ask_to_end;
use super::*;

/// One server, and so many workers in the first process group.
fn group_of(workers: u32) -> (Core, Vec<JoinResponse>) {
    let (mut core, members) = training(workers, workers, workers);
    for member in &members[1..] {
        assert_eq!(core.group(time(0), &ask_after(member, 0)).unwrap().generation, 1);
    }
    (core, members)
}

fn replace(core: &mut Core, index: u32) -> JoinResponse {
    core.join(time(2), &JoinRequest { supersede: true, ..reachable(index, 2) }).unwrap()
}

fn vote(reason: BarrierReason, counts: &'static str) -> BarrierVote {
    BarrierVote { reason: reason.into(), called: 3, counts: counts.to_owned() }
}

fn ask(member: &JoinResponse, ballot: u64, vote: Option<BarrierVote>) -> BarrierRequest {
    BarrierRequest { member: member.member, incarnation: member.incarnation, group: 1, ballot, vote }
}

/// Votes for a reason at ballot 1.
fn comes(core: &mut Core, seconds: u64, member: &JoinResponse, reason: BarrierReason) -> State {
    comes_to(core, seconds, member, 1, reason)
}

fn comes_to(core: &mut Core, seconds: u64, member: &JoinResponse, ballot: u64, reason: BarrierReason) -> State {
    let request = ask(member, ballot, Some(vote(reason, "")));
    core.barrier(time(seconds), &request).unwrap().state.unwrap()
}

fn decision(state: &State) -> Option<BarrierDecision> {
    if let State::Result(result) = state { Some(result.decision()) } else { None }
}

fn failure(state: State) -> BarrierFailure {
    if let State::Failure(failure) = state { failure } else { panic!("no failure: {state:?}") }
}

fn waits_for(state: State) -> String {
    if let State::Wait(wait) = state { wait.waiting_for } else { panic!("no wait: {state:?}") }
}

#[test]
fn a_barrier_waits_for_all_and_tells_each_the_same_however_often_it_asks() {
    let (mut core, workers) = group_of(3);
    let first = ask(&workers[0], 1, Some(vote(BarrierReason::EpochEnd, "first")));
    assert_eq!(waits_for(core.barrier(time(1), &first).unwrap().state.unwrap()), "dense worker 1, dense worker 2");
    // The answer was lost, and the counts are of later. The first vote stays.
    let again = ask(&workers[0], 1, Some(vote(BarrierReason::Stop, "later")));
    assert_eq!(waits_for(core.barrier(time(2), &again).unwrap().state.unwrap()), "dense worker 1, dense worker 2");
    assert_eq!(waits_for(comes(&mut core, 2, &workers[2], BarrierReason::EpochEnd)), "dense worker 1");
    let last = comes(&mut core, 3, &workers[1], BarrierReason::Checkpoint);
    assert_eq!(decision(&last), Some(BarrierDecision::Checkpoint));
    let State::Result(result) = &last else { unreachable!() };
    let counted = CountedVote { worker: 0, vote: Some(vote(BarrierReason::EpochEnd, "first")) };
    assert_eq!((&result.votes[0], result.votes.len()), (&counted, 3));
    for worker in &workers {
        assert_eq!(comes(&mut core, 4, worker, BarrierReason::Ready), last);
    }
}

#[test]
fn a_worker_that_missed_an_answer_gets_it_after_the_others_have_gone_on() {
    let (mut core, workers) = group_of(2);
    comes(&mut core, 1, &workers[0], BarrierReason::EpochEnd);
    let second = comes(&mut core, 1, &workers[1], BarrierReason::EpochEnd);
    // Worker 0 has heard; the answer to worker 1 was lost.
    assert_eq!(comes(&mut core, 2, &workers[0], BarrierReason::EpochEnd), second);
    assert_eq!(waits_for(comes_to(&mut core, 3, &workers[0], 2, BarrierReason::Ready)), "dense worker 1");
    assert_eq!(comes(&mut core, 4, &workers[1], BarrierReason::EpochEnd), second);
    let next = comes_to(&mut core, 5, &workers[1], 2, BarrierReason::Ready);
    assert_eq!(decision(&next), Some(BarrierDecision::Continue));
    let mut refused = |ballot| core.barrier(time(5), &ask(&workers[0], ballot, None)).unwrap_err();
    for ballot in [0, 4] {
        let refusal = refused(ballot);
        assert_eq!(refusal.kind, RefusalKind::Invalid);
        assert!(refusal.message.contains(&format!("asks for ballot {ballot}")), "{refusal}");
    }
}

#[test]
fn a_worker_that_does_not_come_in_time_is_named_to_all_and_the_failure_stays() {
    let (mut core, workers) = group_of(3);
    for seconds in (1..29).step_by(5) {
        workers.iter().for_each(|worker| drop(beat(&mut core, seconds, worker).unwrap()));
        comes(&mut core, seconds, &workers[0], BarrierReason::Checkpoint);
    }
    workers.iter().for_each(|worker| drop(beat(&mut core, 31, worker).unwrap()));
    assert_eq!(waits_for(comes(&mut core, 31, &workers[1], BarrierReason::Checkpoint)), "dense worker 2");
    let found = failure(comes(&mut core, 32, &workers[0], BarrierReason::Checkpoint));
    assert_eq!(found.workers, [2]);
    let reason =
        "barrier 1 of the process group waited 31.0s, and dense worker 2 did not come (it was last heard 1.0s ago)";
    assert_eq!(found.reason, reason);
    // It comes after all, too late: all learn the same.
    assert_eq!(failure(comes(&mut core, 33, &workers[2], BarrierReason::Checkpoint)), found);
    assert_eq!(failure(comes(&mut core, 33, &workers[1], BarrierReason::Checkpoint)), found);
}

/// Two incarnations vote: the older is fenced, and the newer is in no group that the others are in.
#[test]
fn a_process_that_replaced_a_worker_does_not_vote_in_its_place() {
    let (mut core, workers) = group_of(2);
    comes(&mut core, 1, &workers[0], BarrierReason::EpochEnd);
    let replacement = replace(&mut core, 1);
    assert_eq!(replacement.incarnation, 2);
    let older = core.barrier(time(3), &ask(&workers[1], 1, Some(vote(BarrierReason::EpochEnd, "")))).unwrap_err();
    assert_eq!(older.kind, RefusalKind::Fenced);
    let newer = core.barrier(time(3), &ask(&replacement, 1, Some(vote(BarrierReason::EpochEnd, "")))).unwrap_err();
    assert_eq!(newer.kind, RefusalKind::Invalid);
    assert!(newer.message.starts_with("dense worker 1 (incarnation 2) votes in the process group"), "{newer}");
    // It will never come: no worker waits for the timeout.
    let found = failure(comes(&mut core, 3, &workers[0], BarrierReason::EpochEnd));
    assert_eq!(found.workers, [1]);
    assert!(found.reason.ends_with("dense worker 1 was replaced by another process, which is not in this group"));
}

#[test]
fn a_worker_that_has_finished_is_not_waited_for() {
    let (mut core, workers) = group_of(2);
    comes(&mut core, 1, &workers[0], BarrierReason::Ready);
    leave(&mut core, &workers[1], Outcome::Finished, "").unwrap();
    let decided = comes(&mut core, 2, &workers[0], BarrierReason::Ready);
    assert_eq!(decision(&decided), Some(BarrierDecision::Continue));
}

#[test]
fn workers_at_different_points_of_their_runs_learn_so() {
    let (mut core, workers) = group_of(2);
    comes(&mut core, 1, &workers[0], BarrierReason::Ready);
    let found = failure(comes(&mut core, 1, &workers[1], BarrierReason::EpochEnd));
    assert!(found.reason.contains("different points of the run: [Ready, EpochEnd]"), "{}", found.reason);
}

#[test]
fn a_vote_without_a_reason_or_with_many_bytes_and_one_after_the_end_change_nothing() {
    let (mut core, workers) = group_of(2);
    let mut refused = |vote| core.barrier(time(1), &ask(&workers[0], 1, Some(vote))).unwrap_err();
    let long = BarrierVote { counts: "0".repeat(4097), ..vote(BarrierReason::Ready, "") };
    assert_eq!(refused(long).message, "the vote of dense worker 0 has 4097 bytes of counts, at most 4096");
    assert_eq!(refused(BarrierVote::default()).message, "dense worker 0 votes without a reason");
    core.end_run(time(2), RunOutcome::Interrupted("ctrl-c".to_owned()));
    let refusal = core.barrier(time(2), &ask(&workers[0], 1, None)).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Fenced);
    assert_eq!(refusal.message.as_str(), "the run is over (run interrupted: ctrl-c)");
}

/// A coordinator that stood still could hear no worker, so no worker is late for it.
#[test]
fn time_in_which_the_coordinator_stood_still_is_no_lateness() {
    let (mut core, workers) = group_of(2);
    comes(&mut core, 1, &workers[0], BarrierReason::Ready);
    assert_eq!(waits_for(comes(&mut core, 90, &workers[0], BarrierReason::Ready)), "dense worker 1");
}

/// One server, and three asynchronous workers of which one may leave.
fn of_three() -> (Core, Vec<JoinResponse>) {
    let (mut core, workers) = group_of(3);
    (core.config.asynchronous, core.config.min_workers) = (true, 2);
    (core, workers)
}

/// Who is in the next group, as far as there is one.
fn next_group(core: &mut Core, seconds: u64, member: &JoinResponse) -> Vec<u32> {
    core.group(time(seconds), &ask_after(member, 1)).unwrap().workers
}

/// Invariant RK-4 of asynchronous workers.
#[test]
fn a_worker_that_leaves_is_counted_by_all_and_in_no_group_after_that() {
    let (mut core, workers) = of_three();
    let early = core.barrier(time(1), &ask(&workers[2], 1, Some(vote(BarrierReason::Leave, "")))).unwrap_err();
    assert!(early.message.ends_with("votes to leave, and the run does not go on without it"), "{early}");
    assert!(ask_to_end(&mut core, 1, &workers[2]).leave);
    comes(&mut core, 2, &workers[0], BarrierReason::Checkpoint);
    let leaves = ask(&workers[2], 1, Some(vote(BarrierReason::Leave, "its counts")));
    assert_eq!(waits_for(core.barrier(time(2), &leaves).unwrap().state.unwrap()), "dense worker 1");
    let decided = comes(&mut core, 3, &workers[1], BarrierReason::EpochEnd);
    assert_eq!(decision(&decided), Some(BarrierDecision::Regroup));
    // The others have their next group while its process is still there, and before all have heard.
    assert_eq!(next_group(&mut core, 4, &workers[1]), [0, 1]);
    let missed = comes(&mut core, 4, &workers[0], BarrierReason::Checkpoint);
    assert_eq!(missed, decided, "the counts of the one that leaves are lost");
    let again = core.barrier(time(5), &leaves).unwrap().state.unwrap();
    assert_eq!(decision(&again), Some(BarrierDecision::Regroup));
    assert_eq!(core.group(time(5), &ask_after(&workers[2], 1)).unwrap_err().kind, RefusalKind::Invalid);
    leave(&mut core, &workers[2], Outcome::Interrupted, "was asked to end").unwrap();
    assert_eq!((next_group(&mut core, 6, &workers[0]), core.outcome()), (vec![0, 1], None));
    // Another ballot of the group before waits for no worker, and has no counts of a worker that left.
    assert!(matches!(comes_to(&mut core, 6, &workers[0], 2, BarrierReason::Ready), State::Failure(_)));
}

/// Three workers, of which the last one was counted at a barrier as leaving.
fn without_third() -> (Core, Vec<JoinResponse>) {
    let (mut core, workers) = of_three();
    assert!(ask_to_end(&mut core, 1, &workers[2]).leave);
    for (worker, reason) in [(2, BarrierReason::Leave), (0, BarrierReason::Checkpoint), (1, BarrierReason::Checkpoint)]
    {
        comes(&mut core, 1, &workers[worker], reason);
    }
    (core, workers)
}

#[test]
fn a_worker_that_is_lost_after_it_was_counted_is_not_waited_for() {
    let (mut core, workers) = without_third();
    hear(&mut core, (2..=14).step_by(2), &[&workers[0], &workers[1]]);
    assert_eq!(core.status(time(14)).members[3].state, "given up");
    assert_eq!((next_group(&mut core, 14, &workers[0]), core.outcome()), (vec![0, 1], None));
}

#[test]
fn a_run_that_drains_waits_for_those_that_stay_when_one_that_was_counted_leaves() {
    let (mut core, workers) = without_third();
    core.drain_run(time(2), "a member was asked to end");
    leave(&mut core, &workers[2], Outcome::Interrupted, "was asked to end").unwrap();
    assert_eq!(core.outcome(), None, "the others have not made their checkpoint");
}
