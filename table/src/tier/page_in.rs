//! Page-in: a request brings rows from the cold tier to memory, or creates them, while other threads evict rows.
//!
//! Invariant TI-1: a row has one value. The row in memory counts if there is one, otherwise the copy in the cold tier.
//!
//! A request reads the cold tier without a lock. Meanwhile another thread may page the row in, change it and evict it
//! again. Then the copy that the request has read is stale. Each stripe therefore has a *cold version*, which every
//! eviction to the cold tier increases. A copy is valid if its row was not evicted since the version at which the row was
//! found missing ([`crate::tier::stripe_notes`]):
//!
//! ```text
//! thread A                                     thread B                      cold version of the stripe
//! lock: row 7 is missing, version is 4                                       4
//! read row 7 from the cold tier
//!                                              pages row 7 in, updates it
//!                                              evicts row 7                  5
//! lock: row 7 was evicted at 5, after 4 → stale
//! read row 7 again                                                           5
//! lock: row 7 was not evicted after 5 → the copy is valid
//! ```
//!
//! After [`ROUNDS`] stale reads, a request reads the rows of a stripe while it holds the stripe's lock. So every
//! request ends.

use crate::config::STRIPE_FLOOR;
use crate::key::{cold_key_of, stripe_of};
use crate::stripe::Stripe;
use crate::tier::eviction::RoomFor;
use crate::tier::page_in_rows::{PageIn, PageInEntry};
use crate::{ColdError, ColdRead, RequestDeadline, Table, TableError};

/// How many rows are paged in under one lock. Every stripe has room for them.
const CHUNK: usize = STRIPE_FLOOR;
/// Reads without the lock, before the read that holds it.
const ROUNDS: usize = 3;

/// What a request does with each row. It gets the stripe, the row's entry and the row's slot. The slot is `None` if the
/// id is not admitted.
pub(crate) type RowAction<'a> = dyn FnMut(&mut Stripe, PageInEntry, Option<u32>) + 'a;

enum PageInOutcome {
    Slot(u32),
    Refused,
    Stale,
}

/// Reads the cold copies of rows of several tables that were not in memory, in one call. Tables of a set share their cold tier.
pub(crate) fn read_cold_of_all<'a>(parts: impl Iterator<Item = (&'a Table, &'a mut PageIn)>) -> Result<(), TableError> {
    let (mut reads, mut first) = (Vec::new(), None);
    for (table, PageIn { entries, cold_keys, cold, .. }) in parts {
        let Some(store) = table.cold_store() else { continue };
        PageIn::list_cold_keys(entries, cold_keys);
        if !cold_keys.is_empty() {
            first.get_or_insert((table, store));
            reads.push(ColdRead { table: table.number, cold_keys, into: cold });
        }
    }
    let Some((table, store)) = first else { return Ok(()) };
    store.read_all(&mut reads).map_err(|source| table.unreadable(source))
}

impl Table {
    /// Brings the rows of `page_in` to memory, creates rows that do not exist, and calls `action` once for each row.
    /// The caller has read the cold copies ([`Self::read_cold`]). After an error, `page_in` holds the remaining rows.
    pub(crate) fn page_in_all(&self, page_in: &mut PageIn, action: &mut RowAction<'_>) -> Result<(), TableError> {
        for _ in 0..ROUNDS {
            self.run_round(page_in, action);
            if page_in.entries.is_empty() {
                return Ok(());
            }
            self.read_cold(page_in)?;
        }
        while !page_in.entries.is_empty() {
            self.page_in_locked(page_in, action)?;
        }
        Ok(())
    }

    /// Reads the cold copies of all rows of `page_in` that were not in memory.
    pub(crate) fn read_cold(&self, page_in: &mut PageIn) -> Result<(), TableError> {
        read_cold_of_all(std::iter::once((self, page_in)))
    }

