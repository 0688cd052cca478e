//! A lost server that nobody replaces: another server's process takes over its log.

use zagros_protocol::control::LostLog;

use super::*;

/// Three servers with logs, of which two must stay, and one worker, in.
fn running(min_servers: u32) -> (Core, Vec<JoinResponse>) {
    let mut core = Core::new(CoreConfig { min_servers, ..core(3, 1).config });
    let mut members: Vec<_> = (0..3).map(|index| core.join(at(0), &durable(index, 0)).unwrap()).collect();
    members.push(join(&mut core, 0, MemberSlot::worker(0)));
    core.take_events();
    (core, members)
}

fn lineage(index: u32) -> u64 {
    0x10 + u64::from(index)
}

/// The server `index`: as a process of its own, or in that of `host`, with the rows of the log.
fn durable(index: u32, host: u64) -> JoinRequest {
    let instance = if host == 0 { 100 + u64::from(index) } else { 200 + u64::from(index) };
    let server = request(MemberSlot::server(index), instance);
    JoinRequest { lineage: lineage(index), recovered: host != 0, host, ..server }
}

/// Time goes by in which these members are heard. Answers the logs that the first of them may take over at the end.
fn hear(core: &mut Core, seconds: std::ops::RangeInclusive<u64>, members: &[&JoinResponse]) -> Vec<LostLog> {
    let mut offered = Vec::new();
    for second in seconds.step_by(2) {
        let heard = members.iter().map(|member| beat(core, second, member).unwrap().lost_logs);
        offered = heard.collect::<Vec<_>>().swap_remove(0);
    }
    offered
}

#[test]
fn the_log_of_a_lost_server_is_offered_to_the_others_once_it_is_silent_for_half_of_the_timeout() {
    let (mut core, members) = running(2);
    let [first, lost, last, worker] = [&members[0], &members[1], &members[2], &members[3]];
    assert_eq!(hear(&mut core, 2..=14, &[first, last, worker]), []);
    let offered = LostLog { index: 1, lineage: lineage(1) };
    assert_eq!(hear(&mut core, 16..=18, &[first, last, worker]), [offered]);
    assert_eq!(hear(&mut core, 20..=20, &[last]), [offered]);
    assert_eq!(beat(&mut core, 20, worker).unwrap().lost_logs, [], "a worker takes no log over");
    // It was cut off only.
    beat(&mut core, 21, lost).unwrap();
    assert_eq!(hear(&mut core, 22..=22, &[first]), []);
}

#[test]
fn another_process_serves_in_the_place_of_a_lost_server_and_the_placement_stays() {
    let (mut core, members) = running(2);
    let [first, lost, last, worker] = [&members[0], &members[1], &members[2], &members[3]];
    hear(&mut core, 2..=18, &[first, last, worker]);
    core.take_events();
    let before = core.placement(at(18));
    let joined = core.join(at(19), &durable(1, 100)).unwrap();
    let events = core.take_events();
    let taken = RunEvent::ServerTakenOver { slot: MemberSlot::server(1), host: Some(MemberSlot::server(0)) };
    assert!(events.contains(&taken), "{events:?}");
    let after = core.placement(at(19));
    assert_eq!((after.generation, &after.owners), (before.generation, &before.owners));
    assert_eq!((after.servers[1].instance, after.servers[1].lineage), (201, lineage(1)));
    assert_eq!(hear(&mut core, 20..=20, &[first, last, &joined, worker]), []);
    assert_eq!(beat(&mut core, 21, lost).unwrap_err().kind, RefusalKind::Fenced, "invariant MB-1");
    // Its process is one, so too few are left when the next server is lost.
    assert_eq!(hear(&mut core, 22..=44, &[first, &joined, worker]), []);
}

#[test]
fn the_buckets_of_the_last_server_go_to_the_others_once_its_log_was_taken_over() {
    let (mut core, members) = running(2);
    hear(&mut core, 2..=18, &[&members[0], &members[1], &members[3]]);
    core.join(at(19), &durable(2, 101)).unwrap();
    let moved = core.placement(at(19)).bucket_move.unwrap();
    assert_eq!((moved.source, core.status(at(19)).scale.unwrap().wanted), (2, 2));
}

#[test]
fn no_log_is_taken_over_where_too_few_processes_are_left() {
    let (mut core, members) = running(3);
    assert_eq!(hear(&mut core, 2..=38, &[&members[0], &members[2], &members[3]]), []);
    let (mut core, members) = running(2);
    assert_eq!(hear(&mut core, 2..=38, &[&members[0], &members[3]]), []);
}
