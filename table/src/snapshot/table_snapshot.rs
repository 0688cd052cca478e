//! A snapshot: the rows of all tables at one instant, read while training continues.
//!
//! ```text
//! instant   no request is under way (the gate), the cold tier is frozen, each stripe gets a StripeCapture
//! later     a request changes a row for the first time ─► its old content is copied to the StripeCapture
//! reading   copied rows + rows that have not changed + rows of the frozen cold tier that were not in memory
//! ```
//!
//! A stripe copies each row that changes until the snapshot has read the stripe. Read a snapshot soon, because the
//! budget counts these copies. They have a limit ([`crate::snapshot::capture`]). The access metadata of a row may be of a lookup after the instant. The weights and
//! optimiser state are always of the instant.
//!
//! If a row has two copies, the copy that was in memory counts (invariant TI-1).
//!
//! Reads the rows of one stripe as they were at the instant of a snapshot, in parts.
//!
//! The reader merges two sequences by cold key. If a row has two copies, the copy that was in memory counts:
//!
//! ```text
//! in memory, by cold key:     b · · e · g      changed rows are copies, the others are read where they lie
//! cold tier, by cold key:     a b' c · f       b' is void, since b was in memory (invariant TI-1)
//! answered:                   a b c e f g      the order depends on the content alone
//! ```
//!
//! The reader holds only some rows of each sequence at a time.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex, RwLockWriteGuard};

use crate::key::{cold_key_of, cold_keys_of_stripe, id_of};
use crate::tier::maintenance::cold_error;
use crate::{
    ColdError, ColdScan, ColdView, FrequencyCounts, RowBatch, SnapshotCopies, SnapshotKind, Table, TableError,
    TableSet, TableTime,
};

/// Longest wait for running requests, and the share of a request's timeout that the wait may take.
const WAIT: Duration = Duration::from_secs(10);
const WAIT_SHARE: u32 = 4;

