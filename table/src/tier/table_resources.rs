//! How much memory the tables of a server may use, and the cold tier behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{ColdStore, copies_beside, copies_within};

/// The limits and stores of a server's tables. By default, memory is unlimited and there is no cold tier.
#[derive(Clone, Debug, Default)]
pub struct TableResources {
    /// Bytes of rows and indexes in memory, for all tables together. `None` for no limit. Each stripe of a table may
    /// hold 64 rows whatever the budget. A stripe's index is in memory twice while it grows.
    pub budget: Option<usize>,
    /// Where evicted rows go. A row there has [`crate::TableConfig::cold_words`] words.
    pub cold: Option<Arc<dyn ColdStore>>,
    /// For how many more hints the rows of a hint stay in memory ([`crate::RequestGuard::bring_in`]), at most 127. 0 keeps none.
    pub look_ahead: usize,
    /// Nanoseconds of a monotonic clock, to measure waits for locks. `None` leaves these waits unmeasured. It is called
    /// only when a lock is taken.
    pub nanos: Option<fn() -> u64>,
    /// The most bytes of copies for a snapshot. `None` for [`copies_within`] the budget, or [`copies_beside`] the rows.
    pub copies: Option<usize>,
    /// The timeout of a request at its sender. Each wait takes at most a share of it. `None` for no limit.
    pub timeout: Option<Duration>,
}

impl TableResources {
    /// The most bytes of copies for a snapshot of so many bytes of rows.
    pub(crate) fn most_copies(&self, rows: usize) -> usize {
        self.copies.unwrap_or_else(|| self.budget.map_or_else(|| copies_beside(rows), copies_within))
    }

    /// The longest wait: `most`, or one part in `parts` of a request's timeout if that is shorter.
    pub(crate) fn longest_wait(&self, most: Duration, parts: u32) -> Duration {
        self.timeout.map_or(most, |timeout| most.min(timeout / parts))
    }
}

#[derive(Debug)]
pub(crate) struct RowBudget {
    limit: usize,
    used: AtomicUsize,
    /// Bytes of the limit that others have, such as the index of the cold tier.
    beside: AtomicUsize,
}

impl RowBudget {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { limit: limit.unwrap_or(usize::MAX), used: AtomicUsize::new(0), beside: AtomicUsize::new(0) }
    }

    /// Reserves bytes if they fit into the limit minus `idle` bytes. Idle bytes are unused memory of the process. If
    /// two threads ask for the last bytes, one of them gets them.
    pub(crate) fn reserve(&self, bytes: usize, idle: usize) -> bool {
        let limit = self.limit().saturating_sub(idle);
        let grown = |used: usize| used.checked_add(bytes).filter(|used| *used <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    /// Reserves bytes even beyond the limit.
    pub(crate) fn force_reserve(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reserved bytes, and the limit without what others have of it.
    pub(crate) fn used_and_limit(&self) -> (usize, usize) {
        (self.used.load(Ordering::Relaxed), self.limit())
    }

    /// Notes how many bytes of the limit others have. A quarter is left for rows in any case.
    pub(crate) fn set_beside(&self, bytes: usize) {
        self.beside.store(bytes, Ordering::Relaxed);
    }

    fn limit(&self) -> usize {
        self.limit.saturating_sub(self.beside.load(Ordering::Relaxed)).max(self.limit / 4)
    }

    /// Whether rows have more than the limit, which happens when the share of others grows.
    pub(crate) fn is_exceeded(&self) -> bool {
        let (used, limit) = self.used_and_limit();
        used > limit
    }

    /// Whether maintenance should evict rows before a request needs the memory.
    pub(crate) fn is_tight(&self) -> bool {
        let (used, limit) = self.used_and_limit();
        used > limit / 20 * 19
    }

    /// Whether memory is a quarter above its limit. That happens only while rows cannot be evicted. New rows are then
    /// refused.
    pub(crate) fn is_exhausted(&self) -> bool {
        let (used, limit) = self.used_and_limit();
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
        assert_eq!(TableResources::default().longest_wait(ten, 4), ten);
        let resources =
            |seconds| TableResources { timeout: Some(Duration::from_secs(seconds)), ..TableResources::default() };
        assert_eq!([300, 20].map(|seconds| resources(seconds).longest_wait(ten, 4)), [ten, Duration::from_secs(5)]);
    }

    #[test]
    fn no_more_than_the_limit_is_reserved_by_any_number_of_threads() {
        let budget = RowBudget::new(Some(1000));
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
        assert_eq!((taken.into_inner(), budget.used_and_limit()), (994, (994, 1000)));
    }

    #[test]
    fn what_others_have_is_taken_from_the_limit_but_for_a_quarter() {
        let budget = RowBudget::new(Some(1000));
        budget.force_reserve(700);
        assert!(!budget.is_exceeded());
        budget.set_beside(301);
        assert!(budget.is_exceeded() && !budget.reserve(0, 0));
        assert_eq!(budget.used_and_limit(), (700, 699));
        budget.set_beside(5000);
        assert_eq!(budget.used_and_limit(), (700, 250));
        budget.set_beside(0);
        assert!(budget.reserve(300, 0));
    }

    #[test]
    fn the_budget_reports_how_near_the_limit_it_is() {
        let budget = RowBudget::new(Some(1000));
        let state = || (budget.is_tight(), budget.is_exhausted());
        budget.force_reserve(950);
        assert_eq!(state(), (false, false));
        budget.force_reserve(300);
        assert_eq!((state(), budget.reserve(0, 0)), ((true, false), false));
        budget.force_reserve(1);
        assert_eq!(state(), (true, true));
        budget.release(1251);
        assert!(!budget.reserve(1000, 1) && budget.reserve(1000, 0) && !budget.reserve(1, 0));
        let endless = RowBudget::new(None);
        endless.force_reserve(usize::MAX / 2);
        assert_eq!((endless.is_tight(), endless.is_exhausted()), (false, false));
    }
}
