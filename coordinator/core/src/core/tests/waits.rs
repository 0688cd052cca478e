//! What members wait for, as they report it.

use zagros_protocol::control::{LongWait, WaitKind};

use super::*;

fn wait(what: &str, age_ms: u64) -> LongWait {
    LongWait {
        part: "dense thread".to_owned(),
        kind: WaitKind::Workers.into(),
        what: what.to_owned(),
        age_ms,
        ..LongWait::default()
    }
}

fn report(member: &JoinResponse, long_waits: Vec<LongWait>) -> HeartbeatRequest {
    HeartbeatRequest {
        member: member.member,
        incarnation: member.incarnation,
        long_waits,
        ..HeartbeatRequest::default()
    }
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
