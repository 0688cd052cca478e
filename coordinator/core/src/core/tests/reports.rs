//! What members say: joins that come again, barriers that they request, waits that they report, and that they were asked to end: the
//! workers save and leave before the run is over.

use zagros_protocol::control::{LongWait, WaitKind};

use super::*;

/// Regression: a copy of a join that the network held back fenced the process that had joined, or its successor.
#[test]
fn a_join_that_comes_again_changes_nothing() {
    for slot in [MemberSlot::worker(0), MemberSlot::server(0)] {
        let mut core = core(1, 2);
        let join_of = |instance: u64| JoinRequest {
            supersede: true,
            lineage: u64::from(slot.role == Role::EmbeddingServer) * 7,
            recovered: instance > 1 && slot.role == Role::EmbeddingServer,
            ..request(slot, instance)
        };
        let other = if slot.role == Role::DenseWorker { MemberSlot::server(0) } else { MemberSlot::worker(0) };
        join(&mut core, 0, other);
        let first = core.join(time(0), &join_of(1)).unwrap();
        assert_eq!(core.join(time(1), &join_of(1)).unwrap(), first, "{slot}");
        beat(&mut core, 1, &first).unwrap();
        let second = core.join(time(2), &join_of(2)).unwrap();
        assert_eq!(second.incarnation, 2, "{slot}");
        assert_eq!(core.join(time(3), &join_of(1)).unwrap_err().kind, RefusalKind::Fenced, "{slot}");
        beat(&mut core, 3, &second).unwrap();
    }
}

#[test]
fn every_asynchronous_worker_learns_of_a_barrier_that_one_requests() {
    for asynchronous in [true, false] {
        let mut core = Core::new(CoreConfig { asynchronous, ..core(1, 2).config });
        join(&mut core, 0, MemberSlot::server(0));
        let workers = [0, 1].map(|index| join(&mut core, 0, MemberSlot::worker(index)));
        let asks = HeartbeatRequest { barrier: 1, ..heartbeat(&workers[0]) };
        let answer = |answer: HeartbeatResponse| (answer.barrier, answer.barrier_in_ms);
        let expected = if asynchronous { [(1, 2000), (1, 1000)] } else { [(0, 0); 2] };
        assert_eq!(answer(core.heartbeat(time(1), &asks).unwrap()), expected[0]);
        assert_eq!(answer(beat(&mut core, 2, &workers[1]).unwrap()), expected[1]);
    }
}

/// The heartbeat of a process that was asked to end. It repeats this until it may.
pub(super) fn ask_to_end(core: &mut Core, seconds: u64, member: &JoinResponse) -> HeartbeatResponse {
    core.heartbeat(time(seconds), &HeartbeatRequest { leaving: true, ..heartbeat(member) }).unwrap()
}

fn wait(what: &str, age_ms: u64) -> LongWait {
    let (part, kind, what) = ("dense thread".to_owned(), WaitKind::Workers.into(), what.to_owned());
    LongWait { part, kind, what, age_ms, ..LongWait::default() }
}

fn report(member: &JoinResponse, long_waits: Vec<LongWait>) -> HeartbeatRequest {
    HeartbeatRequest { long_waits, ..heartbeat(member) }
}

#[test]
fn the_status_has_what_each_member_waits_for_as_of_its_last_heartbeat() {
    let (mut core, server, worker) = running();
    let waits = vec![wait("the all-reduce of step 812", 4000)];
    core.heartbeat(time(1), &report(&worker, waits.clone())).unwrap();
    let status = core.status(time(2));
    assert_eq!((&status.members[0].long_waits, &status.members[1].long_waits), (&Vec::new(), &waits));
    assert_eq!((status.servers, status.workers), (1, 1));
    assert_eq!((status.lease_ms, status.timeout_ms), (10_000, 30_000));
    // An empty list says that it waits no more.
    core.heartbeat(time(2), &report(&worker, Vec::new())).unwrap();
    assert!(core.status(time(2)).members[1].long_waits.is_empty());
    core.heartbeat(time(2), &report(&server, vec![wait("x", 1)])).unwrap();
    core.group(time(2), &ask_after(&worker, 0)).unwrap();
    assert_eq!(core.status(time(2)).group, [0]);
}

#[test]
fn a_report_of_too_many_or_too_long_waits_is_refused() {
    let (mut core, _, worker) = running();
    let known = vec![wait("a barrier", 4000)];
    core.heartbeat(time(1), &report(&worker, known.clone())).unwrap();
    let many = LongWait { indices: vec![0; 513], ..wait("x", 1) };
    let part = LongWait { part: "p".repeat(513), ..wait("x", 1) };
    for waits in [vec![wait("x", 1); 17], vec![wait(&"x".repeat(513), 1)], vec![many], vec![part]] {
        let refused = core.heartbeat(time(2), &report(&worker, waits)).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Invalid);
        assert!(refused.message.contains("may report 16 of at most 512 bytes"), "{refused}");
    }
    let member = &core.status(time(3)).members[1];
    assert_eq!((&member.long_waits, member.silent_ms), (&known, 2000));
    core.heartbeat(time(3), &report(&worker, vec![wait(&"x".repeat(512), 1); 16])).unwrap();
}

const REASON: &str = "the coordinator was asked to end";

#[test]
fn a_server_that_is_asked_to_end_drains_the_run() {
    let (mut core, server, worker) = running();
    assert!(!ask_to_end(&mut core, 1, &server).stop);
    let response = beat(&mut core, 2, &worker).unwrap();
    assert_eq!((response.draining.as_str(), response.stop), ("embedding server 0 was asked to end", false));
    let events = core.take_events().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(events, ["embedding server 0 was asked to end; waiting until dense worker 0 saved and left"]);
    assert_eq!(core.drain_waits_for(), "dense worker 0");
    assert!(matches!(assign(&mut core, 2, &worker, 0), Ok(Work::Split(_))), "training goes on");
    // Later reasons change nothing.
    core.drain_run(time(2), REASON);
    leave(&mut core, &worker, Outcome::Finished, "").unwrap();
    assert!(ask_to_end(&mut core, 3, &server).stop);
}

#[test]
fn a_drain_without_workers_ends_at_once() {
    let mut core = core(1, 1);
    let server = join(&mut core, 0, MemberSlot::server(0));
    core.drain_run(time(1), REASON);
    assert!(beat(&mut core, 1, &server).unwrap().stop);
    assert_eq!(core.outcome(), Some(&RunOutcome::Interrupted(REASON.to_owned())));
}

#[test]
fn a_drain_does_not_wait_for_a_worker_that_is_lost_or_cannot_save() {
    let (mut core, server, worker) = running();
    core.drain_run(time(1), REASON);
    hear(&mut core, [5, 9, 12], &[&server]);
    assert_eq!(core.outcome(), Some(&RunOutcome::Interrupted(REASON.to_owned())), "the worker is lost");
    let (mut core, server, worker) = (running().0, server, worker);
    core.drain_run(time(1), REASON);
    for second in [5, 9, 12] {
        let _ = beat(&mut core, second, &worker);
    }
    let outcome = core.outcome().map(RunOutcome::to_string).unwrap_or_default();
    assert!(outcome.starts_with("run failed") && outcome.contains("embedding server 0 is gone"), "{outcome}");
    assert!(beat(&mut core, 12, &server).is_ok_and(|response| response.stop));
}
