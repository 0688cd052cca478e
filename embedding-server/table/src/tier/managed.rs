//! Lookup, push and insert of a *managed* table: a table whose rows have access metadata and may be evicted.
//!
//! ```text
//! lookup   copy the rows in memory ─► one read of the cold tier for the others ─► page them in and copy them
//! push     list the rows ─► one read of the cold tier ─► page in and update        what can fail comes before any update
//! insert   list the rows ─► make room ─► write them                                chunk by chunk
//! ```

use zagros_zip::ZipEq;

use crate::key::id_of;
use crate::machine::wide::wide;
use crate::request::batch::DistinctGradients;
use crate::request::group::RequestBuffers;
use crate::request::row_loops::{row, row_mut};
use crate::request::update::RowUpdate;
use crate::tier::page_in_rows::PageIn;
use crate::tier::shared_memory::COLD_READ;
use crate::{LookupMode, LookupReport, PushReport, PushStep, RequestDeadline, RowBatch, Table, TableError};

/// A lookup searches this many ids together. Their cold copies are in memory at once.
const LOOKUP_CHUNK: usize = 4096;

impl Table {
    pub(crate) fn lookup_managed(
        &self,
        ids: &[u64],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        let mut total = LookupReport::default();
        for (ids, out) in ids.chunks(LOOKUP_CHUNK).zip_eq(out.chunks_mut(LOOKUP_CHUNK * self.dim())) {
            total += self.lookup_some(ids, access, out, scratch)?;
        }
        Ok(total)
    }

    fn lookup_some(
        &self,
        ids: &[u64],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        let mut page_in = scratch.page_ins.pop().unwrap_or_default();
        page_in.begin(scratch.deadline);
        self.copy_from_memory(ids, access, out, scratch, &mut page_in);
        if access == LookupMode::Read && !page_in.entries.is_empty() && self.has_pending() {
            self.apply_all_pending()?;
            page_in.clear();
            self.copy_from_memory(ids, access, out, scratch, &mut page_in);
        }
        let done = match access {
            _ if page_in.entries.is_empty() => Ok(LookupReport::default()),
            LookupMode::Train => self.copy_paged_in(&mut page_in, out),
            LookupMode::Read => self.copy_cold(&mut page_in, out),
        };
        scratch.keep(page_in);
        done
    }

    /// Copies the rows that are in memory. Adds the other rows to `page_in`.
    fn copy_from_memory(
        &self,
        ids: &[u64],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
        page_in: &mut PageIn,
    ) {
        let (layout, tick) = (*self.layout(), self.tick());
        scratch.group(ids, self.stripes());
        self.for_each_group(scratch, |stripe, group| {
            let before = page_in.entries.len();
            group.keys.iter().for_each(|key| stripe.prefetch_entry(*key));
            for index in 0..group.keys.len() {
                let (key, position) = (group.keys[index], group.positions[index]);
                let found = stripe.find(key).filter(|slot| !self.access_codec().expired(stripe.access(*slot), tick));
                let Some(slot) = found else {
                    page_in.add(key, position, stripe.cold_version, true);
                    continue;
                };
                if access == LookupMode::Train {
                    *stripe.access_mut(slot) = self.access_codec().used(stripe.access(slot), tick);
                }
                layout.read(stripe.slot(slot), row_mut(out, position, layout.dim));
            }
            stripe.count_lookups(group.keys.len(), page_in.entries.len() - before);
        });
    }

    /// For training: pages the other rows in or creates them, and copies them.
    fn copy_paged_in(&self, page_in: &mut PageIn, out: &mut [f32]) -> Result<LookupReport, TableError> {
        self.check_room(page_in)?;
        self.read_in_time(page_in)?;
        page_in.counts_access = true;
        let (layout, mut refused) = (*self.layout(), 0);
        self.page_in_all(page_in, &mut |stripe, entry, slot| {
            let weights = row_mut(out, entry.position, layout.dim);
            match slot {
                Some(slot) => layout.read(stripe.slot(slot), weights),
                None => weights.fill(0.0),
            }
            refused += u64::from(slot.is_none());
        })?;
        Ok(LookupReport { created: page_in.created, refused, ..LookupReport::default() })
    }

    /// For reading: copies the other rows from the cold tier. No row moves.
    fn copy_cold(&self, page_in: &mut PageIn, out: &mut [f32]) -> Result<LookupReport, TableError> {
        self.read_in_time(page_in)?;
        let (layout, tick, mut report) = (*self.layout(), self.tick(), LookupReport::default());
        for entry in &page_in.entries {
            let weights = row_mut(out, entry.position, layout.dim);
            let copy = page_in.cold_copy(entry, self.stride());
            if let Some(row) = copy.filter(|row| !self.access_codec().expired(row[self.stride()], tick)) {
                layout.read(row, weights);
                continue;
            }
            if self.is_selective() {
                weights.fill(0.0);
            } else {
                layout.fill_weights(id_of(entry.key), weights);
            }
            report.missing += 1;
        }
        Ok(report)
    }