/// All rows at one instant. There is at most one snapshot at a time. Dropping the snapshot ends it.
pub struct TableSnapshot<'a> {
    set: &'a TableSet,
    moment: TableTime,
    rows: u64,
    cold: Option<Mutex<Box<dyn ColdView>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableSnapshotError {
    #[error("a snapshot of the tables is being read; wait until it is done")]
    Running,
    /// A request or a write did not end in time.
    #[error("no snapshot of the tables: waited {waited:?} for {whom} to end; try again later")]
    Busy { whom: &'static str, waited: Duration },
    /// Changes were not noted since a snapshot, or too many rows were removed.
    #[error("no snapshot of changes: what changed was not noted; take one of all rows")]
    ChangesUnknown,
    /// The cold tier cannot be frozen, or rows in it have pending gradients.
    #[error("no snapshot of the tables; try again later")]
    Cold(#[source] ColdError),
}

impl TableSet {
    /// Whether snapshots of changes are possible: no table has rows that leave memory, expire or wait for admission.
    pub fn can_note_changes(&self) -> bool {
        !self.iter().any(|table| table.is_managed)
    }

    /// Takes a snapshot. It contains a push whole or not at all, even a push to several tables. The same is true of
    /// everything done under one [`crate::RequestGuard`].
    /// It waits 10 s, or a quarter of the timeout of requests, for running ones to end.
    pub fn take_snapshot(&self) -> Result<TableSnapshot<'_>, TableSnapshotError> {
        self.snapshot_of(SnapshotKind::Whole)
    }

    /// As [`Self::take_snapshot`], of some rows.
    /// On an error nothing changes.
    pub fn snapshot_of(&self, kind: SnapshotKind) -> Result<TableSnapshot<'_>, TableSnapshotError> {
        if self.has_snapshot.swap(true, Ordering::Acquire) {
            return Err(TableSnapshotError::Running);
        }
        // From here on, dropping the snapshot ends it.
        let mut snapshot = TableSnapshot { set: self, moment: TableTime::default(), rows: 0, cold: None };
        self.iter()
            .try_for_each(Table::apply_all_pending)
            .map_err(|error| TableSnapshotError::Cold(cold_error(error)))?;
        let (moment, rows, _still) = self.take_instant(kind)?;
        (snapshot.moment, snapshot.rows) = (moment, rows);
        if let Some(store) = &self.shared.capacity.cold {
            snapshot.cold = Some(Mutex::new(store.freeze().map_err(TableSnapshotError::Cold)?));
        }
        Ok(snapshot)
    }

    /// Takes the instant. The guard keeps the cold tier as it was, so requests may run while the cold tier is frozen.
    fn take_instant(
        &self,
        kind: SnapshotKind,
    ) -> Result<(TableTime, u64, RwLockWriteGuard<'_, ()>), TableSnapshotError> {
        // Requests wait during this call, so its wait is a share of their timeout.
        let wait = self.shared.capacity.longest_wait(WAIT, WAIT_SHARE);
        let busy = |whom| TableSnapshotError::Busy { whom, waited: wait };
        let _alone = self.gate.try_write_for(wait).ok_or(busy("a lookup or a push to end"))?;
        let still = self.shared.cold_writes.try_write_for(wait).ok_or(busy("a write to the cold tier to end"))?;
        if self.iter().any(Table::has_pending) {
            return Err(busy("pending gradients, whose rows cannot be read from the cold tier"));
        }
        let notes = |table: &Table| (0..table.stripes()).all(|stripe| table.lock(stripe).notes_changes());
        if kind == SnapshotKind::Changes && !self.iter().all(notes) {
            return Err(TableSnapshotError::ChangesUnknown);
        }
        let (mut rows, mut bytes) = (0, 0);
        self.shared.captures.reset_limit(usize::MAX);
        for table in self.iter() {
            for stripe in 0..table.stripes() {
                let mut stripe = table.lock(stripe);
                stripe.begin_capture(kind, &self.shared.captures);
                rows += stripe.row_count() as u64;
                bytes += stripe.memory_bytes();
            }
        }
        self.shared.captures.reset_limit(self.shared.capacity.most_copies(bytes));
        Ok((self.shared.clock.now(), rows, still))
    }

    pub fn snapshot_copies(&self) -> SnapshotCopies {
        self.shared.captures.copy_totals()
    }

    /// Gives the present snapshot up: its copies go, and a thread that reads it gets an error.
    pub(crate) fn give_up_snapshot(&self) {
        self.shared.captures.give_up();
        self.iter().for_each(|table| (0..table.stripes()).for_each(|stripe| table.end_capture(stripe)));
    }
}

impl TableSnapshot<'_> {
    /// The time of the instant. A process that loads the rows sets its tables to this time ([`TableSet::advance_clock`]).
    pub fn snapshot_time(&self) -> TableTime {
        self.moment
    }

    /// Rows that were in memory at the instant, whatever the kind of the snapshot.
    pub fn row_count(&self) -> u64 {
        self.rows
    }

    /// Ids of the rows of one stripe that are gone since the snapshot before. Empty unless this is one of changes. Call it
    /// before the stripe's rows are read to their end.
    pub fn removed_ids(&self, table: u32, stripe: usize) -> Result<Vec<u64>, TableError> {
        let removed = self.set.table(table)?.lock(stripe).captured_removals();
        self.set.shared.check_snapshot()?;
        Ok(removed)
    }

    /// Appends all rows that one stripe of a table had at the instant. A stripe can be read once. [`Self::open_stripe`]
    /// reads in parts.
    pub fn read_stripe(&self, table: u32, stripe: usize, into: &mut RowBatch) -> Result<(), TableError> {
        let mut parts = self.open_stripe(table, stripe)?;
        while parts.read(usize::MAX, into)? {}
        Ok(())
    }

    /// A reader for the rows that one stripe of a table had at the instant. It reads as many rows at a time as the
    /// caller asks for. A stripe can be read once.
    pub fn open_stripe(&self, table: u32, stripe: usize) -> Result<StripeReader<'_>, TableError> {
        let table = self.set.table(table)?;
        let hot = table.lock(stripe).begin_reading();
        self.set.shared.check_snapshot()?;
        let hot = hot.ok_or(TableError::AlreadyRead { table: table.number, stripe })?;
        let cold = self.cold.as_ref().filter(|_| table.is_tiered);
        Ok(StripeReader::new(table, stripe, table.access_codec.tick(self.moment), hot, cold))
    }

    /// Appends the frequency counts of one stripe at the instant. They can be read once, before or after the stripe's
    /// rows.
    pub fn read_frequency_counts(
        &self,
        table: u32,
        stripe: usize,
        into: &mut FrequencyCounts,
    ) -> Result<(), TableError> {
        let table = self.set.table(table)?;
        let read = table.lock(stripe).filter.read_captured(into);
        if read { Ok(()) } else { Err(TableError::AlreadyRead { table: table.number, stripe }) }
    }
}

