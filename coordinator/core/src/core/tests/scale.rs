//! Servers join and leave while the run trains: one move of buckets after another.

use zagros_protocol::control::{
    MoveStage, MoveVerdict, ReportMoveRequest, ReportMoveResponse, ScaleRequest, ScaleResponse,
};

use super::reports::ask_to_end;
use super::*;

/// A run of `servers` servers and one worker that trains, with the members in the order of their indices.
fn training(servers: u32) -> (Core, Vec<JoinResponse>) {
    let mut core = core(servers, 1);
    let members = (0..servers).map(|index| join(&mut core, 0, MemberSlot::server(index))).collect();
    join(&mut core, 0, MemberSlot::worker(0));
    core.take_events();
    (core, members)
}

/// One server and one worker that train, and another server to which buckets move, by the move of this number.
fn moving() -> (Core, Vec<JoinResponse>, u64) {
    let (mut core, mut members) = training(1);
    scale(&mut core, 1, 2).unwrap();
    members.push(join(&mut core, 1, MemberSlot::server(1)));
    let id = core.placement(time(1)).bucket_move.unwrap().id;
    (core, members, id)
}

fn scale(core: &mut Core, second: u64, servers: u32) -> Result<ScaleResponse, Refusal> {
    core.scale(time(second), &ScaleRequest { servers, workers: 0 })
}

fn report(
    core: &mut Core,
    second: u64,
    member: &JoinResponse,
    bucket_move: u64,
    stage: MoveStage,
) -> Result<ReportMoveResponse, Refusal> {
    let (member, incarnation) = (member.member, member.incarnation);
    let request = ReportMoveRequest { member, incarnation, bucket_move, stage: stage.into(), ..Default::default() };
    core.report_move(time(second), &request)
}

fn owned(core: &mut Core, servers: u32) -> Vec<usize> {
    let placement = core.placement(time(0));
    let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).unwrap();
    let count =
        |server| (0..map.bucket_count()).filter(|bucket| map.bucket_owner(*bucket).unwrap().0 == server).count();
    (0..servers).map(count).collect()
}

/// Plays the target of every move until none is under way.
fn move_all(core: &mut Core, members: &[JoinResponse]) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    while let Some(moved) = core.placement(time(1)).bucket_move {
        pairs.push((moved.source, moved.target));
        let target = &members[moved.target as usize];
        for stage in [MoveStage::Copying, MoveStage::CaughtUp] {
            assert_eq!(report(core, 1, target, moved.id, stage).unwrap().verdict(), MoveVerdict::Continue);
        }
        let answer = report(core, 1, target, moved.id, MoveStage::Copied).unwrap();
        assert_eq!(answer.verdict(), MoveVerdict::Committed);
        // The answer was lost.
        assert_eq!(report(core, 1, target, moved.id, MoveStage::Copied).unwrap(), answer);
    }
    pairs
}

