//! Rows that move to another server: reading and removing rows wherever they lie.
//!
//! A server that copies the rows of a stripe lists ids first, and reads rows afterwards:
//!
//! ```text
//! 1. ids in memory                 under the stripe's lock
//! 2. ids in the cold tier          some at a time, without a lock
//! 3. rows of these ids             from where each lies by then (invariant TI-1)
//! ```
//!
//! No row is missed, although rows are evicted and paged in meanwhile: a row that is not in memory at 1 is in the cold tier by then, and
//! its copy there stays after it is paged in. That copy is void, but it still names the row. A row that is made later is a change, and
//! a [`crate::ChangeWatcher`] learns of it.

use std::sync::atomic::Ordering;

use crate::key::{cold_key_of, cold_keys_of_stripe, id_of, key_of};
use crate::stripe::Stripe;
use crate::{ColdError, ColdRows, ColdScan, RowBatch, Table, TableSet};

/// Rows of the cold tier that are looked at in one go when rows are removed.
const AT_ONCE: usize = 4096;
/// Reads of the cold tier without the stripe's lock, before the read that holds it.
const ROUNDS: usize = 3;

/// Ids of some rows of one stripe in the cold tier, void copies included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColdIds {
    pub ids: Vec<u64>,
    /// Where the next ids begin. `None` at the end.
    pub next: Option<u64>,
}

impl TableSet {
    /// Whether a gradient waits for a row that cannot be read.
    pub fn has_pending_gradients(&self) -> bool {
        self.iter().any(Table::has_pending)
    }
}

impl Table {
    /// Ids of the rows of one stripe in the cold tier: `most` of them, beginning where the call before said. Empty without a cold
    /// tier.
    pub fn cold_ids(&self, stripe: usize, from: Option<u64>, most: usize) -> Result<ColdIds, ColdError> {
        let Some(store) = self.cold_store() else { return Ok(ColdIds::default()) };
        let (range, mut scan) = (cold_keys_of_stripe(stripe, self.stripes()), ColdScan::default());
        let range = from.unwrap_or(*range.start())..=*range.end();
        let next = store.freeze()?.scan(self.number, range, most, &mut scan)?;
        Ok(ColdIds { ids: scan.cold_keys.into_iter().map(|cold_key| id_of(cold_key_of(cold_key))).collect(), next })
    }

    /// Appends those rows of `ids`, which are of one stripe, that exist now, in memory or in the cold tier. No row is paged in.
    /// On an error some of the rows may be appended.
    pub fn read_rows_anywhere(&self, stripe: usize, ids: &[u64], into: &mut RowBatch) -> Result<(), ColdError> {
        let (mut left, mut cold) = (ids.to_vec(), ColdRows::default());
        for _ in 0..ROUNDS {
            let version = self.take_from_memory(&self.lock(stripe), &mut left, into);
            let Some(store) = self.cold_store().filter(|_| !left.is_empty()) else { return Ok(()) };
            store.read(self.number, &cold_keys(&left), &mut cold)?;
            // A copy counts if nothing was evicted since the row was found missing in memory.
            let stripe = self.lock(stripe);
            if stripe.cold_versions.now == version {
                self.take_valid(&stripe, &left, &cold, into);
                return Ok(());
            }
        }
        let stripe = self.lock(stripe);
        self.take_from_memory(&stripe, &mut left, into);
        if let Some(store) = self.cold_store() {
            store.read(self.number, &cold_keys(&left), &mut cold)?;
            self.take_valid(&stripe, &left, &cold, into);
        }
        Ok(())
    }

    /// Appends the rows that are in memory, and keeps the ids of the others. Answers the stripe's cold version.
    fn take_from_memory(&self, stripe: &Stripe, left: &mut Vec<u64>, into: &mut RowBatch) -> u32 {
        left.iter().for_each(|id| stripe.prefetch_entry(key_of(*id)));
        left.retain(|id| !self.append_from_memory(stripe, *id, into));
        stripe.cold_versions.now
    }

    pub(crate) fn append_from_memory(&self, stripe: &Stripe, id: u64, into: &mut RowBatch) -> bool {
        let Some(slot) = stripe.find(key_of(id)) else { return false };
        into.push_row(id, stripe.slot(slot), self.is_managed.then(|| stripe.access(slot)));
        true
    }

    /// Appends rows whose cold copies are valid, unless they are in memory by now. A copy past its time to live is no row.
    fn take_valid(&self, stripe: &Stripe, ids: &[u64], cold: &ColdRows, into: &mut RowBatch) {
        let (stride, tick) = (self.stride(), self.current_tick());
        for (place, id) in ids.iter().enumerate() {
            if self.append_from_memory(stripe, *id, into) || !cold.found[place] {
                continue;
            }
            let (words, access) = cold.rows[place * (stride + 1)..][..stride + 1].split_at(stride);
            if !self.access_codec.is_expired(access[0], tick) {
                into.push_row(*id, words, Some(access[0]));
            }
        }
    }