impl Drop for TableSnapshot<'_> {
    fn drop(&mut self) {
        for table in self.set.iter() {
            (0..table.stripes()).for_each(|stripe| table.end_capture(stripe));
            (0..table.stripes()).for_each(|stripe| table.lock(stripe).filter.end_capture());
        }
        self.set.shared.captures.reset_limit(usize::MAX);
        self.set.has_snapshot.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for TableSnapshot<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("TableSnapshot").field("moment", &self.moment).finish_non_exhaustive()
    }
}

impl Table {
    /// Ends the capture of a stripe. The stripe then stops copying rows.
    pub(super) fn end_capture(&self, stripe: usize) {
        let mut stripe = self.lock(stripe);
        if stripe.is_captured() {
            stripe.end_capture();
            if self.is_managed {
                self.charge(&mut stripe);
            }
        }
    }
}

/// How many rows in memory are read under one lock.
const HOT_AT_ONCE: usize = 256;
/// How many rows of the cold tier are read at a time.
const COLD_AT_ONCE: usize = 1024;

/// Reads the rows of one stripe. [`crate::TableSnapshot::open_stripe`] makes a reader.
pub struct StripeReader<'a> {
    table: &'a Table,
    stripe: usize,
    /// The tick of the instant. Rows past their time to live at that tick are skipped.
    tick: u64,
    hot: MemorySource,
    cold: Option<ColdSource<'a>>,
}

struct MemorySource {
    /// Cold keys and slots of all these rows, in ascending order.
    all: Vec<(u64, u32)>,
    read: usize,
    /// The last rows read, and how many of them have been returned.
    rows: RowBatch,
    answered: usize,
}

struct ColdSource<'a> {
    view: &'a Mutex<Box<dyn ColdView>>,
    /// The range of cold keys that have not been read.
    left: Option<RangeInclusive<u64>>,
    scan: ColdScan,
    answered: usize,
}

impl<'a> StripeReader<'a> {
    /// A reader for the rows in memory with these keys and slots, and for the frozen cold tier.
    pub(super) fn new(
        table: &'a Table,
        stripe: usize,
        tick: u64,
        hot: Vec<(u64, u32)>,
        view: Option<&'a Mutex<Box<dyn ColdView>>>,
    ) -> Self {
        let mut all = hot;
        all.iter_mut().for_each(|(key, _)| *key = cold_key_of(*key));
        all.sort_unstable();
        let left = Some(cold_keys_of_stripe(stripe, table.stripes()));
        let cold = view.map(|view| ColdSource { view, left, scan: ColdScan::default(), answered: 0 });
        Self { table, stripe, tick, hot: MemorySource { all, read: 0, rows: RowBatch::default(), answered: 0 }, cold }
    }

