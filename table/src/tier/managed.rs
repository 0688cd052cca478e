//! Lookup, push and insert of a *managed* table: a table whose rows have access metadata and may be evicted.
//!
//! ```text
//! lookup   copy the rows in memory ─► one read of the cold tier for the others ─► page them in and copy them
//! push     list the rows ─► one read of the cold tier ─► page in and update        what can fail comes before any update
//! insert   list the rows ─► make room ─► write them                                chunk by chunk
//! ```

use zagros_zip::ZipEq;

use crate::key::id_of;
use crate::machine::run_wide;
use crate::request::batch::DistinctGradients;
use crate::request::group::RequestBuffers;
use crate::request::row_loops::{row, row_mut};
use crate::request::update::RowUpdate;
use crate::tier::eviction::RoomFor;
use crate::tier::page_in::read_cold_of_all;
use crate::tier::page_in_rows::PageIn;
use crate::tier::shared_memory::{COLD_READ, SharedMemory};
use crate::{LookupMode, LookupReport, PushReport, PushStep, RequestDeadline, RowBatch, Table, TableError};

/// A lookup searches this many ids of all tables together. Their cold copies are in memory at once.
const LOOKUP_CHUNK: usize = 4096;
/// Rows of a stripe that are brought into the cache together.
const AHEAD: usize = 16;

impl Table {
    pub(crate) fn lookup_managed(
        &self,
        ids: &[u64],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        lookup_all([(self, ids, out)].into_iter(), access, scratch)
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
        let (layout, tick) = (self.layout, self.current_tick());
        scratch.group_ids(ids, self.stripes());
        self.for_each_group(scratch, |stripe, group| {
            let old_len = page_in.entries.len();
            group.keys.iter().for_each(|key| stripe.prefetch_entry(*key));
            for index in 0..group.keys.len() {
                if index.is_multiple_of(AHEAD) {
                    let next = &group.keys[index..];
                    next.iter().take(AHEAD).for_each(|key| stripe.prefetch_row(*key, layout.stride));
                }
                let (key, position) = (group.keys[index], group.positions[index]);
                let found = stripe.find(key).filter(|slot| !self.access_codec.is_expired(stripe.access(*slot), tick));
                let Some(slot) = found else {
                    page_in.add(key, position, stripe.cold_versions.now, true);
                    continue;
                };
                if access == LookupMode::Train {
                    *stripe.access_mut(slot) = self.access_codec.after_use(stripe.access(slot), tick);
                }
                layout.read_weights(stripe.slot(slot), row_mut(out, position, layout.dim));
            }
            stripe.count_lookups(group.keys.len(), page_in.entries.len() - old_len);
        });
    }

    /// For training: pages the other rows in or creates them, and copies them. Their cold copies are read.
    fn copy_paged_in(&self, page_in: &mut PageIn, out: &mut [f32]) -> Result<LookupReport, TableError> {
        page_in.counts_access = true;
        let (layout, mut refused) = (self.layout, 0);
        self.page_in_all(page_in, &mut |stripe, entry, slot| {
            let weights = row_mut(out, entry.position, layout.dim);
            match slot {
                Some(slot) => layout.read_weights(stripe.slot(slot), weights),
                None => weights.fill(0.0),
            }
            refused += u64::from(slot.is_none());
        })?;
        Ok(LookupReport { created: page_in.created, late: page_in.late, refused, ..LookupReport::default() })
    }

    /// For reading: copies the other rows from the cold tier, whose copies are read. No row moves.
    fn copy_cold(&self, page_in: &PageIn, out: &mut [f32]) -> LookupReport {
        let (layout, tick, mut report) = (self.layout, self.current_tick(), LookupReport::default());
        for entry in &page_in.entries {
            let weights = row_mut(out, entry.position, layout.dim);
            let copy = page_in.cold_copy(entry, self.stride());
            if let Some(row) = copy.filter(|row| !self.access_codec.is_expired(row[self.stride()], tick)) {
                layout.read_weights(row, weights);
                continue;
            }
            if self.is_selective {
                weights.fill(0.0);
            } else {
                layout.fill_weights(id_of(entry.key), weights);
            }
            report.missing += 1;
        }
        report
    }

