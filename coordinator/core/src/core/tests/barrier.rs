//! Barriers of asynchronous workers.

use super::*;

#[test]
fn every_asynchronous_worker_learns_of_a_barrier_that_one_requests() {
    for asynchronous in [true, false] {
        let mut core = Core::new(CoreConfig { asynchronous, ..core(1, 2).config });
        join(&mut core, 0, MemberSlot::server(0));
        let workers = [0, 1].map(|index| join(&mut core, 0, MemberSlot::worker(index)));
        let asks =
            HeartbeatRequest { member: workers[0].member, incarnation: 1, barrier: 1, ..HeartbeatRequest::default() };
        let answer = |answer: HeartbeatResponse| (answer.barrier, answer.barrier_in_ms);
        let expected = if asynchronous { [(1, 2000), (1, 1000)] } else { [(0, 0); 2] };
        assert_eq!(answer(core.heartbeat(time(1), &asks).unwrap()), expected[0]);
        assert_eq!(answer(beat(&mut core, 2, &workers[1]).unwrap()), expected[1]);
    }
}
