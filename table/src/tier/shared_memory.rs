//! What the tables of one server share: memory, the cold tier and the time.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::machine::memory::{Arena, PageSize};
use crate::snapshot::capture_budget::{CaptureBudget, CopyRoom};
use crate::tier::clock::TableClock;
use crate::tier::eviction_buffer::EvictionBuffer;
use crate::tier::hinted_rows::HintClock;
use crate::tier::table_resources::RowBudget;
use crate::update_log::WatcherSlot;
use crate::{ColdError, RequestDeadline, TableError, TableResources, UpdateLog};

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
            hints: HintClock::new(capacity.look_ahead),
            capacity,
            clock: TableClock::default(),
            arena: Arena::new(PageSize::Huge),
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
}
