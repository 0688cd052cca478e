//! A snapshot of all tables at one instant, read while training goes on.
//!
//! For the instant no request is under way (the gate). From then on each stripe keeps a row as it was before it changes
//! for the first time, until the snapshot has read the stripe. What is read is what was kept, what has not changed, and
//! what the cold tier, frozen at the same instant, holds of rows that were not in memory (invariant TI-1).
//!
//! Until a stripe is read it may keep a copy of each of its rows that changes: read soon what is cut. The budget counts
//! these copies. A row's mark may be of a lookup after the instant; its words are not.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex, RwLockWriteGuard};

use crate::key::cold_key_of;
use crate::snapshot::stripe_reader::StripeReader;
use crate::tier::maintenance::cold_error;
use crate::{ColdError, ColdView, FrequencyCounts, RowBatch, Table, TableError, TableSet, TableTime};

/// Longest wait for those who are under way, and the part of a request's timeout that it may take.
const WAIT: Duration = Duration::from_secs(10);
const WAIT_SHARE: u32 = 4;

/// All rows at one instant. There is one at a time; dropping it ends it.
pub struct TableSnapshot<'a> {
    set: &'a TableSet,
    moment: TableTime,
    cold: Option<Mutex<Box<dyn ColdView>>>,
}

/// Why there is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableSnapshotError {
    /// There is one already.
    #[error("a snapshot of the tables is being read; wait until it is done")]
    Running,
    /// Others did not end in time.
    #[error("no snapshot of the tables: after {waited:?} {whom} had not ended; try again later")]
    Busy {
        /// Who was waited for.
        whom: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The cold tier cannot be frozen, or rows in it wait for gradients.
    #[error("no snapshot of the tables; try again later")]
    Cold(#[source] ColdError),
}

impl TableSet {
    /// Takes the instant: no push is half in it, of however many tables, and no [`crate::RequestGuard`].
    ///
    /// # Errors
    /// When there is a snapshot already, when requests that are under way do not end within 10 s or a quarter of
    /// their timeout, or when the cold tier fails.
    pub fn snapshot(&self) -> Result<TableSnapshot<'_>, TableSnapshotError> {
        if self.has_snapshot().swap(true, Ordering::Acquire) {
            return Err(TableSnapshotError::Running);
        }
        // From here on dropping the cut ends it.
        let mut cut = TableSnapshot { set: self, moment: TableTime::default(), cold: None };
        self.iter()
            .try_for_each(Table::apply_all_pending)
            .map_err(|error| TableSnapshotError::Cold(cold_error(error)))?;
        let (moment, _still) = self.take_instant()?;
        cut.moment = moment;
        if let Some(store) = &self.shared().capacity.cold {
            cut.cold = Some(Mutex::new(store.freeze().map_err(TableSnapshotError::Cold)?));
        }
        Ok(cut)
    }

    /// The instant, and a guard that keeps the cold tier as it was then: requests go on while it is being frozen.
    fn take_instant(&self) -> Result<(TableTime, RwLockWriteGuard<'_, ()>), TableSnapshotError> {
        // Requests wait for whoever waits here: that is part of their timeout.
        let wait = self.shared().capacity.wait(WAIT, WAIT_SHARE);
        let busy = |whom| TableSnapshotError::Busy { whom, waited: wait };
        let _alone = self.gate().try_write_for(wait).ok_or(busy("a lookup or a push"))?;
        let still = self.shared().cold_writes.try_write_for(wait).ok_or(busy("a write to the cold tier"))?;
        if self.iter().any(Table::has_pending) {
            return Err(busy("a row of the cold tier that a gradient waits for"));
        }
        for table in self.iter() {
            (0..table.stripes()).for_each(|stripe| table.lock(stripe).begin_capture());
        }
        Ok((self.shared().clock.now(), still))
    }
}

