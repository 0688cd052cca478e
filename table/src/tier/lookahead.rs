//! Lookahead: rows that a later batch needs are paged in before the batch is looked up.
//!
//! ```text
//! hint ─► mark the rows in memory ─► one read of the cold tier for the others ─► page them in, marked
//! ```
//!
//! A hint is advice. It creates no row, counts no use and changes no value, so results are equal with hints and without
//! (invariant DP-7). A row that
//! cannot be paged in (the cold tier fails, its copy is stale, nothing can leave memory) is left to the lookup.

use crate::key::cold_key_of;
use crate::stripe::Stripe;
use crate::tier::eviction::RoomFor;
use crate::tier::page_in::read_cold_of_all;
use crate::tier::page_in_rows::{PageIn, PageInEntry};
use crate::tier::stripe_notes::HintNumber;
use crate::{RequestBuffers, RequestGuard, RequestPart, Table, TableError};

impl RequestGuard<'_> {
    /// Pages in the rows of all parts, and keeps them in memory for some more hints
    /// ([`crate::TableResources::lookahead_hints`]). Rows that do not exist are not created. Returns how many rows it paged in.
    pub fn page_in_hinted(&self, parts: &[RequestPart<'_>], scratch: &mut RequestBuffers) -> Result<u64, TableError> {
        self.set.check_parts(parts)?;
        let hint = self.set.shared.hints.next();
        let mut missing = Vec::with_capacity(parts.len());
        for part in parts {
            let table = self.set.table(part.table)?;
            if table.cold_store().is_some() {
                let mut page_in = scratch.page_ins.pop().unwrap_or_default();
                page_in.begin(self.deadline);
                table.mark_hinted(part.ids, hint, scratch, &mut page_in);
                missing.push((table, page_in));
            }
        }
        let bytes = missing.iter().map(|(table, page_in)| page_in.bytes_of_copies(table.stride())).sum();
        let _held = self.set.shared.acquire_copies(bytes, self.deadline)?;
        let read = read_cold_of_all(missing.iter_mut().map(|(table, page_in)| (*table, page_in)));
        let mut ready = 0;
        for (table, mut page_in) in missing {
            if read.is_ok() {
                ready += table.page_in_hinted(&mut page_in, hint);
            }
            scratch.keep_page_in(page_in);
        }
        read.map(|()| ready)
    }
}

impl Table {
    /// Marks the rows in memory, and adds the others to `page_in`.
    fn mark_hinted(&self, ids: &[u64], hint: HintNumber, scratch: &mut RequestBuffers, page_in: &mut PageIn) {
        scratch.group_ids(ids, self.stripes());
        self.for_each_group(scratch, |stripe, group| {
            group.keys.iter().for_each(|key| stripe.prefetch_entry(*key));
            for key in group.keys {
                match stripe.find(*key) {
                    Some(slot) => stripe.hinted.mark(slot, hint),
                    None => page_in.add(*key, 0, stripe.cold_versions.now, true),
                }
            }
            stripe.counts.hinted += group.keys.len() as u64;
        });
    }

    /// Pages in rows whose copies were read. Returns their number.
    fn page_in_hinted(&self, page_in: &mut PageIn, hint: HintNumber) -> u64 {
        let (mut entries, tick, mut ready) = (std::mem::take(&mut page_in.entries), self.current_tick(), 0);
        entries.retain(|entry| page_in.cold_copy(entry, self.stride()).is_some());
        self.for_each_chunk(&entries, RoomFor::Hint, page_in.deadline, &mut |stripe, entry| {
            ready += u64::from(self.page_in_hinted_row(stripe, &entry, page_in, tick, hint));
        });
        entries.clear();
        page_in.entries = entries;
        ready
    }

    fn page_in_hinted_row(
        &self,
        stripe: &mut Stripe,
        entry: &PageInEntry,
        page_in: &PageIn,
        tick: u64,
        hint: HintNumber,
    ) -> bool {
        if let Some(slot) = stripe.find(entry.key) {
            stripe.hinted.mark(slot, hint);
            return false;
        }
        let Some(row) = page_in.cold_copy(entry, self.stride()) else { return false };
        let (words, access) = row.split_at(self.stride());
        // Advice never takes memory beyond the budget.
        let growth = stripe.growth_bytes(1);
        let has_room = growth == 0 || stripe.memory_bytes() + growth <= stripe.charged;
        let is_stale = stripe.cold_versions.is_stale(cold_key_of(entry.key), entry.cold_version);
        if is_stale || !has_room || self.access_codec.is_expired(access[0], tick) {
            return false;
        }
        let slot = self.promote(stripe, entry.key, words, access[0]);
        stripe.hinted.mark(slot, hint);
        stripe.counts.ready += 1;
        true
    }
}
