//! The number of dense workers changes while the run trains (invariant RK-5).

use zagros_protocol::control::{EpochDone, ScaleRequest, ScaleResponse, ScaleStatus};

use super::*;

fn scale(core: &mut Core, workers: u32) -> Result<ScaleResponse, Refusal> {
    core.scale(time(1), &ScaleRequest { servers: 0, workers })
}

fn progress(core: &mut Core) -> ScaleStatus {
    core.status(time(1)).scale.expect("it was scaled")
}

/// Who is in the group that a worker gets which has given up that of generation `after`.
fn group(core: &mut Core, worker: &JoinResponse, after: u64) -> Vec<u32> {
    core.group(time(1), &ask_after(worker, after)).unwrap().workers
}

#[test]
fn a_run_of_one_worker_takes_two_more_and_lets_one_go() {
    let (mut core, mut workers) = training(1, 1, 4);
    assert_eq!(core.status(time(1)).scale, None);
    let answer = scale(&mut core, 3).unwrap();
    assert_eq!((answer.servers, answer.workers, answer.buckets), (1, 3, 0));
    assert_eq!(core.take_events(), [RunEvent::WorkersRequested { workers: 3 }]);
    let now = progress(&mut core);
    assert_eq!((now.workers, now.workers_wanted, core.status(time(1)).workers), (1, 3, 3));
    assert_eq!(now.workers_doing, "dense worker 1 has not joined, dense worker 2 has not joined");
    assert_eq!(core.status(time(1)).reason, "", "no member waits for them");
    assert_eq!(group(&mut core, &workers[0], 1), [0], "a group without them may form meanwhile");

    workers.extend((1..3).map(|index| core.join(time(1), &reachable(index, 1)).unwrap()));
    assert_eq!(progress(&mut core).workers_doing, "dense worker 1 joins, dense worker 2 joins");
    assert_eq!(group(&mut core, &workers[2], 0), [0, 1, 2]);
    assert_eq!(beat(&mut core, 1, &workers[0]).unwrap().group, 3);
    let now = progress(&mut core);
    assert_eq!((now.workers, now.workers_doing.as_str()), (3, ""));

    let Work::Split(held) = assign(&mut core, 1, &workers[2], 0).unwrap() else { panic!("no split") };
    scale(&mut core, 2).unwrap();
    let released: Vec<bool> = workers.iter().map(|worker| beat(&mut core, 1, worker).unwrap().leave).collect();
    assert_eq!(released, [false, false, true]);
    assert_eq!(progress(&mut core).workers_doing, "dense worker 2 leaves");
    assert_eq!(assign(&mut core, 1, &workers[2], 0).unwrap(), Work::EpochDone(EpochDone { leave: true }));
    core.complete(time(1), &completion(&workers[2], &held)).unwrap();
    leave(&mut core, &workers[2], Outcome::Interrupted, "fewer are wanted").unwrap();
    assert_eq!((group(&mut core, &workers[0], 3), core.outcome()), (vec![0, 1], None));
    let now = progress(&mut core);
    assert_eq!((now.workers, now.workers_wanted, now.workers_doing.as_str()), (2, 2, ""));
    // One that is started by hand is welcome all the same.
    core.join(time(2), &reachable(3, 1)).unwrap();
    assert_eq!(progress(&mut core).workers_doing, "dense worker 3 joins");
}

#[test]
fn a_worker_that_was_to_leave_and_is_killed_is_not_waited_for() {
    let (mut core, workers) = training(3, 1, 3);
    let Work::Split(held) = assign(&mut core, 1, &workers[2], 0).unwrap() else { panic!("no split") };
    scale(&mut core, 2).unwrap();
    hear(&mut core, (2..=12).step_by(2), &[&workers[0], &workers[1]]);
    assert_eq!(core.status(time(12)).members[3].state, "given up");
    assert_eq!(beat(&mut core, 12, &workers[0]).unwrap().broken_group, 1);
    let found = core.group(time(12), &ask_after(&workers[0], 1)).unwrap();
    assert_eq!((found.workers, beat(&mut core, 12, &workers[2]).unwrap_err().kind), (vec![0, 1], RefusalKind::Fenced));
    // Each of the two reads its part.
    let next = (0..128).map(|ask| assign(&mut core, 12, &workers[ask % 2], 0).unwrap());
    let is_its_split = |work: &Work| matches!(work, Work::Split(split) if split.id == held.id);
    assert!(next.into_iter().any(|work| is_its_split(&work)), "no worker reads its split again");
}

#[test]
fn a_number_that_the_run_cannot_have_is_refused_with_the_key_and_changes_nothing() {
    let (mut core, _) = training(2, 2, 3);
    let refused = |core: &mut Core, servers, workers| {
        let refusal = core.scale(time(1), &ScaleRequest { servers, workers }).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Invalid);
        refusal.message
    };
    assert!(refused(&mut core, 2, 4).contains("takes 3 dense workers at most (`cluster.max_workers`)"));
    assert!(refused(&mut core, 2, 1).contains("2 dense workers must stay (`cluster.min_workers`"));
    core.config.fixed_workers = Some("of the test".to_owned());
    assert!(refused(&mut core, 2, 3).ends_with("their number cannot change: of the test"));
    assert_eq!((core.status(time(1)).scale, core.take_events()), (None, Vec::new()));
    // The same number is no change.
    assert_eq!(scale(&mut core, 2).unwrap().workers, 2);
    let unknown = core.join(time(1), &reachable(3, 1)).unwrap_err();
    assert!(unknown.message.contains("there is no dense worker 3: the job has 3"), "{unknown}");
}

#[test]
fn both_numbers_change_with_one_request() {
    let (mut core, _) = training(1, 1, 3);
    let answer = core.scale(time(1), &ScaleRequest { servers: 2, workers: 3 }).unwrap();
    assert_eq!((answer.servers, answer.workers, answer.buckets), (2, 3, 32));
    let now = progress(&mut core);
    assert_eq!((now.servers_wanted, now.workers_wanted), (2, 3));
}

#[test]
fn a_worker_that_comes_when_training_is_over_does_not_hold_the_run_up() {
    let (mut core, workers) = training(1, 1, 2);
    core.join(time(1), &reachable(1, 1)).unwrap();
    leave(&mut core, &workers[0], Outcome::Finished, "").unwrap();
    assert_eq!(core.outcome(), Some(&RunOutcome::Finished));
}

#[test]
fn a_worker_that_is_wanted_no_more_before_it_has_come_is_not_waited_for() {
    let config = CoreConfig { min_workers: 1, max_workers: 2, ..core(1, 2).config };
    let mut core = Core::new(config);
    assert_eq!(scale(&mut core, 1).unwrap_err().kind, RefusalKind::Unavailable);
    join(&mut core, 0, MemberSlot::server(0));
    let first = core.join(time(0), &reachable(0, 1)).unwrap();
    assert_eq!(core.group(time(1), &ask_after(&first, 0)).unwrap().waiting_for, "dense worker 1 has not joined");
    scale(&mut core, 1).unwrap();
    assert_eq!(group(&mut core, &first, 0), [0]);
}
