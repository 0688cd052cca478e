//! Reads the rows of one stripe as they were at the instant of a snapshot, a part at a time.
//!
//! Two sorted sequences are merged by cold key. Of two copies of a row, the one that was in memory counts:
//!
//! ```text
//! in memory, by cold key:     b · · e · g      changed rows are copies, the others are read where they lie
//! cold tier, by cold key:     a b' c · f       b' is void, since b was in memory (invariant TI-1)
//! answered:                   a b c e f g      the order depends on the content alone
//! ```
//!
//! Neither side is in memory as a whole: some rows of each are, until they are answered.

use std::ops::RangeInclusive;

use parking_lot::Mutex;

use crate::key::{cold_key_of, cold_keys_of_stripe, id_of};
use crate::{ColdScan, ColdView, RowBatch, Table, TableError};

/// Rows read under one lock.
const HOT_AT_ONCE: usize = 256;
/// Rows read of the cold tier at a time.
const COLD_AT_ONCE: usize = 1024;

/// Reads the rows of one stripe. [`crate::TableSnapshot::stripe`] makes it.
pub struct StripeReader<'a> {
    table: &'a Table,
    stripe: usize,
    /// The time of the instant: rows past their time to live by then are skipped.
    tick: u64,
    hot: MemorySource,
    cold: Option<ColdSource<'a>>,
}

/// Rows that were in memory.
struct MemorySource {
    /// Cold keys and slots of all of them, in ascending order.
    all: Vec<(u64, u32)>,
    /// How many of them have been read.
    read: usize,
    /// The rows that were read last, and how many of them have been answered.
    rows: RowBatch,
    answered: usize,
}

/// Rows of the cold tier.
struct ColdSource<'a> {
    view: &'a Mutex<Box<dyn ColdView>>,
    /// The cold keys that have not been read.
    left: Option<RangeInclusive<u64>>,
    scan: ColdScan,
    answered: usize,
}

impl<'a> StripeReader<'a> {
    /// A reader of the rows in memory with these keys and slots, and of the frozen cold tier.
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

    /// Appends rows, at most `limit` of them; answers whether there are more.
    ///
    /// # Errors
    /// When the cold tier fails.
    pub fn read(&mut self, limit: usize, into: &mut RowBatch) -> Result<bool, TableError> {
        let enough = into.ids.len().saturating_add(limit);
        while into.ids.len() < enough {
            self.refill()?;
            let (hot, cold) = (self.hot.next(), self.cold.as_ref().and_then(ColdSource::next));
            match (hot, cold) {
                (None, None) => {
                    self.table.end_capture(self.stripe);
                    return Ok(false);
                }
                (Some(hot), Some(cold)) if cold < hot => self.answer_cold(into),
                (None, Some(_)) => self.answer_cold(into),
                (Some(hot), cold) => {
                    // A cold copy of a row in memory is void.
                    if cold == Some(hot) {
                        self.cold.iter_mut().for_each(|cold| cold.answered += 1);
                    }
                    self.answer_hot(into);
                }
            }
        }
        Ok(true)
    }

    /// Reads more rows on each side whose rows have all been answered.
    fn refill(&mut self) -> Result<(), TableError> {
        let Self { table, stripe, hot, cold, .. } = self;
        if hot.answered == hot.rows.ids.len() {
            hot.refill(table, *stripe);
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
        if access.is_none_or(|access| !self.table.access_codec().expired(access, self.tick)) {
            into.ids.push(rows.ids[row]);
            into.slots.extend_from_slice(&rows.slots[row * stride..][..stride]);
            into.access.extend(access);
        }
    }

    fn answer_cold(&mut self, into: &mut RowBatch) {
        let (Some(ColdSource { scan, answered, .. }), stride) = (&mut self.cold, self.table.stride()) else { return };
        let (words, access) = scan.rows[*answered * (stride + 1)..][..stride + 1].split_at(stride);
        let cold_key = scan.cold_keys[*answered];
        *answered += 1;
        if !self.table.access_codec().expired(access[0], self.tick) {
            into.ids.push(id_of(cold_key_of(cold_key)));
            into.slots.extend_from_slice(words);
            into.access.push(access[0]);
        }
    }
}

impl MemorySource {
    /// Cold key of the next row.
    fn next(&self) -> Option<u64> {
        let waiting = self.rows.ids.len() - self.answered;
        self.all[..self.read].get(self.read - waiting).map(|(cold_key, _)| *cold_key)
    }

    /// Reads some rows under the lock of the stripe.
    fn refill(&mut self, table: &Table, stripe: usize) {
        let Self { all, read, rows, answered } = self;
        rows.ids.clear();
        rows.slots.clear();
        rows.access.clear();
        *answered = 0;
        let end = all.len().min(*read + HOT_AT_ONCE);
        let mut stripe = table.lock(stripe);
        for (cold_key, slot) in &all[*read..end] {
            stripe.read_captured(*slot, cold_key_of(*cold_key), rows);
        }
        *read = end;
    }
}

impl ColdSource<'_> {
    /// Cold key of the next row.
    fn next(&self) -> Option<u64> {
        self.scan.cold_keys.get(self.answered).copied()
    }

    fn refill(&mut self, table: &Table) -> Result<(), TableError> {
        let Some(range) = self.left.take() else { return Ok(()) };
        let end = *range.end();
        self.scan.cold_keys.clear();
        self.scan.rows.clear();
        self.answered = 0;
        let from = self.view.lock().scan(table.number(), range, COLD_AT_ONCE, &mut self.scan);
        self.left = from.map_err(|source| table.unreadable(source))?.map(|from| from..=end);
        Ok(())
    }
}

impl std::fmt::Debug for StripeReader<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("StripeReader").field("stripe", &self.stripe).field("tick", &self.tick).finish_non_exhaustive()
    }
}
