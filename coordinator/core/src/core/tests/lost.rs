//! Lost workers: one is replaced, returns, is given up, or is no longer needed.

use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{BarrierReason, BarrierRequest, BarrierVote, EpochDone};

use super::reports::ask_to_end;
use super::*;

fn trained(core: &mut Core, seconds: u64, worker: &JoinResponse) {
    let progress = Some(Progress { trained: true, ..Progress::default() });
    core.heartbeat(time(seconds), &HeartbeatRequest { progress, ..heartbeat(worker) }).unwrap();
}

#[test]
fn the_run_goes_on_without_a_lost_worker_while_enough_are_left() {
    let (mut core, workers) = training(3, 2, 3);
    let [first, second, _] = &workers[..] else { unreachable!() };
    hear(&mut core, (2..=40).step_by(2), &[first, second]);
    let answer = core.group(time(40), &ask_after(first, 1)).unwrap().waiting_for;
    assert_eq!(answer, "dense worker 2 is lost: silent for longer than its lease");
    hear(&mut core, [42], &[first, second]);
    let group = core.group(time(42), &ask_after(first, 1)).unwrap();
    assert_eq!((group.generation, group.rank, group.world, &group.workers[..]), (2, 0, 2, &[0, 1][..]));
    assert_eq!(core.status(time(42)).members[3].state, "given up");
    let given_up = RunEvent::WorkerGivenUp { slot: MemberSlot::worker(2), timeout: TIMEOUT, left: 2 };
    assert_eq!(core.take_events().last(), Some(&given_up));

    // With one worker less the run has too few.
    hear(&mut core, (44..=82).step_by(2), &[first]);
    let answer = beat(&mut core, 84, first).unwrap();
    assert!(answer.reason.contains("dense worker 1 is lost: silent for"), "{}", answer.reason);
    assert!(answer.reason.ends_with("; 1 workers are left, and `cluster.min_workers` is 2"), "{}", answer.reason);
}

/// Regression: a server with a half-applied push of a worker that was lost for good handed no bucket over, because the push could
/// still be repeated.
#[test]
fn a_worker_that_was_given_up_may_push_no_more_until_another_process_has_its_slot() {
    let (mut core, workers) = training(3, 2, 3);
    let [first, second, third] = &workers[..] else { unreachable!() };
    let of_third = |core: &mut Core, seconds: u64| {
        let writers = core.placement(time(seconds)).writers;
        writers.iter().find(|writer| writer.member == third.member).unwrap().incarnation
    };
    hear(&mut core, (2..=40).step_by(2), &[first, second]);
    assert_eq!(of_third(&mut core, 40), 1, "it is lost, and may return");
    hear(&mut core, [42], &[first, second]);
    assert_eq!(of_third(&mut core, 42), 2, "it is given up");
    let back = core.join(time(43), &reachable(2, 2)).unwrap();
    assert_eq!((back.incarnation, of_third(&mut core, 43)), (2, 2));
}

#[test]
fn a_worker_that_was_given_up_comes_back_and_the_others_form_a_new_group() {
    let (mut core, workers) = training(3, 1, 3);
    let [first, _, third] = &workers[..] else { unreachable!() };
    hear(&mut core, (2..=42).step_by(2), &[first, third]);
    let group = core.group(time(42), &ask_after(third, 1)).unwrap();
    assert_eq!((group.rank, &group.workers[..]), (1, &[0, 2][..]));
    assert_eq!(beat(&mut core, 43, first).unwrap().group, 2);
    let back = core.join(time(43), &reachable(1, 2)).unwrap();
    assert_eq!(beat(&mut core, 43, first).unwrap().group, 2, "it is not ready yet");
    let group = core.group(time(44), &ask_after(&back, 0)).unwrap();
    assert_eq!((group.generation, group.rank, &group.workers[..]), (3, 1, &[0, 1, 2][..]));
    assert_eq!(beat(&mut core, 44, first).unwrap().group, 3);
}

