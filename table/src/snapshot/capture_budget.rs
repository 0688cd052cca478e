//! The bound of the copies that stripes make for a snapshot.
//!
//! A push copies a row before it changes the row, unless the snapshot has read it. A writer that touches every row while a slow
//! disk takes the snapshot would so hold all rows twice. The bound prevents it:
//!
//! ```text
//! copies below the limit       requests go on
//! copies at the limit          requests that may copy rows wait until the snapshot has read a stripe, whose copies then go
//! nothing freed for a while    the snapshot is given up: all copies go, its reader gets an error, requests go on
//! ```
//!
//! A request is let in as a whole. So the copies exceed the limit by those of the requests under way, at most.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Copies may take one part in this many of the budget, or of all rows if there is no budget; and these bytes in any case.
const SHARE: usize = 8;
const LEAST_OF_BUDGET: usize = 1 << 20;
const LEAST_OF_ROWS: usize = 64 << 20;

/// The most bytes of copies within a budget of memory.
#[must_use]
pub fn copies_within(budget: usize) -> usize {
    LEAST_OF_BUDGET.max(budget / SHARE)
}

/// The most bytes of copies of so many bytes of rows, where memory has no budget.
#[must_use]
pub fn copies_beside(rows: usize) -> usize {
    LEAST_OF_ROWS.max(rows / SHARE)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotCopies {
    pub held: usize,
    /// The most bytes since the tables were made.
    pub most: usize,
    /// The limit of the last snapshot.
    pub limit: usize,
    /// Requests that waited for room.
    pub waits: u64,
    pub given_up: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyRoom {
    /// There is room, or no snapshot any more.
    Free,
    /// Copies went, and others came.
    Contended,
    Stuck,
}

#[derive(Debug)]
pub(crate) struct CaptureBudget {
    held: AtomicUsize,
    limit: AtomicUsize,
    state: Mutex<CaptureState>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct CaptureState {
    most: usize,
    /// How often copies went.
    releases: u64,
    waits: u64,
    given_up: u64,
    /// Whether the snapshot of now was given up.
    is_given_up: bool,
}

impl Default for CaptureBudget {
    fn default() -> Self {
        let limit = AtomicUsize::new(usize::MAX);
        Self { held: AtomicUsize::new(0), limit, state: Mutex::default(), freed: Condvar::new() }
    }
}

impl CaptureBudget {
    pub(crate) fn reset_limit(&self, limit: usize) {
        self.state.lock().is_given_up = false;
        self.limit.store(limit, Ordering::Release);
    }

    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn remove_bytes(&self, bytes: usize) {
        let mut state = self.state.lock();
        let old_held = self.held.fetch_sub(bytes, Ordering::AcqRel);
        state.most = state.most.max(old_held);
        state.releases += 1;
        self.freed.notify_all();
    }

    /// Whether requests that may copy rows have to wait.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.held.load(Ordering::Acquire) >= self.limit.load(Ordering::Acquire)
    }

    pub(crate) fn wait_for_room(&self, wait: Duration) -> CopyRoom {
        let mut state = self.state.lock();
        state.waits += 1;
        let old_releases = state.releases;
        if self.is_full() {
            self.freed.wait_while_for(&mut state, |_| self.is_full(), wait);
        }
        match (self.is_full(), state.releases == old_releases) {
            (false, _) => CopyRoom::Free,
            (true, false) => CopyRoom::Contended,
            (true, true) => CopyRoom::Stuck,
        }
    }

    /// The snapshot of now is given up. The caller removes the copies of all stripes.
    pub(crate) fn give_up(&self) {
        let mut state = self.state.lock();
        if !state.is_given_up {
            state.is_given_up = true;
            state.given_up += 1;
        }
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.state.lock().is_given_up
    }

    pub(crate) fn copy_totals(&self) -> SnapshotCopies {
        let state = self.state.lock();
        let (held, limit) = (self.held.load(Ordering::Acquire), self.limit.load(Ordering::Acquire));
        let limit = if limit == usize::MAX { 0 } else { limit };
        SnapshotCopies { held, most: state.most.max(held), limit, waits: state.waits, given_up: state.given_up }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_budget_or_the_rows() {
        assert_eq!((copies_within(0), copies_within(1 << 30)), (1 << 20, 1 << 27));
        assert_eq!((copies_beside(0), copies_beside(8 << 30)), (64 << 20, 1 << 30));
    }

    #[test]
    fn a_wait_tells_room_from_a_snapshot_that_stands_still() {
        let budget = CaptureBudget::default();
        budget.add_bytes(1 << 40);
        assert!(!budget.is_full(), "no snapshot, no limit");
        budget.remove_bytes(1 << 40);
        budget.reset_limit(10);
        budget.add_bytes(12);
        assert_eq!((budget.is_full(), budget.wait_for_room(Duration::from_millis(1))), (true, CopyRoom::Stuck));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.wait_for_room(Duration::from_secs(60)));
            while budget.copy_totals().waits < 2 {
                std::thread::yield_now();
            }
            budget.remove_bytes(1);
            assert!(!waiting.is_finished());
            budget.remove_bytes(2);
            assert_eq!(waiting.join().unwrap(), CopyRoom::Free);
        });
        assert_eq!(budget.copy_totals(), SnapshotCopies { held: 9, most: 1 << 40, limit: 10, waits: 2, given_up: 0 });
    }
}
