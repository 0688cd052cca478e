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
//!
//! Copy on first write: what a stripe keeps for a snapshot while its rows change.
//!
//! Each slot is *open* or *done*. A slot that held a row at the instant of the snapshot starts as *open*:
//!
//! ```text
//! open ── the row is about to change: copy it ──────────► done
//! open ── the snapshot has read the row where it lies ──► done
//! a row made after the instant lies in the slot ────────► done     the snapshot does not want it
//! ```
//!
//! A write to a slot that is *done* needs no copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

use crate::RowBatch;
use crate::changed_rows::ChangedRows;

/// Copies may take one part in this many of the budget, or of all rows if there is no budget; and these bytes in any case.
const SHARE: usize = 8;
const LEAST_OF_BUDGET: usize = 1 << 20;
const LEAST_OF_ROWS: usize = 64 << 20;

/// The most bytes of copies within a budget of memory.
pub fn copies_within(budget: usize) -> usize {
    LEAST_OF_BUDGET.max(budget / SHARE)
}

/// The most bytes of copies of so many bytes of rows, where memory has no budget.
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

/// Room for copies grows by one part in this many of the copies, and by some rows at least. Doubling would exceed the limit of
/// the copies by as much again.
const GROWTH: usize = 8;
const LEAST_ROWS: usize = 32;

/// Which slots of a stripe are *done*, and the copied rows.
#[derive(Debug, Default)]
pub(crate) struct StripeCapture {
    /// One bit per slot: whether the slot is *done*.
    done: Vec<u64>,
    /// Rows as they were at the instant, in arbitrary order.
    pub(crate) rows: RowBatch,
    /// Slot at the instant → position of its copy in `rows`.
    kept: HashMap<u32, u32>,
    /// The snapshot wants these rows alone. `None` if it wants all.
    only: Option<ChangedRows>,
    /// Whether the snapshot has begun to read the stripe.
    pub(crate) is_read: bool,
    /// The bound of the copies of all stripes, and how many bytes of it this stripe has.
    budget: Arc<CaptureBudget>,
    counted: usize,
}

impl StripeCapture {
    /// A capture of these rows, or of all. Its copies count in `budget`.
    pub(crate) fn new(only: Option<ChangedRows>, budget: &Arc<CaptureBudget>) -> Self {
        let mut capture = Self::default();
        (capture.only, capture.budget) = (only, Arc::clone(budget));
        capture.count();
        capture
    }

    /// Corrects the counted bytes. They change seldom.
    fn count(&mut self) {
        let bytes = self.memory_bytes();
        if bytes > self.counted {
            self.budget.add_bytes(bytes - self.counted);
            self.counted = bytes;
        }
    }

    /// Whether the snapshot wants the row that was in a slot at the instant.
    pub(crate) fn wants(&self, slot: u32) -> bool {
        self.only.as_ref().is_none_or(|changed| changed.has_changed(slot))
    }

    /// Keys of rows that were removed before the instant.
    pub(crate) fn removed_keys(&self) -> &[u64] {
        self.only.as_ref().map_or(&[], ChangedRows::removed_keys)
    }

    pub(crate) fn is_done(&self, slot: u32) -> bool {
        self.done.get(word_of(slot)).is_some_and(|word| word >> (slot % u64::BITS) & 1 == 1)
    }

    /// Position of the copy of the row that was in a slot at the instant.
    pub(crate) fn kept_in(&self, slot: u32) -> Option<usize> {
        self.kept.get(&slot).map(|position| *position as usize)
    }

    pub(crate) fn all_kept(&self) -> impl Iterator<Item = (u64, u32)> {
        self.kept.iter().map(|(slot, position)| (self.rows.ids[*position as usize], *slot))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let RowBatch { ids, slots, access } = &self.rows;
        let words = (slots.capacity() + access.capacity()) * size_of::<u32>();
        let words = words + self.only.as_ref().map_or(0, ChangedRows::memory_bytes);
        words + (ids.capacity() + self.done.capacity()) * size_of::<u64>() + self.kept.allocation_size()
    }

    pub(crate) fn set_done(&mut self, slot: u32) {
        let word = word_of(slot);
        if word >= self.done.len() {
            self.done.resize((word + 1).next_power_of_two(), 0);
        }
        self.done[word] |= 1 << (slot % u64::BITS);
    }

    /// Copies the row of a slot, unless the slot is *done* or the snapshot does not want its row.
    pub(crate) fn keep_row(&mut self, slot: u32, id: u64, words: &[u32], access: Option<u32>) {
        if self.is_done(slot) || !self.wants(slot) {
            return;
        }
        self.set_done(slot);
        self.kept.insert(slot, self.rows.ids.len() as u32);
        self.make_room(words.len(), access.is_some());
        self.rows.push_row(id, words, access);
        self.count();
    }

    fn make_room(&mut self, words: usize, has_access: bool) {
        let RowBatch { ids, slots, access } = &mut self.rows;
        if ids.len() < ids.capacity() {
            return;
        }
        let more = (ids.len() / GROWTH).max(LEAST_ROWS);
        ids.reserve_exact(more);
        slots.reserve_exact(more * words);
        access.reserve_exact(if has_access { more } else { 0 });
    }
}

impl Drop for StripeCapture {
    fn drop(&mut self) {
        self.budget.remove_bytes(self.counted);
    }
}

fn word_of(slot: u32) -> usize {
    (slot / u64::BITS) as usize
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

    #[test]
    fn a_row_is_copied_once_and_a_new_row_never() {
        let mut capture = StripeCapture::default();
        capture.set_done(700);
        capture.keep_row(700, 1, &[1, 1], Some(1));
        capture.keep_row(64, 2, &[2, 3], Some(9));
        capture.keep_row(64, 2, &[4, 5], Some(10));
        capture.keep_row(0, 3, &[6, 7], Some(11));
        assert_eq!(capture.rows, RowBatch { ids: vec![2, 3], slots: vec![2, 3, 6, 7], access: vec![9, 11] });
        let done = [0, 1, 64, 700, 701, 9999].map(|slot| capture.is_done(slot));
        assert_eq!(done, [true, false, true, true, false, false]);
    }
}