    /// One round. Rows with a stale copy stay in `page_in`.
    fn run_round(&self, page_in: &mut PageIn, action: &mut RowAction<'_>) {
        let mut entries = std::mem::take(&mut page_in.entries);
        let tick = self.current_tick();
        let deadline = page_in.deadline;
        self.for_each_chunk(&entries, RoomFor::Request, deadline, &mut |stripe, entry| {
            self.page_in_one(stripe, entry, page_in, tick, action);
        });
        entries.clear();
        page_in.entries = std::mem::replace(&mut page_in.stale, entries);
    }

    /// Calls `work` for each row. Takes chunks of one stripe, and makes room in the stripe for each chunk. Waits for room
    /// until `deadline` at most.
    pub(crate) fn for_each_chunk(
        &self,
        entries: &[PageInEntry],
        room: RoomFor,
        deadline: RequestDeadline,
        work: &mut dyn FnMut(&mut Stripe, PageInEntry),
    ) {
        let mut start = 0;
        while start < entries.len() {
            let end = self.end_of_stripe(entries, start).min(start + CHUNK);
            let mut stripe = self.lock(self.stripe_of(entries[start].key));
            entries[start..end].iter().for_each(|entry| stripe.prefetch_entry(entry.key));
            self.make_room(&mut stripe, &entries[start..end], room, deadline);
            entries[start..end].iter().for_each(|entry| stripe.prefetch_row(entry.key, self.stride()));
            entries[start..end].iter().for_each(|entry| work(&mut stripe, *entry));
            self.log_stripe(&mut stripe);
            self.charge(&mut stripe);
            start = end;
        }
    }

    /// Appends to the log what has changed in a stripe since its lock was taken.
    pub(crate) fn log_stripe(&self, stripe: &mut Stripe) {
        let number = stripe.number;
        self.append_changes(number, &mut stripe.changes);
    }

    /// The last resort: reads the rows of the last stripe while it holds the stripe's lock.
    fn page_in_locked(&self, page_in: &mut PageIn, action: &mut RowAction<'_>) -> Result<(), TableError> {
        let Some(last) = page_in.entries.last().copied() else { return Ok(()) };
        let number = self.stripe_of(last.key);
        let start = page_in.entries.iter().position(|entry| self.stripe_of(entry.key) == number).unwrap_or(0);
        let mut stripe = self.lock(number);
        let now = stripe.cold_versions.now;
        let entries = page_in.entries.split_off(start).into_iter().map(|entry| entry.with_stale_copy(now));
        let mut others = std::mem::replace(&mut page_in.entries, entries.collect());
        let read = self.read_cold(page_in);
        std::mem::swap(&mut page_in.entries, &mut others);
        let mut entries = others;
        if read.is_err() {
            page_in.entries.append(&mut entries);
            return read;
        }
        let tick = self.current_tick();
        entries.into_iter().for_each(|entry| self.page_in_one(&mut stripe, entry, page_in, tick, action));
        self.log_stripe(&mut stripe);
        self.charge(&mut stripe);
        Ok(())
    }

    fn page_in_one(
        &self,
        stripe: &mut Stripe,
        entry: PageInEntry,
        page_in: &mut PageIn,
        tick: u64,
        action: &mut RowAction<'_>,
    ) {
        match self.find_or_make(stripe, &entry, page_in, tick) {
            PageInOutcome::Slot(slot) => action(stripe, entry, Some(slot)),
            PageInOutcome::Refused => action(stripe, entry, None),
            PageInOutcome::Stale => page_in.stale.push(entry.with_stale_copy(stripe.cold_versions.now)),
        }
    }

    /// Returns the row in memory if there is one, otherwise the cold copy if it is valid, otherwise a new row
    /// (invariant TI-1).
    fn find_or_make(&self, stripe: &mut Stripe, entry: &PageInEntry, page_in: &mut PageIn, tick: u64) -> PageInOutcome {
        if !(self.is_selective && self.remove_if_expired(stripe, entry.key, tick))
            && let Some(outcome) = self.find_existing(stripe, entry, page_in, tick)
        {
            return outcome;
        }
        let Some(slot) = self.create(stripe, entry.key, tick, page_in.counts_access) else {
            return PageInOutcome::Refused;
        };
        page_in.created += 1;
        PageInOutcome::Slot(slot)
    }