#[test]
fn servers_that_join_get_buckets_and_those_that_leave_hand_theirs_over() {
    let (mut core, mut members) = training(2);
    let answer = scale(&mut core, 1, 4).unwrap();
    assert_eq!((answer.servers, answer.buckets), (4, 32));
    assert_eq!(core.placement(time(1)).bucket_move, None, "the new servers have not joined");
    assert!(core.status(time(1)).scale.unwrap().doing.contains("embedding server 2 has not joined"));
    members.extend((2..4).map(|index| join(&mut core, 1, MemberSlot::server(index))));
    assert_eq!(core.placement(time(1)).generation, 1, "nothing has moved");
    assert_eq!(core.placement(time(1)).servers.len(), 2, "nothing has moved");
    let pairs = move_all(&mut core, &members);
    assert!(pairs.iter().all(|(source, target)| *source < 2 && *target >= 2), "{pairs:?}");
    assert_eq!((owned(&mut core, 4), core.placement(time(1)).servers.len()), (vec![16; 4], 4));
    assert_eq!(core.placement(time(1)).generation, 1 + pairs.len() as u64);
    let buckets: Vec<u32> = core.status(time(1)).members.iter().map(|member| member.buckets).collect();
    assert_eq!(buckets, [16, 16, 16, 16, 0], "the status has them, and none for a worker");

    assert_eq!(scale(&mut core, 1, 3).unwrap().buckets, 16);
    assert!(!beat(&mut core, 1, &members[3]).unwrap().stop, "it has buckets");
    let pairs = move_all(&mut core, &members);
    assert!(pairs.iter().all(|(source, _)| *source == 3), "{pairs:?}");
    let owned = owned(&mut core, 4);
    assert!(owned[3] == 0 && owned[..3].iter().all(|count| (21..=22).contains(count)), "{owned:?}");
    let heard = beat(&mut core, 1, &members[3]).unwrap();
    assert!(heard.stop && heard.reason.contains("handed over"), "{heard:?}");
    leave(&mut core, &members[3], Outcome::Finished, "").unwrap();
    assert_eq!((core.placement(time(2)).servers.len(), core.outcome()), (3, None));
    let status = core.status(time(2)).scale.unwrap();
    assert_eq!((status.servers, status.servers_wanted, status.buckets_left, status.doing.as_str()), (3, 3, 0, ""));
    // The run does not miss the server that has gone.
    core.drain_run(time(3), "the test wants it");
    assert_eq!(core.outcome(), None);
    // Another process may take the slot once more.
    assert!(core.join(time(3), &request(MemberSlot::server(3), 9)).is_err(), "it is not wanted now");
    // A process that was killed before it deleted its log comes back with it.
    let killed = JoinRequest { lineage: 7, recovered: true, ..request(MemberSlot::server(3), 10) };
    assert!(core.join(time(3), &killed).unwrap().over, "it deletes the log and ends");
    assert!(core.join(time(3), &JoinRequest { job_fingerprint: 1, ..killed.clone() }).is_err(), "a log of another job");
    assert!(core.join(time(3), &JoinRequest { index: 4, ..killed }).is_err(), "a slot that was never taken");
}

/// The rows that it gets later would be thrown away with its log, by the process that comes after it.
#[test]
fn a_server_that_was_released_stays_so_when_the_run_wants_as_many_servers_again_before_it_has_heard() {
    let (mut core, mut members) = training(3);
    scale(&mut core, 1, 2).unwrap();
    move_all(&mut core, &members);
    scale(&mut core, 1, 3).unwrap();
    assert_eq!(core.placement(time(1)).bucket_move, None, "the process of before gets no buckets");
    let doing = core.status(time(1)).scale.unwrap().doing;
    assert!(doing.contains("no other process has joined in its place"), "{doing}");
    let heard = beat(&mut core, 1, &members[2]).unwrap();
    assert!(heard.stop && heard.reason.contains("handed over"), "{heard:?}");
    assert!(ask_to_end(&mut core, 1, &members[2]).stop && core.run.drain_reason().is_none(), "its end ends nothing");
    let again = core.join(time(1), &request(MemberSlot::server(2), 1));
    assert_eq!(again.unwrap_err().kind, RefusalKind::Fenced, "a late copy of its join");
    let killed = JoinRequest { lineage: 7, recovered: true, ..request(MemberSlot::server(2), 8) };
    assert!(core.join(time(1), &killed).unwrap().over, "it deletes its log and ends");
    members[2] = core.join(time(2), &request(MemberSlot::server(2), 9)).unwrap();
    let pairs = move_all(&mut core, &members);
    assert!(!pairs.is_empty() && pairs.iter().all(|(_, target)| *target == 2), "{pairs:?}");
    assert!(!beat(&mut core, 2, &members[2]).unwrap().stop);
}

#[test]
fn the_last_server_hands_its_buckets_over_when_it_is_asked_to_end_and_another_one_drains_the_run() {
    let (mut core, members) = training(3);
    assert!(!ask_to_end(&mut core, 1, &members[2]).stop, "it has buckets");
    assert!(!ask_to_end(&mut core, 1, &members[2]).stop, "it has buckets");
    assert_eq!(core.status(time(1)).scale.unwrap().servers_wanted, 2);
    move_all(&mut core, &members);
    assert!(ask_to_end(&mut core, 1, &members[2]).stop);
    leave(&mut core, &members[2], Outcome::Finished, "").unwrap();
    assert_eq!((owned(&mut core, 3), core.outcome(), core.run.drain_reason()), (vec![32, 32, 0], None, None));
    // The servers before the last one cannot go alone: the indices of servers have no gap.
    assert!(!ask_to_end(&mut core, 2, &members[0]).stop);
    assert_eq!(core.run.drain_reason(), Some("embedding server 0 was asked to end"));
}