#[test]
fn a_worker_that_the_run_can_do_without_leaves_and_the_others_go_on() {
    let (mut core, workers) = training(3, 2, 3);
    let [first, second, third] = &workers[..] else { unreachable!() };
    let Work::Split(held) = assign(&mut core, 1, third, 0).unwrap() else { panic!("no split") };
    assert_eq!(ask_to_end(&mut core, 1, third).draining, "");
    assert_eq!(assign(&mut core, 1, third, 0).unwrap(), Work::EpochDone(EpochDone { leave: true }), "it gets no more");
    core.complete(time(1), &completion(third, &held)).unwrap();
    let waiting = core.group(time(2), &ask_after(first, 1)).unwrap().waiting_for;
    assert!(waiting.contains("dense worker 2 must give up the group"), "{waiting}");
    for _ in 0..2 {
        leave(&mut core, third, Outcome::Interrupted, "was asked to end").unwrap();
    }
    assert_eq!(core.outcome(), None);
    let group = core.group(time(2), &ask_after(first, 1)).unwrap();
    assert_eq!((group.generation, &group.workers[..]), (2, &[0, 1][..]));
    // With one more the run has too few: it is drained.
    assert!(ask_to_end(&mut core, 3, second).draining.contains("dense worker 1 was asked to end"));
    leave(&mut core, second, Outcome::Interrupted, "was asked to end").unwrap();
    assert!(matches!(core.outcome(), Some(RunOutcome::Interrupted(_))));
}

#[test]
fn the_first_worker_and_workers_of_mode_sync_drain_the_run() {
    let (mut core, workers) = training(3, 1, 3);
    assert!(ask_to_end(&mut core, 1, &workers[0]).draining.contains("dense worker 0"));
    for (fixed_splits, asynchronous, draining) in [(true, false, true), (false, true, false)] {
        let (core, _) = training(3, 1, 3);
        let mut core = Core::new(CoreConfig { fixed_splits, asynchronous, ..core.config });
        join(&mut core, 0, MemberSlot::server(0));
        let joined: Vec<_> = (0..3).map(|index| core.join(time(0), &reachable(index, 1)).unwrap()).collect();
        core.group(time(0), &ask_after(&joined[0], 0)).unwrap();
        assert_eq!(ask_to_end(&mut core, 1, &joined[2]).draining.contains("dense worker 2"), draining);
    }
}

#[test]
fn the_first_worker_is_always_needed() {
    let (mut core, workers) = training(3, 1, 3);
    hear(&mut core, (2..=44).step_by(2), &[&workers[1], &workers[2]]);
    let outcome = core.outcome().expect("an end").reason();
    assert!(outcome.starts_with("dense worker 0 is lost") && !outcome.contains("min_workers"), "{outcome}");
}

#[test]
fn a_process_that_vouches_for_the_end_of_a_worker_takes_its_slot_at_once() {
    let (mut core, workers) = training(2, 2, 2);
    let Work::Split(first) = assign(&mut core, 1, &workers[1], 0).unwrap() else { panic!("no split") };
    assert_eq!(core.join(time(2), &reachable(1, 2)).unwrap_err().kind, RefusalKind::Unavailable);
    let successor = JoinRequest { supersede: true, ..reachable(1, 2) };
    // A refused request changes no slot.
    let other = JoinRequest { files: Vec::new(), ..successor.clone() };
    assert_eq!(core.join(time(2), &other).unwrap_err().kind, RefusalKind::Invalid);
    assert!(core.take_events().is_empty() && beat(&mut core, 2, &workers[1]).is_ok());

    let joined = core.join(time(2), &successor).unwrap();
    assert_eq!(joined.incarnation, 2);
    assert!(matches!(
        core.take_events()[..],
        [RunEvent::MemberLost { splits: 1, .. }, RunEvent::MemberJoined { incarnation: 2, .. }]
    ));
    assert_eq!(beat(&mut core, 3, &workers[1]).unwrap_err().kind, RefusalKind::Fenced);
    assert_eq!(assign(&mut core, 3, &joined, 0).unwrap(), Work::Split(first));
    let server = JoinRequest { supersede: true, ..request(MemberSlot::server(0), 2) };
    assert_eq!(core.join(time(3), &server).unwrap_err().kind, RefusalKind::Unavailable, "its rows are not given away");
}