    /// Removes a row past its time to live. Returns whether there was one. An admission policy has to admit the id
    /// again. The cold version stays, because a cold copy of the row is past its time to live as well.
    fn remove_if_expired(&self, stripe: &mut Stripe, key: u64, tick: u64) -> bool {
        let expired = stripe.find(key).is_some_and(|slot| self.access_codec.is_expired(stripe.access(slot), tick));
        if expired {
            stripe.remove(key);
            stripe.counts.expired += 1;
        }
        expired
    }

    /// Notes the use of a row in memory. Resets a row past its time to live, and returns whether it did.
    fn use_slot(&self, stripe: &mut Stripe, key: u64, slot: u32, tick: u64) -> bool {
        let access = stripe.access(slot);
        let expired = self.access_codec.is_expired(access, tick);
        if expired {
            stripe.reset_row(key, slot, &self.layout);
        }
        *stripe.access_mut(slot) =
            if expired { self.access_codec.first_use(tick) } else { self.access_codec.after_use(access, tick) };
        expired
    }

    pub(crate) fn promote(&self, stripe: &mut Stripe, key: u64, words: &[u32], access: u32) -> u32 {
        let slot = stripe.put_back(key, words);
        *stripe.access_mut(slot) = access;
        stripe.counts.promoted += 1;
        self.apply_pending(stripe, key, slot);
        slot
    }

    /// Returns a row that exists, or that may exist because its cold copy is stale. `None` if there is no such row.
    fn find_existing(
        &self,
        stripe: &mut Stripe,
        entry: &PageInEntry,
        page_in: &mut PageIn,
        tick: u64,
    ) -> Option<PageInOutcome> {
        if let Some(slot) = stripe.find(entry.key) {
            page_in.created += u64::from(self.use_slot(stripe, entry.key, slot, tick));
            return Some(PageInOutcome::Slot(slot));
        }
        if self.is_tiered && stripe.cold_versions.is_stale(cold_key_of(entry.key), entry.cold_version) {
            return Some(PageInOutcome::Stale);
        }
        let row = page_in.cold_copy(entry, self.stride())?;
        stripe.counts.cold_reads += 1;
        stripe.counts.late += u64::from(page_in.counts_access);
        let (words, access) = (&row[..self.stride()], row[self.stride()]);
        if !self.access_codec.is_expired(access, tick) {
            let slot = self.promote(stripe, entry.key, words, self.access_codec.after_use(access, tick));
            page_in.late += 1;
            return Some(PageInOutcome::Slot(slot));
        }
        stripe.counts.expired += 1;
        None
    }

    fn create(&self, stripe: &mut Stripe, key: u64, tick: u64, counts_access: bool) -> Option<u32> {
        let admitted = if counts_access { stripe.filter.observe(key) } else { stripe.filter.admits(key) };
        if counts_access && self.is_logged() && stripe.filter.describe().is_some() {
            stripe.changes.note_seen(key);
        }
        if !admitted {
            stripe.counts.refused += 1;
            return None;
        }
        stripe.counts.admitted += u64::from(self.is_selective);
        let (slot, _) = stripe.find_or_create(key, &self.layout);
        *stripe.access_mut(slot) = self.access_codec.first_use(tick);
        // Elsewhere a row that no push has changed needs no record: it can be made again from its id. A push notes the row itself.
        if counts_access && self.is_selective && self.is_logged() {
            stripe.note_row(key, slot);
        }
        self.apply_pending(stripe, key, slot);
        Some(slot)
    }

    fn end_of_stripe(&self, entries: &[PageInEntry], start: usize) -> usize {
        let number = self.stripe_of(entries[start].key);
        start + entries[start..].iter().take_while(|entry| self.stripe_of(entry.key) == number).count()
    }

    pub(crate) fn stripe_of(&self, key: u64) -> usize {
        stripe_of(key, self.stripes())
    }

    pub(crate) fn unreadable(&self, source: ColdError) -> TableError {
        TableError::Cold { table: self.number, source }
    }
}
