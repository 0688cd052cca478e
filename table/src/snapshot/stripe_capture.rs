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

use hashbrown::HashMap;

use crate::RowBatch;
use crate::changed_rows::ChangedRows;
use crate::snapshot::capture_budget::CaptureBudget;

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