    /// Appends at most `limit` rows. Returns whether there are more.
    pub fn read(&mut self, limit: usize, into: &mut RowBatch) -> Result<bool, TableError> {
        let enough = into.ids.len().saturating_add(limit);
        while into.ids.len() < enough {
            self.refill()?;
            let (hot, cold) = (self.hot.next(), self.cold.as_ref().and_then(ColdSource::next));
            match (hot, cold) {
                (None, None) => {
                    self.table.shared.check_snapshot()?;
                    self.table.end_capture(self.stripe);
                    return Ok(false);
                }
                (Some(hot), Some(cold)) if cold < hot => self.answer_cold(into),
                (None, Some(_)) => self.answer_cold(into),
                (Some(hot), cold) => {
                    // A cold copy of a row that was in memory is void.
                    if cold == Some(hot) {
                        self.cold.iter_mut().for_each(|cold| cold.answered += 1);
                    }
                    self.answer_hot(into);
                }
            }
        }
        Ok(true)
    }

    /// Reads more rows on each side that has no unreturned row.
    fn refill(&mut self) -> Result<(), TableError> {
        let Self { table, stripe, hot, cold, .. } = self;
        if hot.answered == hot.rows.ids.len() {
            hot.refill(table, *stripe)?;
        }
        match cold {
            Some(cold) if cold.answered == cold.scan.cold_keys.len() => cold.refill(table),
            _ => Ok(()),
        }
    }

    fn answer_hot(&mut self, into: &mut RowBatch) {
        let (MemorySource { rows, answered, .. }, stride) = (&mut self.hot, self.table.stride());
        let (row, access) = (*answered, rows.access.get(*answered).copied());
        *answered += 1;
        if access.is_none_or(|access| !self.table.access_codec.is_expired(access, self.tick)) {
            into.push_row(rows.ids[row], &rows.slots[row * stride..][..stride], access);
        }
    }

    fn answer_cold(&mut self, into: &mut RowBatch) {
        let (Some(ColdSource { scan, answered, .. }), stride) = (&mut self.cold, self.table.stride()) else { return };
        let (words, access) = scan.rows[*answered * (stride + 1)..][..stride + 1].split_at(stride);
        let cold_key = scan.cold_keys[*answered];
        *answered += 1;
        if !self.table.access_codec.is_expired(access[0], self.tick) {
            into.push_row(id_of(cold_key_of(cold_key)), words, Some(access[0]));
        }
    }
}

impl MemorySource {
    fn next(&self) -> Option<u64> {
        let waiting = self.rows.ids.len() - self.answered;
        self.all[..self.read].get(self.read - waiting).map(|(cold_key, _)| *cold_key)
    }

    /// Reads some rows under the stripe's lock.
    fn refill(&mut self, table: &Table, stripe: usize) -> Result<(), TableError> {
        let Self { all, read, rows, answered } = self;
        rows.clear();
        *answered = 0;
        let end = all.len().min(*read + HOT_AT_ONCE);
        if *read == end {
            return Ok(());
        }
        let mut stripe = table.lock(stripe);
        if !stripe.is_captured() {
            return Err(TableError::SnapshotGivenUp);
        }
        for (cold_key, slot) in &all[*read..end] {
            stripe.read_captured(*slot, cold_key_of(*cold_key), rows);
        }
        *read = end;
        Ok(())
    }
}

impl ColdSource<'_> {
    fn next(&self) -> Option<u64> {
        self.scan.cold_keys.get(self.answered).copied()
    }

    fn refill(&mut self, table: &Table) -> Result<(), TableError> {
        let Some(range) = self.left.take() else { return Ok(()) };
        let end = *range.end();
        self.scan.cold_keys.clear();
        self.scan.rows.clear();
        self.answered = 0;
        let from = self.view.lock().scan(table.number, range, COLD_AT_ONCE, &mut self.scan);
        self.left = from.map_err(|source| table.unreadable(source))?.map(|from| from..=end);
        Ok(())
    }
}

impl std::fmt::Debug for StripeReader<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("StripeReader").field("stripe", &self.stripe).field("tick", &self.tick).finish_non_exhaustive()
    }
}
