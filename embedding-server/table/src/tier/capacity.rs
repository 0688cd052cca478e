//! How much memory the tables of a server may take, and the store behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::ColdStore;

/// What the tables of a server may use. The default is memory without a limit and no cold tier.
#[derive(Clone, Debug, Default)]
pub struct Capacity {
    /// Bytes of rows and indexes in memory, all tables together; `None` for no limit. Each stripe of a table may hold
    /// 64 rows whatever the budget says, and a stripe's index is in memory twice for the moment in which it grows.
    pub budget: Option<usize>,
    /// Where evicted rows go. Rows there are [`crate::TableConfig::cold_words`] wide.
    pub cold: Option<Arc<dyn ColdStore>>,
    /// Nanoseconds of some clock that never goes back, to time the waits for locks; `None` leaves them untimed. Asked
    /// only when a lock is taken.
    pub nanos: Option<fn() -> u64>,
    /// The timeout of a request at its sender. No wait inside takes more than a part of it. `None` for no limit.
    pub timeout: Option<Duration>,
}

impl Capacity {
    /// The longest that a wait may be: `most`, or one part in `parts` of a request's timeout.
    pub(crate) fn wait(&self, most: Duration, parts: u32) -> Duration {
        self.timeout.map_or(most, |timeout| most.min(timeout / parts))
    }
}

/// Bytes in use, and the limit.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
}

impl MemoryBudget {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { limit: limit.unwrap_or(usize::MAX), used: AtomicUsize::new(0) }
    }

    /// Takes bytes if they are within the limit less `idle` bytes, which the process holds unused. Of two threads that
    /// race for the last bytes, one gets them.
    pub(crate) fn reserve(&self, bytes: usize, idle: usize) -> bool {
        let limit = self.limit.saturating_sub(idle);
        let within = |used: usize| used.checked_add(bytes).filter(|used| *used <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// Takes bytes whatever the limit says.
    pub(crate) fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back that were taken.
    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes in use, and the limit.
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.used.load(Ordering::Relaxed), self.limit)
    }

    /// Whether room should be made ahead of need.
    pub(crate) fn is_tight(&self) -> bool {
        let (used, limit) = self.used();
        used > limit / 20 * 19
    }

    /// Whether memory is a quarter over its limit. That happens only when rows cannot be evicted. No row may come then.
    pub(crate) fn is_exhausted(&self) -> bool {
        let (used, limit) = self.used();
        used > limit.saturating_add(limit / 4)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_is_a_part_of_the_timeout_at_most() {
        let ten = Duration::from_secs(10);
        assert_eq!(Capacity::default().wait(ten, 4), ten);
        let of = |seconds| Capacity { timeout: Some(Duration::from_secs(seconds)), ..Capacity::default() };
        assert_eq!([300, 20].map(|seconds| of(seconds).wait(ten, 4)), [ten, Duration::from_secs(5)]);
    }

    #[test]
    fn no_more_than_the_limit_is_given_out_however_many_ask() {
        let budget = MemoryBudget::new(Some(1000));
        let taken = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while budget.reserve(7, 0) {
                        taken.fetch_add(7, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!((taken.into_inner(), budget.used()), (994, (994, 1000)));
    }

    #[test]
    fn it_tells_how_near_the_limit_it_is() {
        let budget = MemoryBudget::new(Some(1000));
        let state = || (budget.is_tight(), budget.is_exhausted());
        budget.force(950);
        assert_eq!(state(), (false, false));
        budget.force(300);
        assert_eq!((state(), budget.reserve(0, 0)), ((true, false), false));
        budget.force(1);
        assert_eq!(state(), (true, true));
        budget.release(1251);
        assert!(!budget.reserve(1000, 1) && budget.reserve(1000, 0) && !budget.reserve(1, 0));
        let endless = MemoryBudget::new(None);
        endless.force(usize::MAX / 2);
        assert_eq!((endless.is_tight(), endless.is_exhausted()), (false, false));
    }
}