#[test]
fn a_move_needs_all_its_stages_from_its_own_target() {
    let (mut core, members, id) = moving();
    assert_eq!(beat(&mut core, 1, &members[0]).unwrap().bucket_move, id);
    let refused = |core: &mut Core, member: usize, stage| {
        report(core, 1, &members[member], id, stage).unwrap_err().kind == RefusalKind::Invalid
    };
    assert!(refused(&mut core, 1, MoveStage::Copied), "it has not caught up");
    report(&mut core, 1, &members[1], id, MoveStage::Copying).unwrap();
    assert!(refused(&mut core, 1, MoveStage::Copied), "it has not caught up");
    assert!(refused(&mut core, 0, MoveStage::CaughtUp), "the source");
    report(&mut core, 1, &members[1], id, MoveStage::CaughtUp).unwrap();
    // A late report of the stage before changes nothing.
    report(&mut core, 1, &members[1], id, MoveStage::Copying).unwrap();
    assert_eq!(owned(&mut core, 2), [64, 0]);
    report(&mut core, 1, &members[1], id, MoveStage::Copied).unwrap();
    assert_eq!((owned(&mut core, 2), beat(&mut core, 1, &members[0]).unwrap().generation), (vec![32; 2], 2));
    let unknown = report(&mut core, 1, &members[1], 77, MoveStage::Copied).unwrap();
    assert_eq!(unknown.verdict(), MoveVerdict::Abandoned);
}

/// Until the commit the source owns the buckets; whatever happens, the move is tried again.
#[test]
fn a_move_that_cannot_go_on_leaves_the_source_its_buckets_and_is_tried_again() {
    type Trouble = fn(&mut Core, &[JoinResponse], u64, &JoinResponse);
    let troubles: [(&str, Trouble); 5] = [
        ("the target failed", |core, members, id, _| {
            assert_eq!(report(core, 2, &members[1], id, MoveStage::Failed).unwrap().verdict(), MoveVerdict::Abandoned);
        }),
        ("the source waits too long", |core, members, id, _| {
            report(core, 2, &members[0], id, MoveStage::Failed).unwrap();
        }),
        ("the target is another process", |core, members, _, worker| {
            hear(core, 2..13, &[worker, &members[0]]);
            core.join(time(13), &request(MemberSlot::server(1), 7)).unwrap();
        }),
        ("the source is another process", |core, members, _, worker| {
            hear(core, 2..13, &[worker, &members[1]]);
            core.join(time(13), &request(MemberSlot::server(0), 7)).unwrap();
        }),
        ("the target is silent", |core, members, _, worker| {
            hear(core, 2..33, &[worker, &members[0], &members[1]]);
        }),
    ];
    for (what, trouble) in troubles {
        let (mut core, members, id) = moving();
        let worker = core.join(time(1), &request(MemberSlot::worker(0), 1)).unwrap();
        report(&mut core, 1, &members[1], id, MoveStage::CaughtUp).unwrap();
        trouble(&mut core, &members, id, &worker);
        let events = core.take_events();
        assert!(events.iter().any(|event| matches!(event, RunEvent::MoveAbandoned { .. })), "{what}: {events:?}");
        assert_eq!(owned(&mut core, 2), [64, 0], "{what}");
        let late = report(&mut core, 33, &members[1], id, MoveStage::Copied);
        assert!(late.is_err() || late.unwrap().verdict() == MoveVerdict::Abandoned, "{what}");
        hear(&mut core, 33..46, &[&worker]);
        let again = |index| core.join(time(46), &request(MemberSlot::server(index), 8)).unwrap();
        let members: Vec<_> = (0..2).map(again).collect();
        hear(&mut core, 46..49, &[&worker, &members[0], &members[1]]);
        assert!(core.placement(time(48)).bucket_move.is_some_and(|moved| moved.id > id), "{what}");
        assert!(move_all(&mut core, &members).len() == 1 && owned(&mut core, 2) == [32; 2], "{what}");
    }
}

