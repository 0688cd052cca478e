//! The rows of one stripe as they were at the instant of a snapshot, a part at a time.
//!
//! ```text
//! in memory, by place:       b · · e · g      copies of what has changed since, the others where they lie
//! in the cold tier, by place: a b' c · f      b' is void: b was in memory (invariant TI-1)
//! answered:                   a b c e f g     an order of content alone, wherever rows lie
//! ```
//!
//! Neither side is in memory as a whole: some rows of each are, until they are answered.

use std::ops::RangeInclusive;

use parking_lot::Mutex;

use crate::key::cold_key_of;
use crate::key::id_of;
use crate::{ColdScan, ColdView, RowBatch, Table, TableError};

/// Rows read under one lock.
const HOT_AT_ONCE: usize = 256;
/// Rows read of the cold tier at a time.
const COLD_AT_ONCE: usize = 1024;

/// See the module. Made by [`crate::TableSnapshot::stripe`].
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
    /// Places and slots of all of them, in ascending order of places.
    all: Vec<(u64, u32)>,
    /// How many of them have been read.
    read: usize,
    /// Those that were read last, and how many of them have been answered.
    rows: RowBatch,
    answered: usize,
}

/// Rows of the cold tier.
struct ColdSource<'a> {
    view: &'a Mutex<Box<dyn ColdView>>,
    /// Those that have not been read.
    left: Option<RangeInclusive<u64>>,
    scan: ColdScan,
    answered: usize,
}

impl<'a> StripeReader<'a> {
    /// Of these keys and slots, and what the frozen tier has besides.
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
        let left = Some(table.cold_keys(stripe));
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

    /// Reads on where all that was read has been answered.
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
    /// Place of the row that is next.
    fn next(&self) -> Option<u64> {
        let waiting = self.rows.ids.len() - self.answered;
        self.all[..self.read].get(self.read - waiting).map(|(cold_key, _)| *cold_key)
    }

    /// The lock is held for some rows.
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
    /// Place of the row that is next.
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
