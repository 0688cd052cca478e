//! Embedding servers whose rows are in a log: away, back with their rows, back without them.

use zagros_protocol::control::ServerEntry;

use super::*;

const LINEAGE: u64 = 0x10;

/// One server with a log and one worker, in.
fn running() -> (Core, JoinResponse, JoinResponse) {
    let mut core = core(1, 1);
    let server = core.join(time(0), &durable(1, LINEAGE, false)).unwrap();
    let worker = join(&mut core, 0, MemberSlot::worker(0));
    core.take_events();
    (core, server, worker)
}

fn durable(instance: u64, lineage: u64, recovered: bool) -> JoinRequest {
    JoinRequest { lineage, recovered, ..request(MemberSlot::server(0), instance) }
}

#[test]
fn a_server_that_comes_back_with_its_rows_keeps_bucket_map_and_generation() {
    let (mut core, server, worker) = running();
    let map =
        |placement: &PlacementResponse| (placement.generation, placement.owners.clone(), placement.writers.clone());
    let earlier = core.placement(time(1));
    hear(&mut core, (2..=14).step_by(2), &[&worker]);
    let status = core.status(time(14));
    assert_eq!((status.members[0].state.as_str(), status.state.as_str()), ("away", "training"));
    let away = RunEvent::ServerAway { slot: MemberSlot::server(0), silence: Duration::from_secs(12), timeout: TIMEOUT };
    assert_eq!(core.take_events(), [away]);

    let request = JoinRequest { address: "127.0.0.1:9".to_owned(), ..durable(2, LINEAGE, true) };
    let back = core.join(time(15), &request).unwrap();
    assert_eq!((back.incarnation, back.generation, back.run), (2, earlier.generation, server.run));
    let events = core.take_events();
    let recovered =
        RunEvent::ServerRecovered { slot: MemberSlot::server(0), incarnation: 2, silence: Duration::from_secs(15) };
    assert!(matches!(events[0], RunEvent::MemberJoined { .. }) && events[1..] == [recovered], "{events:?}");
    let later = core.placement(time(15));
    assert_eq!(map(&later), map(&earlier));
    let ServerEntry { instance, address, lineage, .. } = &later.servers[0];
    assert_eq!((*instance, address.as_str(), *lineage), (2, "127.0.0.1:9", LINEAGE));
    assert_eq!(core.status(time(15)).members[0].state, "alive");
    // Invariant MB-1: the process before may have been cut off only.
    assert_eq!(beat(&mut core, 16, &server).unwrap_err().kind, RefusalKind::Fenced);
    beat(&mut core, 16, &back).unwrap();
    assert_eq!(core.outcome(), None);
}

/// The log that it has recovered was locked by the process before as long as that one lived.
#[test]
fn a_server_with_its_rows_need_not_wait_for_the_lease_of_the_process_before() {
    let (mut core, _, _) = running();
    let stranger = durable(3, 0, false);
    assert_eq!(core.join(time(1), &stranger).unwrap_err().kind, RefusalKind::Unavailable);
    assert_eq!(core.join(time(1), &durable(2, LINEAGE, true)).unwrap().incarnation, 2);
    assert_eq!(core.outcome(), None);
}

/// Invariant MB-6.
#[test]
fn a_server_that_comes_back_without_its_rows_ends_the_run_which_says_why() {
    for (brought, recovered, said) in
        [(0x11, true, "its log is of lineage 0000000000000011"), (0x11, false, "its log"), (0, false, "it has no log")]
    {
        let (mut core, _, worker) = running();
        hear(&mut core, (2..=14).step_by(2), &[&worker]);
        let refused = core.join(time(15), &durable(2, brought, recovered)).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Fenced);
        let answer = beat(&mut core, 16, &worker).unwrap();
        assert!(answer.stop && answer.reason.contains("embedding server 0 came back without the rows that it held"));
        assert!(answer.reason.contains(said), "{}", answer.reason);
        assert!(answer.reason.contains("lineage 0000000000000010"), "{}", answer.reason);
    }
}

#[test]
fn rows_of_another_run_are_discarded_before_a_server_joins() {
    let mut core = core(1, 1);
    assert!(core.join(time(0), &durable(1, LINEAGE, true)).unwrap().discard);
    assert!(core.status(time(0)).members.is_empty());
    let joined = core.join(time(0), &durable(1, 0x11, false)).unwrap();
    assert_eq!((joined.discard, joined.incarnation), (false, 1));
    // No worker trains yet: a server that was restarted with another log has lost nothing.
    [4, 8, 12].into_iter().for_each(|second| core.tick(time(second)));
    assert!(core.join(time(13), &durable(2, LINEAGE, true)).unwrap().discard);
    assert_eq!(core.join(time(13), &durable(2, 0x12, false)).unwrap().incarnation, 2);
    assert_eq!(core.outcome(), None);
}

#[test]
fn a_drain_waits_for_a_server_that_is_away_and_not_for_ever() {
    let (mut core, _, worker) = running();
    hear(&mut core, (2..=14).step_by(2), &[&worker]);
    core.drain_run(time(14), "the coordinator was asked to end");
    assert!(!beat(&mut core, 15, &worker).unwrap().stop);
    // A lease and the timeout, from its last heartbeat.
    hear(&mut core, (16..=40).step_by(2), &[&worker]);
    assert_eq!(core.outcome(), None);
    hear(&mut core, [42], &[&worker]);
    let outcome = core.outcome().expect("an end").reason();
    assert!(outcome.contains("embedding server 0 is gone"), "{outcome}");
}
