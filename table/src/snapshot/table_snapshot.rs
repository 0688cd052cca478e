//! A snapshot: the rows of all tables at one instant, read while training continues.
//!
//! ```text
//! instant   no request is under way (the gate), the cold tier is frozen, each stripe gets a StripeCapture
//! later     a request changes a row for the first time ─► its old content is copied to the StripeCapture
//! reading   copied rows + rows that have not changed + rows of the frozen cold tier that were not in memory
//! ```
//!
//! A stripe copies each row that changes until the snapshot has read the stripe. Read a snapshot soon, because the
//! budget counts these copies. They have a limit ([`crate::snapshot::capture_budget`]). The access metadata of a row may be of a lookup after the instant. The weights and
//! optimiser state are always of the instant.
//!
//! If a row has two copies, the copy that was in memory counts (invariant TI-1).

use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex, RwLockWriteGuard};

use crate::snapshot::stripe_reader::StripeReader;
use crate::tier::maintenance::cold_error;
use crate::{
    ColdError, ColdView, FrequencyCounts, RowBatch, SnapshotCopies, SnapshotKind, Table, TableError, TableSet,
    TableTime,
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
    #[must_use]
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
}

impl TableSnapshot<'_> {
    /// The time of the instant. A process that loads the rows sets its tables to this time ([`TableSet::advance_clock`]).
    #[must_use]
    pub fn snapshot_time(&self) -> TableTime {
        self.moment
    }

    /// Rows that were in memory at the instant, whatever the kind of the snapshot.
    #[must_use]
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

    /// Appends all rows that one stripe of a table had at the instant, in ascending order of ids. A stripe can be read
    /// once. The call needs memory for two copies of all these rows. [`Self::open_stripe`] reads in parts.
    pub fn read_stripe(&self, table: u32, stripe: usize, into: &mut RowBatch) -> Result<(), TableError> {
        let (mut parts, mut rows) = (self.open_stripe(table, stripe)?, RowBatch::default());
        while parts.read(usize::MAX, &mut rows)? {}
        append_sorted(self.set.table(table)?, &rows, into);
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
}

impl TableSnapshot<'_> {
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

impl TableSet {
    #[must_use]
    pub fn snapshot_copies(&self) -> SnapshotCopies {
        self.shared.captures.copy_totals()
    }

    /// Gives the present snapshot up: its copies go, and a thread that reads it gets an error.
    pub(crate) fn give_up_snapshot(&self) {
        self.shared.captures.give_up();
        self.iter().for_each(|table| (0..table.stripes()).for_each(|stripe| table.end_capture(stripe)));
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

fn append_sorted(table: &Table, rows: &RowBatch, into: &mut RowBatch) {
    let stride = table.stride();
    let mut order: Vec<usize> = (0..rows.ids.len()).collect();
    order.sort_unstable_by_key(|row| rows.ids[*row]);
    into.ids.reserve(order.len());
    into.slots.reserve(order.len() * stride);
    for row in order {
        into.push_row(rows.ids[row], &rows.slots[row * stride..][..stride], rows.access.get(row).copied());
    }
}
