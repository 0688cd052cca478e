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

use crate::request::group::id_of;
use crate::tier::visit::place_of;
use crate::{ColdScan, ColdView, Rows, Table, TableError};

/// Rows read under one lock.
const HOT_AT_ONCE: usize = 256;
/// Rows read of the cold tier at a time.
const COLD_AT_ONCE: usize = 1024;

/// See the module. Made by [`crate::Cut::stripe`].
pub struct StripeRows<'a> {
    table: &'a Table,
    stripe: usize,
    /// The time of the instant: rows past their time to live by then are skipped.
    tick: u64,
    hot: Hot,
    cold: Option<Cold<'a>>,
}

/// Rows that were in memory.
struct Hot {
    /// Places and slots of all of them, in ascending order of places.
    all: Vec<(u64, u32)>,
    /// How many of them have been read.
    read: usize,
    /// Those that were read last, and how many of them have been answered.
    rows: Rows,
    answered: usize,
}

/// Rows of the cold tier.
struct Cold<'a> {
    view: &'a Mutex<Box<dyn ColdView>>,
    /// Those that have not been read.
    left: Option<RangeInclusive<u64>>,
    scan: ColdScan,
    answered: usize,
}

impl<'a> StripeRows<'a> {
    /// Of these keys and slots, and what the frozen tier has besides.
    pub(super) fn new(
        table: &'a Table,
        stripe: usize,
        tick: u64,
        hot: Vec<(u64, u32)>,
        view: Option<&'a Mutex<Box<dyn ColdView>>>,
    ) -> Self {
        let mut all = hot;
        all.iter_mut().for_each(|(key, _)| *key = place_of(*key));
        all.sort_unstable();
        let left = Some(table.places(stripe));
        let cold = view.map(|view| Cold { view, left, scan: ColdScan::default(), answered: 0 });
        Self { table, stripe, tick, hot: Hot { all, read: 0, rows: Rows::default(), answered: 0 }, cold }
    }

    /// Appends rows, at most `limit` of them; answers whether there are more.
    ///
    /// # Errors
    /// When the cold tier fails.
    pub fn read(&mut self, limit: usize, into: &mut Rows) -> Result<bool, TableError> {
        let enough = into.ids.len().saturating_add(limit);
        while into.ids.len() < enough {
            self.refill()?;
            let (hot, cold) = (self.hot.next(), self.cold.as_ref().and_then(Cold::next));
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
            Some(cold) if cold.answered == cold.scan.places.len() => cold.refill(table),
            _ => Ok(()),
        }
    }

    fn answer_hot(&mut self, into: &mut Rows) {
        let (Hot { rows, answered, .. }, stride) = (&mut self.hot, self.table.stride());
        let (row, mark) = (*answered, rows.marks.get(*answered).copied());
        *answered += 1;
        if mark.is_none_or(|mark| !self.table.marks().expired(mark, self.tick)) {
            into.ids.push(rows.ids[row]);
            into.slots.extend_from_slice(&rows.slots[row * stride..][..stride]);
            into.marks.extend(mark);
        }
    }

    fn answer_cold(&mut self, into: &mut Rows) {
        let (Some(Cold { scan, answered, .. }), stride) = (&mut self.cold, self.table.stride()) else { return };
        let (words, mark) = scan.rows[*answered * (stride + 1)..][..stride + 1].split_at(stride);
        let place = scan.places[*answered];
        *answered += 1;
        if !self.table.marks().expired(mark[0], self.tick) {
            into.ids.push(id_of(place_of(place)));
            into.slots.extend_from_slice(words);
            into.marks.push(mark[0]);
        }
    }
}

impl Hot {
    /// Place of the row that is next.
    fn next(&self) -> Option<u64> {
        let waiting = self.rows.ids.len() - self.answered;
        self.all[..self.read].get(self.read - waiting).map(|(place, _)| *place)
    }

    /// The lock is held for some rows.
    fn refill(&mut self, table: &Table, stripe: usize) {
        let Self { all, read, rows, answered } = self;
        rows.ids.clear();
        rows.slots.clear();
        rows.marks.clear();
        *answered = 0;
        let end = all.len().min(*read + HOT_AT_ONCE);
        let mut stripe = table.lock(stripe);
        for (place, slot) in &all[*read..end] {
            stripe.read_captured(*slot, place_of(*place), rows);
        }
        *read = end;
    }
}

impl Cold<'_> {
    /// Place of the row that is next.
    fn next(&self) -> Option<u64> {
        self.scan.places.get(self.answered).copied()
    }

    fn refill(&mut self, table: &Table) -> Result<(), TableError> {
        let Some(range) = self.left.take() else { return Ok(()) };
        let end = *range.end();
        self.scan.places.clear();
        self.scan.rows.clear();
        self.answered = 0;
        let from = self.view.lock().scan(table.number(), range, COLD_AT_ONCE, &mut self.scan);
        self.left = from.map_err(|source| table.unreadable(source))?.map(|from| from..=end);
        Ok(())
    }
}

impl std::fmt::Debug for StripeRows<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("StripeRows").field("stripe", &self.stripe).field("tick", &self.tick).finish_non_exhaustive()
    }
}
