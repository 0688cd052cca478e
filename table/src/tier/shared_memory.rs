//! What the tables of one server share: memory, the cold tier and the time.
//!
//! How much memory the tables of a server may use, and the cold tier behind them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::machine::memory::Arena;
use crate::snapshot::capture::{CaptureBudget, CopyRoom};
use crate::tier::eviction_buffer::EvictionBuffer;
use crate::tier::eviction_policy::TableClock;
use crate::tier::stripe_notes::HintClock;
use crate::update_log::WatcherSlot;
use crate::{ColdError, ColdStore, RequestDeadline, TableError, UpdateLog, copies_beside, copies_within};

/// Cold copies of pushes may take one part in this many of the budget, in addition to it, and a minimum in any case.
const COPIES_SHARE: usize = 16;
const LEAST_COPIES: usize = 1 << 20;
/// The longest wait of a push for the copies of other pushes, and the share of its timeout that the wait may take.
const COPIES_WAIT: Duration = Duration::from_secs(5);
const COPIES_WAIT_SHARE: u32 = 4;

/// What requests wait for, for [`TableError::Late`].
const OTHER_PUSHES: &str = "other pushes that hold copies of rows of the cold tier";
pub(crate) const COLD_READ: &str = "rows of the cold tier";

const SAVE: &str = "a save of the rows, whose copies of changed rows are at their limit";

#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) budget: RowBudget,
    pub(crate) capacity: TableResources,
    pub(crate) clock: TableClock,
    pub(crate) hints: HintClock,
    /// The memory of rows and indexes. Small tables share huge pages.
    pub(crate) arena: Arc<Arena>,
    /// Writes to the cold tier and removals lock it shared. A freeze locks it exclusively.
    pub(crate) cold_writes: RwLock<()>,
    pub(crate) copies: CopyBudget,
    pub(crate) captures: Arc<CaptureBudget>,
    /// Buffers for eviction. There are as many as threads have evicted at once.
    pub(crate) buffer: Mutex<Vec<EvictionBuffer>>,
    /// Why the last write to the cold tier failed. `None` if it succeeded.
    failure: Mutex<Option<ColdError>>,
    pub(crate) log: OnceLock<Arc<dyn UpdateLog>>,
    pub(crate) watcher: WatcherSlot,
}

impl SharedMemory {
    pub(crate) fn new(capacity: TableResources) -> Self {
        let budget = RowBudget::new(capacity.budget);
        budget.set_beside(capacity.cold.as_ref().map_or(0, |store| store.memory()));
        Self {
            budget,
            copies: CopyBudget::new(capacity.budget.map(|budget| LEAST_COPIES.max(budget / COPIES_SHARE))),
            captures: Arc::default(),
            hints: HintClock::new(capacity.lookahead_hints),
            capacity,
            clock: TableClock::default(),
            arena: Arena::new(),
            cold_writes: RwLock::default(),
            buffer: Mutex::default(),
            failure: Mutex::default(),
            log: OnceLock::new(),
            watcher: WatcherSlot::default(),
        }
    }

    pub(crate) fn acquire_copies(&self, bytes: usize, deadline: RequestDeadline) -> Result<CopyPermit<'_>, TableError> {
        let most = self.capacity.longest_wait(COPIES_WAIT, COPIES_WAIT_SHARE);
        let permit = self.copies.acquire(bytes, self.wait_until(deadline, most));
        self.check_deadline(deadline, OTHER_PUSHES)?;
        Ok(permit)
    }

    /// The shorter of `most` and the time until the deadline of a request.
    pub(crate) fn wait_until(&self, deadline: RequestDeadline, most: Duration) -> Duration {
        self.time_left(deadline).map_or(most, |left| left.min(most))
    }

    /// Time until the deadline of a request. `None` without a deadline or a clock.
    pub(crate) fn time_left(&self, deadline: RequestDeadline) -> Option<Duration> {
        deadline.nanos_left(self.capacity.nanos?()).map(Duration::from_nanos)
    }

    /// Checks that the sender of a request still waits. `whom` is what the request has waited for.
    pub(crate) fn check_deadline(&self, deadline: RequestDeadline, whom: &'static str) -> Result<(), TableError> {
        if self.time_left(deadline) == Some(Duration::ZERO) { Err(TableError::Late { whom }) } else { Ok(()) }
    }

    /// Waits while the copies for a snapshot are at their limit. Returns whether the snapshot has to be given up: none of its
    /// copies went meanwhile.
    pub(crate) fn await_copies(&self, deadline: RequestDeadline) -> Result<bool, TableError> {
        let most = self.capacity.longest_wait(COPIES_WAIT * 2, COPIES_WAIT_SHARE);
        loop {
            let room = self.captures.wait_for_room(self.wait_until(deadline, most));
            self.check_deadline(deadline, SAVE)?;
            match room {
                CopyRoom::Free => return Ok(false),
                CopyRoom::Contended => {}
                CopyRoom::Stuck => return Ok(true),
            }
        }
    }

    pub(crate) fn check_snapshot(&self) -> Result<(), TableError> {
        if self.captures.is_given_up() { Err(TableError::SnapshotGivenUp) } else { Ok(()) }
    }

    pub(crate) fn note_cold_write(&self, failure: Option<&ColdError>) {
        *self.failure.lock() = failure.cloned();
    }

    pub(crate) fn last_cold_failure(&self) -> Option<ColdError> {
        self.failure.lock().clone()
    }
}