#[test]
fn a_worker_that_comes_too_late_to_train_is_not_waited_for() {
    let (mut core, workers) = training(2, 2, 2);
    let late = core.join(time(2), &JoinRequest { supersede: true, ..reachable(1, 2) }).unwrap();
    leave(&mut core, &workers[0], Outcome::Finished, "").unwrap();
    assert_eq!(core.outcome(), Some(&RunOutcome::Finished));
    assert!(beat(&mut core, 3, &late).unwrap().stop);
}

#[test]
fn a_worker_that_is_lost_after_training_fails_no_run_in_mode_sync() {
    for leaves_first in [true, false] {
        let (mut core, workers) = training(2, 2, 2);
        core.config.fixed_splits = true;
        trained(&mut core, 1, &workers[0]);
        if leaves_first {
            leave(&mut core, &workers[0], Outcome::Finished, "").unwrap();
            assert_eq!(core.outcome(), None, "the other may still be at work");
            [5, 9, 13].into_iter().for_each(|second| core.tick(time(second)));
        } else {
            hear(&mut core, (2..=60).step_by(2), &[&workers[0]]);
            assert_eq!(core.outcome(), None);
            assert!(core.join(time(60), &reachable(1, 2)).unwrap().over, "nothing is left for another one");
            let first = &workers[0];
            let (member, incarnation, outcome) = (first.member, first.incarnation, Outcome::Finished as i32);
            core.leave(time(61), &LeaveRequest { member, incarnation, outcome, reason: String::new() }).unwrap();
        }
        assert_eq!(core.outcome(), Some(&RunOutcome::Finished), "the first leaves first: {leaves_first}");
        assert!(core.join(time(62), &reachable(1, 3)).unwrap().over);
    }
}

#[test]
fn a_lost_worker_breaks_its_group_and_not_the_next_one() {
    let (mut core, workers) = training(2, 2, 2);
    let first = &workers[0];
    hear(&mut core, (2..=10).step_by(2), &[first]);
    assert_eq!(beat(&mut core, 10, first).unwrap().broken_group, 0);
    // Its lease expires. A worker that waits for it in an all-reduce learns so with its next heartbeat.
    assert_eq!(beat(&mut core, 11, first).unwrap().broken_group, 1);
    let back = core.join(time(12), &reachable(1, 2)).unwrap();
    let group = core.group(time(12), &ask_after(first, 1)).unwrap();
    assert_eq!((group.generation, beat(&mut core, 12, first).unwrap().broken_group), (2, 1));
    // A process that is known to be gone loses its slot before its lease expires.
    core.join(time(13), &JoinRequest { supersede: true, ..reachable(1, 3) }).unwrap();
    assert_eq!(beat(&mut core, 13, first).unwrap().broken_group, 2);
    assert!(beat(&mut core, 13, &back).is_err());
}

/// The link to the coordinator was down for longer than a lease.
#[test]
fn a_silent_worker_is_taken_back_with_its_splits_while_nobody_else_reads_them() {
    let (mut core, server, worker) = running();
    let Work::Split(first) = assign(&mut core, 1, &worker, 0).unwrap() else { panic!("no split") };
    hear(&mut core, (4..=36).step_by(4), &[&server]);
    assert_eq!(assign(&mut core, 36, &worker, 0).unwrap_err().kind, RefusalKind::Unavailable);
    core.take_events();
    beat(&mut core, 37, &worker).unwrap();
    assert_eq!(core.take_events(), [RunEvent::MemberReturned { slot: MemberSlot::worker(0) }]);
    let complete = completion(&worker, &first);
    core.complete(time(37), &complete).unwrap();
}