    /// Removes the unwanted rows of one stripe, in memory and in the cold tier, the gradients that wait for them, and their exact
    /// counts, as the log learns. Answers how many copies of rows there were. No request may use these rows meanwhile.
    /// If the cold tier fails, rows may be left there.
    pub fn remove_rows(&self, stripe: usize, is_unwanted: impl Fn(u64) -> bool) -> Result<usize, ColdError> {
        let mut removed = self.remove_from_memory(stripe, &is_unwanted);
        let (mut from, mut is_first) = (None, true);
        while is_first || from.is_some() {
            let ColdIds { mut ids, next } = self.cold_ids(stripe, from, AT_ONCE)?;
            ids.retain(|id| is_unwanted(*id));
            removed += ids.len();
            self.remove_cold_copies(stripe, &ids)?;
            (from, is_first) = (next, false);
        }
        Ok(removed)
    }

    fn remove_from_memory(&self, stripe: usize, is_unwanted: &impl Fn(u64) -> bool) -> usize {
        // A row that is on its way to the cold tier has arrived before the cold tier is looked at.
        let _no_eviction = self.eviction_lock(stripe).lock();
        let mut stripe = self.lock(stripe);
        let mut rows = Vec::new();
        stripe.scan(0, usize::MAX, &mut rows);
        rows.retain(|(key, _)| is_unwanted(id_of(*key)));
        let mut gone: Vec<u64> = rows.iter().map(|(key, _)| *key).collect();
        gone.extend(stripe.filter.counted_ids().into_iter().filter(|id| is_unwanted(*id)).map(key_of));
        gone.extend(stripe.pending.iter().map(|gradient| gradient.key).filter(|key| is_unwanted(id_of(*key))));
        self.forget(&mut stripe, &gone);
        rows.len()
    }

    /// Removes these rows wherever they lie, with their exact counts and the gradients that wait for them, as the log learns.
    /// If the cold tier fails, rows may be left there.
    pub fn remove_ids(&self, ids: &[u64]) -> Result<(), ColdError> {
        self.for_each_stripe(ids, |stripe, ids| {
            let _no_eviction = self.eviction_lock(stripe).lock();
            let keys: Vec<u64> = ids.iter().map(|id| key_of(*id)).collect();
            self.forget(&mut self.lock(stripe), &keys);
            self.remove_cold_copies(stripe, ids)
        })
    }

    /// Those of the ids that have a row or an exact count, in ascending order. A table that changes meanwhile may answer what was there
    /// at any time of the call.
    pub fn known_ids(&self, ids: &[u64]) -> Result<Vec<u64>, ColdError> {
        let mut known = RowBatch::default();
        self.for_each_stripe(ids, |stripe, ids| {
            for some in ids.chunks(AT_ONCE) {
                self.read_rows_anywhere(stripe, some, &mut known)?;
                known.slots.clear();
                let counted = self.lock(stripe);
                known.ids.extend(some.iter().filter(|id| counted.filter.exact_count(key_of(**id)) > 0));
            }
            Ok(())
        })?;
        known.ids.sort_unstable();
        known.ids.dedup();
        Ok(known.ids)
    }

    /// Calls `work` with each stripe and those of the ids that are in it.
    fn for_each_stripe(
        &self,
        ids: &[u64],
        mut work: impl FnMut(usize, &[u64]) -> Result<(), ColdError>,
    ) -> Result<(), ColdError> {
        let stripe_of = |id: u64| self.stripe_of(key_of(id));
        let mut ids = ids.to_vec();
        ids.sort_unstable_by_key(|id| (stripe_of(*id), *id));
        ids.dedup();
        ids.chunk_by(|a, b| stripe_of(*a) == stripe_of(*b)).try_for_each(|ids| work(stripe_of(ids[0]), ids))
    }

    /// As [`Self::remove_ids`], by a log that is read again. Counts are not touched ([`Self::forget_counts_again`]).
    pub fn remove_again(&self, ids: &[u64]) -> Result<(), ColdError> {
        for id in ids {
            let key = key_of(*id);
            let mut stripe = self.lock(self.stripe_of(key));
            stripe.remove(key);
            self.forget_pending(&mut stripe, key);
        }
        if let Some(store) = self.cold_store().filter(|_| !ids.is_empty()) {
            store.remove(self.number, &cold_keys(ids))?;
        }
        Ok(())
    }

    fn forget(&self, stripe: &mut Stripe, keys: &[u64]) {
        for key in keys {
            stripe.remove(*key);
            stripe.filter.forget(*key);
            self.forget_pending(stripe, *key);
            if self.is_logged() {
                stripe.changes.note_removed(*key);
            }
        }
        if !keys.is_empty() {
            self.log_stripe(stripe);
        }
    }

    pub(crate) fn forget_pending(&self, stripe: &mut Stripe, key: u64) {
        let old_len = stripe.pending.len();
        stripe.pending.retain(|gradient| gradient.key != key);
        self.pending_count.fetch_sub(old_len - stripe.pending.len(), Ordering::Relaxed);
    }

    fn remove_cold_copies(&self, stripe: usize, ids: &[u64]) -> Result<(), ColdError> {
        let Some(store) = self.cold_store().filter(|_| !ids.is_empty()) else { return Ok(()) };
        let _writing = self.shared.cold_writes.read();
        store.remove(self.number, &cold_keys(ids))?;
        let mut stripe = self.lock(stripe);
        stripe.cold_versions.make_all_stale();
        Ok(())
    }
}

fn cold_keys(ids: &[u64]) -> Vec<u64> {
    ids.iter().map(|id| cold_key_of(key_of(*id))).collect()
}
