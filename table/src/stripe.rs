//! One part of a table with a lock of its own: an index, and the slab with its rows.

mod shrink;

use std::sync::Arc;

use crate::admission::stripe_filter::StripeFilter;
use crate::changed_rows::ChangedRows;
use crate::config::RowLayout;
use crate::index::{IndexEntry, SlotIndex};
use crate::key::{id_of, key_of};
use crate::machine::memory::Arena;
use crate::machine::prefetch;
use crate::request::step_rows::StepRows;
use crate::request::update::RowUpdate;
use crate::row::slab::{Slab, SlotAddress};
use crate::snapshot::capture::{CaptureBudget, StripeCapture};
use crate::tier::StripeSweep;
use crate::tier::stripe_notes::{ColdVersions, HintedRows};
use crate::update_log::StripeChanges;
use crate::{PushStep, RowBatch, SnapshotKind, TableCounts};

#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) number: usize,
    index: SlotIndex,
    slab: Slab,
    pub(crate) counts: TableCounts,
    /// Decides which ids without a row get one.
    pub(crate) filter: StripeFilter,
    /// Bytes that the stripe has reserved from the budget.
    pub(crate) charged: usize,
    /// Increases with every eviction to the cold tier and every removal from it. A cold copy that was read under an older
    /// version may be stale.
    pub(crate) cold_versions: ColdVersions,
    pub(crate) hinted: HintedRows,
    /// The next search for rows to evict starts at this bucket of the index.
    pub(crate) eviction_cursor: usize,
    pub(crate) sweep: StripeSweep,
    pub(crate) pending: Vec<PendingGradient>,
    /// Rows that several workers may push gradients of the two newest steps for.
    pub(crate) step_rows: StepRows,
    /// Copies for a snapshot that has not finished reading the stripe.
    capture: Option<StripeCapture>,
    /// Rows that have changed since the last checkpoint. `None` while the stripe does not note them.
    changed: Option<ChangedRows>,
    /// What has changed since the lock was taken and is not in the log yet.
    pub(crate) changes: StripeChanges,
}

/// A gradient that was acknowledged and waits until its row can be read.
#[derive(Clone, Debug)]
pub(crate) struct PendingGradient {
    pub(crate) key: u64,
    pub(crate) step: PushStep,
    pub(crate) gradient: Box<[f32]>,
}

impl Stripe {
    pub(crate) fn new(
        number: usize,
        layout: &RowLayout,
        access: bool,
        filter: StripeFilter,
        arena: &Arc<Arena>,
    ) -> Self {
        Self {
            number,
            index: SlotIndex::new(arena),
            slab: Slab::new(arena, layout.stride, access),
            counts: TableCounts::default(),
            filter,
            charged: 0,
            cold_versions: ColdVersions::default(),
            hinted: HintedRows::default(),
            eviction_cursor: 0,
            sweep: StripeSweep::default(),
            pending: Vec::new(),
            step_rows: StepRows::default(),
            capture: None,
            changed: None,
            changes: StripeChanges::default(),
        }
    }

    /// Notes for the log that a row has the words now that its slot has.
    pub(crate) fn note_row(&mut self, key: u64, slot: u32) {
        let access = self.slab.with_access.then(|| self.slab.access(slot));
        self.changes.note_row(key, self.slab.words(slot), access);
    }

    /// Notes for the log what is kept of a row until the step is over.
    pub(crate) fn note_step_row(&mut self, key: u64) {
        self.step_rows.read(key, &mut self.changes.step_rows);
    }

    /// Counts a lookup of `ids` ids. `misses` of them had no row in memory.
    #[inline(always)]
    pub(crate) fn count_lookups(&mut self, ids: usize, misses: usize) {
        self.counts.hits += (ids - misses) as u64;
        self.counts.misses += misses as u64;
    }

    /// Counts one of the ids of a lookup as a miss after all.
    #[inline(always)]
    pub(crate) fn was_miss(&mut self) {
        self.counts.hits -= 1;
        self.counts.misses += 1;
    }

    #[inline(always)]
    pub(crate) fn prefetch_entry(&self, key: u64) {
        self.index.prefetch(key);
    }

    /// The address of the key's row, if its entry is in the home bucket. Prefetches the first `words` of the row. Other
    /// keys get [`SlotAddress::NONE`], but may still have a row.
    #[inline(always)]
    pub(crate) fn peek(&self, key: u64, words: usize) -> SlotAddress {
        // No closure: the compiler would not inline it.
        if let Some(slot) = self.index.peek(key) { self.place(slot, words) } else { SlotAddress::NONE }
    }

    /// Prefetches a row that is in memory, `words` of its words and its access metadata.
    #[inline(always)]
    pub(crate) fn prefetch_row(&self, key: u64, words: usize) {
        let place = self.peek(key, words);
        if !place.is_none() {
            self.slab.prefetch_access(place.slot);
        }
    }

