//! When workers that step apart meet between two steps: one asks for it, and each hears from its next heartbeat when it is.

use std::time::Duration;

/// The longest that a barrier is away when it is asked for.
const LONGEST_NOTICE: Duration = Duration::from_secs(2);

/// The newest barrier; number 0 before the first. Each is asked for by its number, one more than that of the last, so that
/// any number of workers may ask for the same one, and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Barrier {
    number: u64,
    at: Duration,
}

impl Barrier {
    /// A worker asks for a barrier. It is so far away that each worker's heartbeat, of which a lease has three, comes before:
    /// nobody waits for one that has not heard of it.
    pub(crate) fn ask(&mut self, now: Duration, number: u64, lease: Duration) {
        if number > self.number {
            *self = Self { number, at: now + (lease * 2 / 3).min(LONGEST_NOTICE) };
        }
    }

    /// Its number, and in how many milliseconds it is.
    pub(crate) fn told(self, now: Duration) -> (u64, u32) {
        let left = self.at.saturating_sub(now).as_millis();
        (self.number, u32::try_from(left).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(900);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_barrier_is_two_heartbeats_away_and_asking_again_does_not_put_it_off() {
        let mut barrier = Barrier::default();
        barrier.ask(at(5), 0, LEASE);
        assert_eq!(barrier.told(at(5)), (0, 0));
        barrier.ask(at(100), 1, LEASE);
        barrier.ask(at(400), 1, LEASE);
        assert_eq!([100, 400, 700, 900].map(|now| barrier.told(at(now))), [(1, 600), (1, 300), (1, 0), (1, 0)]);
        barrier.ask(at(1000), 2, LEASE);
        assert_eq!(barrier.told(at(1000)), (2, 600));
        // One that is over is asked for by whoever has not heard of the next.
        barrier.ask(at(1100), 1, LEASE);
        assert_eq!(barrier.told(at(1100)), (2, 500));
    }

    #[test]
    fn a_long_lease_puts_no_barrier_off() {
        let mut barrier = Barrier::default();
        barrier.ask(at(0), 1, Duration::from_secs(3600));
        assert_eq!(barrier.told(at(0)), (1, 2000));
    }
}