/// Regression: the source refused lookups and pushes until the target had been silent for all of `cluster.timeout_seconds`.
#[test]
fn a_move_ends_with_the_lease_of_its_source_or_target() {
    for lost in 0..2 {
        let (mut core, members, id) = moving();
        let worker = core.join(time(1), &request(MemberSlot::worker(0), 1)).unwrap();
        report(&mut core, 1, &members[1], id, MoveStage::CaughtUp).unwrap();
        let other = &members[1 - lost];
        hear(&mut core, 2..13, &[&worker, other]);
        assert_eq!(core.placement(time(12)).bucket_move, None, "server {lost} is lost");
        let failed = report(&mut core, 12, other, id, MoveStage::Failed).unwrap();
        assert!(failed.verdict() == MoveVerdict::Abandoned && failed.reason.contains("is lost"), "{failed:?}");
        // It was only silent.
        hear(&mut core, 13..16, &[&worker, &members[0], &members[1]]);
        assert!(move_all(&mut core, &members).len() == 1 && owned(&mut core, 2) == [32; 2], "server {lost}");
    }
}

#[test]
fn a_number_of_servers_that_is_reached_costs_no_later_call_anything() {
    let (mut core, mut members) = training(1);
    scale(&mut core, 1, 2).unwrap();
    members.push(join(&mut core, 1, MemberSlot::server(1)));
    assert!(core.resharding.has_goal());
    move_all(&mut core, &members);
    core.tick(time(2));
    assert!(!core.resharding.has_goal());
    let status = core.status(time(2)).scale.unwrap();
    assert_eq!((status.servers, status.servers_wanted, status.buckets_left), (2, 2, 0));
    assert_eq!(scale(&mut core, 2, 2).unwrap().buckets, 0);
    assert_eq!(scale(&mut core, 2, 1).unwrap().buckets, 32);
}

#[test]
fn what_a_run_cannot_do_is_refused_with_the_reason() {
    let (mut core, _) = training(1);
    let refused = |core: &mut Core, servers, workers| {
        core.scale(time(1), &ScaleRequest { servers, workers }).unwrap_err().message
    };
    assert!(refused(&mut core, 0, 0).contains("nothing to change"));
    assert!(refused(&mut core, 2, 5).contains("takes 1 dense workers at most"));
    assert!(refused(&mut core, 65, 0).contains("65 servers cannot share 64 buckets"));
    assert!(!core.take_events().iter().any(|event| matches!(event, RunEvent::ScaleRequested { .. })));
    let mut waiting = self::core(1, 1);
    assert_eq!(scale(&mut waiting, 1, 2).unwrap_err().kind, RefusalKind::Unavailable);
    core.drain_run(time(2), "asked to end");
    assert!(refused(&mut core, 2, 0).contains("asked to end"));
}

#[test]
fn the_same_wish_again_changes_nothing_and_another_one_replaces_it() {
    let (mut core, mut members) = training(1);
    scale(&mut core, 1, 3).unwrap();
    members.extend((1..3).map(|index| join(&mut core, 1, MemberSlot::server(index))));
    let first = core.placement(time(1)).bucket_move.unwrap();
    scale(&mut core, 1, 3).unwrap();
    assert_eq!(core.placement(time(1)).bucket_move.unwrap(), first);
    assert_eq!(scale(&mut core, 1, 1).unwrap().buckets, 0);
    let late = report(&mut core, 1, &members[1], first.id, MoveStage::CaughtUp).unwrap();
    assert_eq!(late.verdict(), MoveVerdict::Abandoned);
    core.tick(time(2));
    assert!(beat(&mut core, 2, &members[2]).unwrap().stop && !beat(&mut core, 2, &members[0]).unwrap().stop);
    assert_eq!((owned(&mut core, 3), core.placement(time(2)).generation), (vec![64, 0, 0], 1));
}

/// Invariant MB-5: moves are part of the state that a coordinator has again.
#[test]
fn a_coordinator_that_comes_back_goes_on_with_the_move() {
    let (mut core, members, id) = moving();
    report(&mut core, 1, &members[1], id, MoveStage::CaughtUp).unwrap();
    let bytes = postcard::to_allocvec(&core).unwrap();
    let mut again: Core = postcard::from_bytes(&bytes).unwrap();
    again.recover(time(35));
    assert_eq!(report(&mut again, 36, &members[1], id, MoveStage::Copied).unwrap().verdict(), MoveVerdict::Committed);
    assert_eq!(owned(&mut again, 2), [32, 32]);
}