impl TableSnapshot<'_> {
    /// The time of the instant, to be told to tables that load the rows ([`TableSet::tick`]).
    #[must_use]
    pub fn moment(&self) -> TableTime {
        self.moment
    }

    /// Appends all rows that one stripe of a table had at the instant, in memory or not, to `into`, in ascending order
    /// of ids. A stripe can be read once: it keeps nothing for the snapshot any more. It takes memory for all of them,
    /// twice; see [`Self::stripe`].
    ///
    /// # Errors
    /// When there is no such table, the stripe was read before, or the cold tier fails.
    ///
    /// # Panics
    /// When there is no such stripe.
    pub fn read_stripe(&self, table: u32, stripe: usize, into: &mut RowBatch) -> Result<(), TableError> {
        let (mut parts, mut rows) = (self.stripe(table, stripe)?, RowBatch::default());
        while parts.read(usize::MAX, &mut rows)? {}
        append_sorted(self.set.table(table)?, &rows, into);
        Ok(())
    }

    /// Begins to read the rows that one stripe of a table had at the instant, in parts: as many at a time as the caller
    /// has room for. A stripe can be read once.
    ///
    /// # Errors
    /// When there is no such table, or the stripe was read before.
    ///
    /// # Panics
    /// When there is no such stripe.
    pub fn stripe(&self, table: u32, stripe: usize) -> Result<StripeReader<'_>, TableError> {
        let table = self.set.table(table)?;
        let hot = table.lock(stripe).begin_reading();
        let hot = hot.ok_or(TableError::AlreadyRead { table: table.number(), stripe })?;
        let cold = self.cold.as_ref().filter(|_| table.is_tiered());
        Ok(StripeReader::new(table, stripe, table.access_codec().tick(self.moment), hot, cold))
    }
}

impl TableSnapshot<'_> {
    /// Appends what one stripe of a table had counted, at the instant, of ids that have no row. It can be read once,
    /// before or after the stripe's rows.
    ///
    /// # Errors
    /// When there is no such table, or the sightings of the stripe were read before.
    ///
    /// # Panics
    /// When there is no such stripe.
    pub fn read_frequency_counts(
        &self,
        table: u32,
        stripe: usize,
        into: &mut FrequencyCounts,
    ) -> Result<(), TableError> {
        let table = self.set.table(table)?;
        let read = table.lock(stripe).filter.read_captured(into);
        if read { Ok(()) } else { Err(TableError::AlreadyRead { table: table.number(), stripe }) }
    }
}

impl Drop for TableSnapshot<'_> {
    fn drop(&mut self) {
        for table in self.set.iter() {
            (0..table.stripes()).for_each(|stripe| table.end_capture(stripe));
            (0..table.stripes()).for_each(|stripe| table.lock(stripe).filter.end_capture());
        }
        self.set.has_snapshot().store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for TableSnapshot<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("TableSnapshot").field("moment", &self.moment).finish_non_exhaustive()
    }
}

impl Table {
    /// Nothing is kept for a snapshot of a stripe any more.
    pub(super) fn end_capture(&self, stripe: usize) {
        let mut stripe = self.lock(stripe);
        if stripe.is_captured() {
            stripe.end_capture();
            if self.is_managed() {
                self.charge(&mut stripe);
            }
        }
    }

    /// Places of a stripe's rows in the cold tier.
    pub(crate) fn cold_keys(&self, stripe: usize) -> RangeInclusive<u64> {
        let start = cold_key_of(stripe as u64);
        start..=start | u64::MAX.checked_shr(self.stripes().trailing_zeros()).unwrap_or(0)
    }
}

/// Appends rows in ascending order of ids.
fn append_sorted(table: &Table, rows: &RowBatch, into: &mut RowBatch) {
    let stride = table.stride();
    let mut order: Vec<usize> = (0..rows.ids.len()).collect();
    order.sort_unstable_by_key(|row| rows.ids[*row]);
    into.ids.reserve(order.len());
    into.slots.reserve(order.len() * stride);
    for row in order {
        into.ids.push(rows.ids[row]);
        into.slots.extend_from_slice(&rows.slots[row * stride..][..stride]);
        into.access.extend(rows.access.get(row));
    }
}