    /// The address of a slot. Prefetches its first `words`.
    #[inline(always)]
    pub(crate) fn place(&self, slot: u32, words: usize) -> SlotAddress {
        let place = self.slab.place(slot);
        prefetch(&self.slab.words_at(place)[..words]);
        place
    }

    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        if let IndexEntry::Slot(slot) = self.index.find(key) { Some(slot) } else { None }
    }

    #[inline(always)]
    pub(crate) fn find_or_create(&mut self, key: u64, layout: &RowLayout) -> (u32, bool) {
        match self.index.find(key) {
            IndexEntry::Slot(slot) => (slot, false),
            IndexEntry::Nothing(place) => (self.create(key, place, layout), true),
        }
    }

    #[inline(never)]
    fn create(&mut self, key: u64, place: usize, layout: &RowLayout) -> u32 {
        let slot = self.add(key, place);
        self.counts.created += 1;
        layout.fill_slot(id_of(key), self.slab.words_mut(slot));
        slot
    }

    #[inline(always)]
    pub(crate) fn update(&mut self, place: SlotAddress, key: u64, update: &mut RowUpdate<'_>, gradient: &[f32]) {
        let slot = self.slab.words_at_mut(place);
        if update.is_part() {
            self.counts.late_gradients += u64::from(self.step_rows.apply(slot, key, update, gradient));
        } else {
            self.step_rows.clear();
            update.apply(slot, key, gradient);
        }
    }

    pub(crate) fn put(&mut self, key: u64, words: &[u32]) -> u32 {
        self.step_rows.forget(key);
        self.put_back(key, words)
    }

    /// As [`Self::put`], of a row that left memory as it is: a later push of its step goes on from the row before.
    pub(crate) fn put_back(&mut self, key: u64, words: &[u32]) -> u32 {
        let slot = self.find_or_add(key);
        self.preserve_row(key, slot);
        self.mark(slot);
        self.slab.words_mut(slot).copy_from_slice(words);
        slot
    }

    /// The slot of a key, which may be one of zeros. The stripe does not note that the row changes: it is of an earlier process.
    pub(crate) fn find_or_add(&mut self, key: u64) -> u32 {
        match self.index.find(key) {
            IndexEntry::Slot(slot) => slot,
            IndexEntry::Nothing(place) => self.add(key, place),
        }
    }

    /// Makes room in the index for this many rows in all.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.index.reserve(rows);
    }

    pub(crate) fn reset_row(&mut self, key: u64, slot: u32, layout: &RowLayout) {
        self.preserve_row(key, slot);
        self.mark(slot);
        self.step_rows.forget(key);
        layout.fill_slot(id_of(key), self.slab.words_mut(slot));
        self.counts.expired += 1;
        self.counts.created += 1;
    }

    pub(crate) fn remove(&mut self, key: u64) {
        self.step_rows.forget(key);
        self.evict_row(key);
    }

    /// Removes a row from memory that is elsewhere still.
    pub(crate) fn evict_row(&mut self, key: u64) {
        if let Some(slot) = self.find(key) {
            self.preserve_row(key, slot);
            self.index.remove(key);
            self.slab.release(slot);
            self.mark_removed(key);
        }
    }

    /// Notes for the next checkpoint of changes that the row in a slot changes.
    #[inline(always)]
    fn mark(&mut self, slot: u32) {
        if let Some(changed) = &mut self.changed {
            changed.mark(slot);
        }
    }

    #[inline]
    pub(crate) fn mark_all(&mut self, places: &[SlotAddress]) {
        if let Some(changed) = &mut self.changed {
            places.iter().for_each(|place| changed.mark(place.slot));
        }
    }

    fn mark_removed(&mut self, key: u64) {
        let rows = self.row_count();
        if self.changed.as_mut().is_some_and(|changed| !changed.mark_removed(key, rows)) {
            self.changed = None;
        }
    }

    pub(crate) fn notes_changes(&self) -> bool {
        self.changed.is_some()
    }

    /// Removes all rows and all frequency counts. The memory stays allocated.
    pub(crate) fn clear(&mut self) {
        self.changed = None;
        let keys: Vec<u64> = self.index.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.remove(key));
        self.filter.clear();
        self.step_rows.reset();
        self.sweep = StripeSweep::default();
        self.cold_versions.make_all_stale();
    }

    fn add(&mut self, key: u64, place: usize) -> u32 {
        let slot = self.slab.add();
        self.index.add(key, place, slot);
        self.hinted.unmark(slot);
        if let Some(capture) = &mut self.capture {
            capture.set_done(slot);
        }
        self.mark(slot);
        slot
    }

    /// The access metadata of a row. The table must have access metadata.
    #[inline]
    pub(crate) fn access(&self, slot: u32) -> u32 {
        self.slab.access(slot)
    }

    #[inline]
    pub(crate) fn access_mut(&mut self, slot: u32) -> &mut u32 {
        self.slab.access_mut(slot)
    }

    /// Keys and slots from a position of the index on, as [`SlotIndex::scan`].
    pub(crate) fn scan(&self, from: usize, enough: usize, into: &mut Vec<(u64, u32)>) -> Option<usize> {
        self.index.scan(from, enough, into)
    }

    pub(crate) fn vacant_slots(&self) -> usize {
        self.slab.vacant_slots()
    }

    /// Bytes that index and slab would grow by if `rows` more rows were added.
    pub(crate) fn growth_bytes(&self, rows: usize) -> usize {
        self.index.growth_bytes(rows) + self.slab.growth_bytes(rows)
    }

    /// Starts the capture: rows are copied for a snapshot before they change.
    pub(crate) fn begin_capture(&mut self, kind: SnapshotKind, budget: &Arc<CaptureBudget>) {
        let only = match kind {
            SnapshotKind::Whole => None,
            SnapshotKind::Base => {
                self.changed = Some(ChangedRows::default());
                None
            }
            SnapshotKind::Changes => {
                let mut changed = self.changed.replace(ChangedRows::default()).unwrap_or_default();
                changed.retain_removed(|key| self.find(key).is_none());
                Some(changed)
            }
        };
        self.capture = Some(StripeCapture::new(only, budget));
        self.filter.begin_capture();
    }

    pub(crate) fn end_capture(&mut self) {
        self.capture = None;
    }

    #[inline(always)]
    pub(crate) fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    /// Copies a row that is about to change, unless the snapshot has read it.
    #[inline]
    pub(crate) fn preserve_row(&mut self, key: u64, slot: u32) {
        if let Some(capture) = &mut self.capture {
            let access = self.slab.with_access.then(|| self.slab.access(slot));
            capture.keep_row(slot, id_of(key), self.slab.words(slot), access);
        }
    }

    /// Copies the rows of these keys for a snapshot. Separate short loops let the cache misses of many rows overlap.
    /// The update that follows finds the rows in the cache.
    #[cold]
    pub(crate) fn preserve_all(&mut self, keys: &[u64]) {
        let mut slots = Vec::with_capacity(keys.len());
        keys.iter().for_each(|key| self.prefetch_entry(*key));
        for key in keys {
            slots.extend(self.find(*key).map(|slot| (*key, slot)));
        }
        slots.iter().for_each(|(_, slot)| prefetch(self.slot(*slot)));
        slots.into_iter().for_each(|(key, slot)| self.preserve_row(key, slot));
    }

    /// Begins to read the stripe for a snapshot. Returns the keys and slots of the rows at the instant. `None` if there
    /// is no capture, or if the snapshot has begun to read the stripe before.
    pub(crate) fn begin_reading(&mut self) -> Option<Vec<(u64, u32)>> {
        let capture = self.capture.as_mut().filter(|capture| !capture.is_read)?;
        capture.is_read = true;
        let unchanged = self.index.iter().filter(|(_, slot)| !capture.is_done(*slot) && capture.wants(*slot));
        Some(unchanged.chain(capture.all_kept().map(|(id, slot)| (key_of(id), slot))).collect())
    }

    /// Ids of the rows that were removed before the instant, in a snapshot of changes.
    pub(crate) fn captured_removals(&self) -> Vec<u64> {
        let removed = self.capture.as_ref().map_or(&[][..], StripeCapture::removed_keys);
        removed.iter().map(|key| id_of(*key)).collect()
    }

    /// Appends the row that a slot had at the instant. A row that has not changed is read in its slot. A changed row is
    /// read from its copy.
    pub(crate) fn read_captured(&mut self, slot: u32, key: u64, into: &mut RowBatch) {
        let Some(capture) = &mut self.capture else { return };
        let (id, stride) = (id_of(key), self.slab.stride);
        if let Some(position) = capture.kept_in(slot) {
            let words = &capture.rows.slots[position * stride..][..stride];
            return into.push_row(id, words, capture.rows.access.get(position).copied());
        }
        capture.set_done(slot);
        into.push_row(id, self.slab.words(slot), self.slab.with_access.then(|| self.slab.access(slot)));
    }

    #[inline(always)]
    pub(crate) fn words_at(&self, place: SlotAddress) -> &[u32] {
        self.slab.words_at(place)
    }

    /// The address of a slot, for [`Self::update`].
    #[inline(always)]
    pub(crate) fn address(&self, slot: u32) -> SlotAddress {
        self.slab.place(slot)
    }

    #[inline(always)]
    pub(crate) fn words_at_mut(&mut self, place: SlotAddress) -> &mut [u32] {
        self.slab.words_at_mut(place)
    }

    #[inline(always)]
    pub(crate) fn slot(&self, slot: u32) -> &[u32] {
        self.slab.words(slot)
    }

    pub(crate) fn row_count(&self) -> usize {
        self.index.len()
    }

    /// Bytes of index, slab, frequency counts, copies for a snapshot and notes of changes, used or not.
    pub(crate) fn memory_bytes(&self) -> usize {
        let captured = self.capture.as_ref().map_or(0, StripeCapture::memory_bytes);
        let changed = self.changed.as_ref().map_or(0, ChangedRows::memory_bytes);
        let noted = self.step_rows.memory_bytes() + self.hinted.memory_bytes();
        self.index.memory_bytes() + self.slab.memory_bytes() + self.filter.memory_bytes() + noted + captured + changed
    }
}
