//! Barriers of asynchronous workers, between two steps of each. One worker requests a barrier. Every worker learns the time
//! of the barrier from its next heartbeat.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest time from the request of a barrier to the barrier.
const LONGEST_NOTICE: Duration = Duration::from_secs(2);

/// The newest barrier; number 0 before the first. A worker requests a barrier by its number, which is one more than that of
/// the newest. Any number of workers may therefore request the same barrier, and more than once.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BarrierSchedule {
    number: u64,
    at: Duration,
}

impl BarrierSchedule {
    /// Notes that a worker requests a barrier. A lease has three heartbeats. The barrier is two of them away, so every
    /// worker learns of the barrier before it happens.
    pub(crate) fn request_barrier(&mut self, now: Duration, number: u64, lease: Duration) {
        // A request that is ahead of all others would be the last one.
        if self.number.checked_add(1) == Some(number) {
            *self = Self { number, at: now + (lease * 2 / 3).min(LONGEST_NOTICE) };
        }
    }

    /// The number of the newest barrier, and in how many milliseconds it is.
    pub(crate) fn newest_barrier(self, now: Duration) -> (u64, u32) {
        let left = self.at.saturating_sub(now).as_millis();
        (self.number, u32::try_from(left).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(900);

    fn time(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_barrier_is_two_heartbeats_away_and_a_second_request_does_not_delay_it() {
        let mut barriers = BarrierSchedule::default();
        barriers.request_barrier(time(5), 0, LEASE);
        assert_eq!(barriers.newest_barrier(time(5)), (0, 0));
        barriers.request_barrier(time(100), 1, LEASE);
        barriers.request_barrier(time(400), 1, LEASE);
        let found = [100, 400, 700, 900].map(|now| barriers.newest_barrier(time(now)));
        assert_eq!(found, [(1, 600), (1, 300), (1, 0), (1, 0)]);
        barriers.request_barrier(time(1000), 2, LEASE);
        assert_eq!(barriers.newest_barrier(time(1000)), (2, 600));
        // A worker that has not heard of the next barrier requests one that is over.
        barriers.request_barrier(time(1100), 1, LEASE);
        assert_eq!(barriers.newest_barrier(time(1100)), (2, 500));
    }

    /// No barrier could come after the last number.
    #[test]
    fn a_request_for_a_barrier_beyond_the_next_one_is_for_none() {
        let mut barriers = BarrierSchedule::default();
        for number in [2, 1 << 40, u64::MAX] {
            barriers.request_barrier(time(5), number, LEASE);
            assert_eq!(barriers.newest_barrier(time(5)), (0, 0));
        }
        barriers.request_barrier(time(5), 1, LEASE);
        assert_eq!(barriers.newest_barrier(time(5)), (1, 600));
    }
}