    /// The part of a push before any change: sums repeated gradients, and finds the rows that are not in memory. The
    /// caller reads the cold copies of these rows next ([`Self::read_copies`]).
    ///
    /// # Errors
    /// If memory is full.
    pub(crate) fn prepare_push<'a>(
        &self,
        ids: &'a [u64],
        gradients: &'a [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<PreparedPush<'a>, TableError> {
        let distinct = self.distinct(ids, gradients, scratch);
        let mut page_in = scratch.page_ins.pop().unwrap_or_default();
        page_in.begin(scratch.deadline);
        self.for_each_group(scratch, |stripe, group| {
            group.keys.iter().for_each(|key| stripe.prefetch_entry(*key));
            for (key, position) in group.keys.iter().zip_eq(group.positions) {
                page_in.add(*key, *position, stripe.cold_version, stripe.find(*key).is_none());
            }
        });
        self.check_room(&page_in)?;
        Ok(PreparedPush { distinct, page_in })
    }

    /// Reads the cold copies of the rows of a push that are not in memory.
    ///
    /// # Errors
    /// If the cold tier cannot be read, or is not read before the sender of the push gives up.
    pub(crate) fn read_copies(&self, prepared: &mut PreparedPush<'_>) -> Result<(), TableError> {
        self.read_in_time(&mut prepared.page_in)
    }

    fn read_in_time(&self, page_in: &mut PageIn) -> Result<(), TableError> {
        self.read_cold(page_in)?;
        self.shared().check(page_in.deadline, COLD_READ)
    }

    /// Largest number of bytes of the cold copies of a push.
    pub(crate) fn bytes_of_copies(&self, prepared: &PreparedPush<'_>) -> usize {
        let rows = if self.is_tiered() {
            prepared.page_in.entries.iter().filter(|entry| entry.is_missing()).count()
        } else {
            0
        };
        rows * (self.stride() + 1) * size_of::<u32>()
    }

    /// Applies a prepared push, even if its sender gives up in the meantime. It cannot fail: if a row was evicted in the
    /// meantime and cannot be read back, its gradient becomes pending ([`Self::defer_gradients`]).
    pub(crate) fn apply_push(
        &self,
        prepared: PreparedPush<'_>,
        step: PushStep,
        scratch: &mut RequestBuffers,
    ) -> PushReport {
        let PreparedPush { distinct, mut page_in } = prepared;
        let mut report = PushReport { skipped: distinct.skipped, repeated: distinct.repeated, ..PushReport::default() };
        let mut update = RowUpdate::new(*self.layout(), step, &mut scratch.weights);
        let (origin, is_logged, logs_steps) = (scratch.origin, self.is_logged(), self.logs_steps(step));
        let paged_in = self.page_in_all(&mut page_in, &mut |stripe, entry, slot| {
            let Some(slot) = slot else {
                report.refused += 1;
                return;
            };
            stripe.keep(entry.key, slot);
            let gradient = row(&distinct.gradients, entry.position, self.dim());
            wide(
                #[inline(always)]
                || stripe.update(stripe.address(slot), entry.key, &mut update, gradient),
            );
            if is_logged {
                stripe.changes.origin = origin;
                stripe.note_row(entry.key, slot);
            }
            if logs_steps {
                stripe.note_step_row(entry.key);
            }
            report.updated += 1;
        });
        if paged_in.is_err() {
            report.updated += page_in.entries.len() as u64;
            self.defer_gradients(&page_in.entries, &distinct.gradients, step, origin);
        }
        report.created = page_in.created;
        scratch.keep(page_in);
        report
    }

    /// Inserts whole rows chunk by chunk, and makes room for each chunk.
    pub(crate) fn insert_managed(&self, rows: &RowBatch, scratch: &mut RequestBuffers) -> Result<u64, TableError> {
        self.apply_all_pending()?;
        let (tick, mut new, mut page_in) = (self.tick(), 0, scratch.page_ins.pop().unwrap_or_default());
        let is_logged = self.is_logged();
        scratch.group(&rows.ids, self.stripes());
        page_in.begin(RequestDeadline::NONE);
        self.for_each_group(scratch, |_, group| {
            let entries = group.keys.iter().zip_eq(group.positions);
            entries.for_each(|(key, position)| page_in.add(*key, *position, 0, true));
        });
        self.check_room(&page_in)?;
        self.for_each_chunk(&mut page_in.entries, page_in.deadline, &mut |stripe, entry| {
            new += u64::from(stripe.find(entry.key).is_none());
            let slot = stripe.put(entry.key, row(&rows.slots, entry.position, self.stride()));
            let access = rows.access.get(entry.position as usize).copied();
            *stripe.access_mut(slot) = access.unwrap_or_else(|| self.access_codec().first(tick));
            if is_logged {
                stripe.note_row(entry.key, slot);
            }
        });
        scratch.keep(page_in);
        Ok(new)
    }

    /// Refuses a request that must page rows in while memory is exhausted and no row can be evicted.
    fn check_room(&self, page_in: &PageIn) -> Result<(), TableError> {
        let shared = self.shared();
        let is_stuck = || self.is_tiered() && shared.budget.is_exhausted() && shared.failure().is_some();
        let Some(first) = page_in.missing().filter(|_| is_stuck()) else {
            return Ok(());
        };
        let mut stripe = self.lock(self.stripe_of(first.key));
        let (used, limit) = shared.budget.used();
        match self.evict(&mut stripe, &mut [], 0, 1, self.eviction_wait(page_in.deadline)) {
            Ok(_) => Ok(()),
            Err(source) => Err(TableError::Full { table: self.number(), used, limit, source }),
        }
    }
}

/// A push to one table that is checked and ready to apply.
pub(crate) struct PreparedPush<'a> {
    distinct: DistinctGradients<'a>,
    page_in: PageIn,
}