/// Invariants SP-1 and MB-1.
#[test]
fn a_silent_worker_whose_splits_others_read_is_fenced() {
    let (mut core, ada, bob) = two_workers();
    for worker in [&ada, &bob] {
        while let Work::Split(_) = assign(&mut core, 0, worker, 0).unwrap() {}
    }
    hear(&mut core, [4, 8, 12], &[&bob]);
    let Work::Split(stolen) = assign(&mut core, 12, &bob, 0).unwrap() else { panic!("no split") };
    assert_eq!(beat(&mut core, 13, &ada).unwrap_err().kind, RefusalKind::Fenced);
    assert_eq!(beat(&mut core, 14, &ada).unwrap_err().kind, RefusalKind::Fenced);
    let complete = completion(&ada, &stolen);
    assert_eq!(core.complete(time(14), &complete).unwrap_err().kind, RefusalKind::Fenced);
}

fn at_the_end(core: &mut Core, now: u64, (worker, group): (&JoinResponse, u64), vote: Option<BarrierReason>) -> State {
    let vote = vote.map(|reason| BarrierVote { reason: reason.into(), ..BarrierVote::default() });
    let (member, incarnation) = (worker.member, worker.incarnation);
    let request = BarrierRequest { member, incarnation, group, ballot: 1, vote };
    core.barrier(time(now), &request).unwrap().state.unwrap()
}

/// Invariant RK-6.
#[test]
fn until_the_model_is_saved_a_lost_first_worker_is_replaced_and_afterwards_nobody_waits_for_it() {
    let saved = Some(BarrierReason::Saved);
    // It is lost while it saves.
    let (mut core, workers) = training(2, 2, 2);
    trained(&mut core, 1, &workers[0]);
    assert!(matches!(at_the_end(&mut core, 1, (&workers[0], 1), None), State::Wait(_)));
    assert!(matches!(at_the_end(&mut core, 1, (&workers[1], 1), saved), State::Wait(_)));
    let next = core.join(time(2), &JoinRequest { supersede: true, ..reachable(0, 2) }).unwrap();
    assert!(!next.over && next.incarnation == 2);
    assert!(matches!(at_the_end(&mut core, 2, (&workers[1], 1), saved), State::Failure(_)));
    assert_eq!(core.group(time(2), &ask_after(&workers[1], 1)).unwrap().generation, 2);
    // The replacement saves before its first heartbeat.
    assert!(matches!(at_the_end(&mut core, 3, (&next, 2), saved), State::Wait(_)));
    assert!(matches!(at_the_end(&mut core, 3, (&workers[1], 2), saved), State::Result(_)));
    leave(&mut core, &workers[1], Outcome::Finished, "").unwrap();
    assert_eq!(core.outcome(), None, "the first has not left");
    leave(&mut core, &next, Outcome::Finished, "").unwrap();
    assert_eq!(core.outcome(), Some(&RunOutcome::Finished));

    // It is lost after it has saved, before it has left.
    let (mut core, workers) = training(2, 2, 2);
    trained(&mut core, 1, &workers[0]);
    assert!(matches!(at_the_end(&mut core, 1, (&workers[0], 1), saved), State::Wait(_)));
    assert!(matches!(at_the_end(&mut core, 1, (&workers[1], 1), saved), State::Result(_)));
    assert!(core.join(time(2), &JoinRequest { supersede: true, ..reachable(0, 2) }).unwrap().over);
    assert_eq!(core.outcome(), None, "the other has not left");
    leave(&mut core, &workers[1], Outcome::Finished, "").unwrap();
    assert_eq!(core.outcome(), Some(&RunOutcome::Finished));

    // No process takes its place.
    let (mut core, workers) = training(2, 2, 2);
    assert!(matches!(at_the_end(&mut core, 1, (&workers[0], 1), saved), State::Wait(_)));
    assert!(matches!(at_the_end(&mut core, 1, (&workers[1], 1), saved), State::Result(_)));
    leave(&mut core, &workers[1], Outcome::Finished, "").unwrap();
    assert_eq!(core.outcome(), None);
    (2..=13).step_by(2).for_each(|second| core.tick(time(second)));
    assert_eq!(core.outcome(), Some(&RunOutcome::Finished));
}
