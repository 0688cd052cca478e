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

use parking_lot::Mutex;

use crate::key::{cold_key_of, cold_keys_of_stripe, id_of};
use crate::{ColdScan, ColdView, RowBatch, Table, TableError};

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
        rows.ids.clear();
        rows.slots.clear();
        rows.access.clear();
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