/// The budget for the cold copies of pushes. A push holds its copies from its read of the cold tier until it is
/// applied.
///
/// A push needs all its copies at once. If no row is in memory, they are twice as large as its gradients. Pushes
/// therefore take turns when all copies together would exceed the limit. A push that is alone always continues, however
/// much it needs.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    limit: usize,
    held: Mutex<usize>,
    freed: Condvar,
}

/// Permission to hold some bytes. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct CopyPermit<'a> {
    copies: &'a CopyBudget,
    bytes: usize,
}

impl CopyBudget {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { limit: limit.unwrap_or(usize::MAX), held: Mutex::default(), freed: Condvar::new() }
    }

    /// Waits while the total would exceed the limit, but not longer than `wait`. After that the push continues beyond
    /// the limit. The caller checks whether the sender has given up.
    pub(crate) fn acquire(&self, bytes: usize, wait: Duration) -> CopyPermit<'_> {
        let mut held = self.held.lock();
        let is_much = |held: &mut usize| *held > 0 && held.saturating_add(bytes) > self.limit;
        if bytes > 0 {
            self.freed.wait_while_for(&mut held, is_much, wait);
        }
        *held += bytes;
        CopyPermit { copies: self, bytes }
    }
}

impl Drop for CopyPermit<'_> {
    fn drop(&mut self) {
        *self.copies.held.lock() -= self.bytes;
        self.copies.freed.notify_all();
    }
}

/// The limits and stores of a server's tables. By default, memory is unlimited and there is no cold tier.
#[derive(Clone, Debug, Default)]
pub struct TableResources {
    /// Bytes of rows and indexes in memory, for all tables together. `None` for no limit. Each stripe of a table may
    /// hold 64 rows whatever the budget. A stripe's index is in memory twice while it grows.
    pub budget: Option<usize>,
    /// Where evicted rows go. A row there has [`crate::TableConfig::cold_words`] words.
    pub cold: Option<Arc<dyn ColdStore>>,
    /// For how many more hints the rows of a hint stay in memory ([`crate::RequestGuard::page_in_hinted`]), at most 127. 0 keeps none.
    pub lookahead_hints: usize,
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn pushes_that_exceed_the_limit_together_take_turns() {
        let (copies, most, now) = (CopyBudget::new(Some(100)), AtomicUsize::new(0), AtomicUsize::new(0));
        let acquire = |bytes: usize| {
            let held = copies.acquire(bytes, LATE);
            most.fetch_max(now.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(bytes, Ordering::SeqCst);
            drop(held);
        };
        thread::scope(|scope| {
            for bytes in [30, 40, 60, 100] {
                scope.spawn(move || (0..200).for_each(|_| acquire(bytes)));
            }
        });
        assert!(most.into_inner() <= 100);
    }

    #[test]
    fn a_single_push_continues_whatever_it_needs_and_no_push_waits_for_ever() {
        let copies = CopyBudget::new(Some(100));
        let first = copies.acquire(1000, LATE);
        let late = copies.acquire(1, Duration::from_millis(1));
        drop((first, late));
        assert_eq!(*copies.held.lock(), 0);
        drop(CopyBudget::new(None).acquire(usize::MAX, LATE));
    }

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