    /// The part of a push before any change: sums repeated gradients, and finds the rows that are not in memory. The
    /// caller reads the cold copies of these rows next ([`read_copies`]).
    pub(crate) fn prepare_push<'a>(
        &self,
        ids: &'a [u64],
        gradients: &'a [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<PreparedPush<'a>, TableError> {
        let distinct = self.distinct_gradients(ids, gradients, scratch);
        let mut page_in = scratch.page_ins.pop().unwrap_or_default();
        page_in.begin(scratch.deadline);
        self.for_each_group(scratch, |stripe, group| {
            group.keys.iter().for_each(|key| stripe.prefetch_entry(*key));
            for (key, position) in group.keys.iter().zip_eq(group.positions) {
                page_in.add(*key, *position, stripe.cold_versions.now, stripe.find(*key).is_none());
            }
        });
        self.check_room(&page_in)?;
        Ok(PreparedPush { distinct, page_in })
    }

    pub(crate) fn read_copies(
        &self,
        prepared: &mut PreparedPush<'_>,
        deadline: RequestDeadline,
    ) -> Result<(), TableError> {
        read_copies(std::iter::once((self, prepared)), &self.shared, deadline)
    }

    /// Largest number of bytes of the cold copies of a push.
    pub(crate) fn bytes_of_copies(&self, prepared: &PreparedPush<'_>) -> usize {
        if self.is_tiered { prepared.page_in.bytes_of_copies(self.stride()) } else { 0 }
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
        let mut update = RowUpdate::new(self.layout, step, &mut scratch.weights);
        let (origin, is_logged, logs_steps) = (scratch.origin, self.is_logged(), self.logs_steps(step));
        let paged_in = self.page_in_all(&mut page_in, &mut |stripe, entry, slot| {
            let Some(slot) = slot else {
                report.refused += 1;
                return;
            };
            stripe.preserve_row(entry.key, slot);
            let gradient = row(&distinct.gradients, entry.position, self.dim());
            run_wide(
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
        scratch.keep_page_in(page_in);
        report
    }

    /// Inserts whole rows chunk by chunk, and makes room for each chunk.
    pub(crate) fn insert_managed(&self, rows: &RowBatch, scratch: &mut RequestBuffers) -> Result<u64, TableError> {
        self.apply_all_pending()?;
        let (tick, mut new, mut page_in) = (self.current_tick(), 0, scratch.page_ins.pop().unwrap_or_default());
        let is_logged = self.is_logged();
        scratch.group_ids(&rows.ids, self.stripes());
        page_in.begin(RequestDeadline::NONE);
        self.for_each_group(scratch, |_, group| {
            let entries = group.keys.iter().zip_eq(group.positions);
            entries.for_each(|(key, position)| page_in.add(*key, *position, 0, true));
        });
        self.check_room(&page_in)?;
        self.for_each_chunk(&page_in.entries, RoomFor::Request, page_in.deadline, &mut |stripe, entry| {
            new += u64::from(stripe.find(entry.key).is_none());
            let slot = stripe.put(entry.key, row(&rows.slots, entry.position, self.stride()));
            let access = rows.access.get(entry.position as usize).copied();
            *stripe.access_mut(slot) = access.unwrap_or_else(|| self.access_codec.first_use(tick));
            if is_logged {
                stripe.note_row(entry.key, slot);
            }
        });
        scratch.keep_page_in(page_in);
        Ok(new)
    }

    /// Refuses a request that must page rows in while memory is exhausted and no row can be evicted.
    fn check_room(&self, page_in: &PageIn) -> Result<(), TableError> {
        let shared = &self.shared;
        let is_stuck = || self.is_tiered && shared.budget.is_exhausted() && shared.last_cold_failure().is_some();
        let Some(first) = page_in.first_missing().filter(|_| is_stuck()) else { return Ok(()) };
        let mut stripe = self.lock(self.stripe_of(first.key));
        let (used, limit) = shared.budget.used_and_limit();
        match self.evict_rows(&mut stripe, &[], 1, RoomFor::Request, page_in.deadline) {
            Ok(_) => Ok(()),
            Err(source) => Err(TableError::Full { table: self.number, used, limit, source }),
        }
    }
}

struct PartialLookup<'a> {
    table: &'a Table,
    ids: &'a [u64],
    /// `[ids.len() * dim]`.
    out: &'a mut [f32],
    page_in: PageIn,
}

/// Looks up ids of managed tables, [`LOOKUP_CHUNK`] at a time over all tables: with one read of the cold tier for each so many ids.
pub(crate) fn lookup_all<'a>(
    parts: impl Iterator<Item = (&'a Table, &'a [u64], &'a mut [f32])>,
    access: LookupMode,
    scratch: &mut RequestBuffers,
) -> Result<LookupReport, TableError> {
    let (mut total, mut open, mut room) = (LookupReport::default(), Vec::new(), LOOKUP_CHUNK);
    for (table, mut ids, mut out) in parts {
        while !ids.is_empty() {
            let (now, later) = ids.split_at(ids.len().min(room));
            let (rows, rest) = out.split_at_mut(now.len() * table.dim());
            let page_in = scratch.page_ins.pop().unwrap_or_default();
            open.push(PartialLookup { table, ids: now, out: rows, page_in });
            (ids, out, room) = (later, rest, room - now.len());
            if room == 0 {
                total += lookup_some(&mut open, access, scratch)?;
                room = LOOKUP_CHUNK;
            }
        }
    }
    total += lookup_some(&mut open, access, scratch)?;
    Ok(total)
}

fn lookup_some(
    open: &mut Vec<PartialLookup<'_>>,
    access: LookupMode,
    scratch: &mut RequestBuffers,
) -> Result<LookupReport, TableError> {
    let done = open.iter_mut().try_for_each(|part| part.copy_from_memory(access, scratch)).and_then(|()| {
        read_cold_of_all(open.iter_mut().map(|part| (part.table, &mut part.page_in)))?;
        let mut total = LookupReport::default();
        for part in &mut *open {
            total += part.copy_others(access)?;
        }
        Ok(total)
    });
    open.drain(..).for_each(|part| scratch.keep_page_in(part.page_in));
    done
}

impl PartialLookup<'_> {
    fn copy_from_memory(&mut self, access: LookupMode, scratch: &mut RequestBuffers) -> Result<(), TableError> {
        let Self { table, ids, out, page_in } = self;
        page_in.begin(scratch.deadline);
        table.copy_from_memory(ids, access, out, scratch, page_in);
        if access == LookupMode::Read && !page_in.entries.is_empty() && table.has_pending() {
            table.apply_all_pending()?;
            page_in.clear();
            table.copy_from_memory(ids, access, out, scratch, page_in);
        }
        if access == LookupMode::Train { table.check_room(page_in) } else { Ok(()) }
    }

    /// Copies the rows that were not in memory. Their cold copies are read.
    fn copy_others(&mut self, access: LookupMode) -> Result<LookupReport, TableError> {
        let Self { table, out, page_in, .. } = self;
        if page_in.entries.is_empty() {
            return Ok(LookupReport::default());
        }
        table.shared.check_deadline(page_in.deadline, COLD_READ)?;
        match access {
            LookupMode::Train => table.copy_paged_in(page_in, out),
            LookupMode::Read => Ok(table.copy_cold(page_in, out)),
        }
    }
}

/// A push to one table that is checked and ready to apply.
pub(crate) struct PreparedPush<'a> {
    distinct: DistinctGradients<'a>,
    page_in: PageIn,
}

/// Reads the cold copies of the rows of prepared pushes that are not in memory, in one call.
pub(crate) fn read_copies<'a, 'b: 'a>(
    prepared: impl Iterator<Item = (&'a Table, &'a mut PreparedPush<'b>)>,
    shared: &SharedMemory,
    deadline: RequestDeadline,
) -> Result<(), TableError> {
    read_cold_of_all(prepared.map(|(table, prepared)| (table, &mut prepared.page_in)))?;
    shared.check_deadline(deadline, COLD_READ)
}
