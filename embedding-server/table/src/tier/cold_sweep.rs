//! Forgetting rows of the cold tier that are past their time to live. A lookup would not use them; they take space.

use crate::tier::tend::Tended;
use crate::tier::visit::place_of;
use crate::{ColdError, ColdRows, ColdScan, ColdView, Table};

/// Rows looked at in one call.
const SWEPT: usize = 1024;
/// Sweeps in a time to live.
const SWEEPS_PER_TTL: u64 = 4;

/// How far the search has come.
#[derive(Default)]
pub(crate) struct ColdSweep {
    /// The tier as it was when the sweep started; `None` between two sweeps.
    view: Option<Box<dyn ColdView>>,
    stripe: usize,
    /// Place to go on from.
    from: Option<u64>,
    /// Tick at which the last sweep started.
    started: u64,
    scan: ColdScan,
    rows: ColdRows,
}

impl std::fmt::Debug for ColdSweep {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stripe, from) = (self.stripe, self.from);
        to.debug_struct("ColdSweep").field("stripe", &stripe).field("from", &from).finish_non_exhaustive()
    }
}

impl Table {
    /// Goes on with the sweep, or starts one if the last is long ago.
    pub(crate) fn sweep_cold(&self) -> Result<Tended, ColdError> {
        let (Some(ttl), Some(store), tick) = (self.marks().ttl(), self.cold(), self.tick()) else {
            return Ok(Tended::default());
        };
        let Some(mut sweep) = self.cold_sweep.try_lock() else {
            return Ok(Tended::default());
        };
        if sweep.view.is_none() {
            if tick < sweep.started.saturating_add((ttl / SWEEPS_PER_TTL).max(1)) {
                return Ok(Tended::default());
            }
            sweep.view = Some(store.freeze()?);
            (sweep.started, sweep.stripe, sweep.from) = (tick, 0, None);
        }
        self.sweep_some(&mut sweep, tick)
    }

    fn sweep_some(&self, sweep: &mut ColdSweep, tick: u64) -> Result<Tended, ColdError> {
        let ColdSweep { view: Some(view), stripe, from, scan, .. } = sweep else {
            return Ok(Tended::default());
        };
        let range = self.places(*stripe);
        scan.places.clear();
        scan.rows.clear();
        *from = view.scan(self.number(), from.unwrap_or(*range.start())..=*range.end(), SWEPT, scan)?;
        let scanned = scan.places.len() as u64;
        let swept = *stripe;
        if from.is_none() {
            *stripe += 1;
        }
        if *stripe == self.stripes() {
            sweep.view = None;
        }
        let removed = self.forget_cold(swept, sweep, tick)?;
        Ok(Tended { scanned: scanned.max(1), removed })
    }

    /// Removes those of the rows found that are still past their time to live. No row of the stripe comes to the cold
    /// tier meanwhile (the door), so that none is removed that is newer than what was looked at.
    fn forget_cold(&self, number: usize, sweep: &mut ColdSweep, tick: u64) -> Result<u64, ColdError> {
        let ColdSweep { scan, rows, .. } = sweep;
        let stride = self.stride();
        let expired = |words: &[u32], row: usize| self.marks().expired(words[row * (stride + 1) + stride], tick);
        let mut row = 0;
        let ColdScan { places, rows: words } = scan;
        places.retain(|_| {
            row += 1;
            expired(words, row - 1)
        });
        let (Some(store), Some(_inside), Some(_moving)) =
            (self.cold(), self.door(number).try_lock(), self.shared().moves.try_read())
        else {
            return Ok(0);
        };
        if places.is_empty() {
            return Ok(0);
        }
        store.read(self.number(), places, rows)?;
        let mut row = 0;
        places.retain(|_| {
            row += 1;
            rows.found[row - 1] && expired(&rows.rows, row - 1)
        });
        store.remove(self.number(), places)?;
        let mut stripe = self.lock(number);
        stripe.departures = stripe.departures.wrapping_add(1);
        // A copy of a row that is in memory was void.
        let forgotten = places.iter().filter(|place| stripe.find(place_of(**place)).is_none()).count() as u64;
        stripe.counts.expired += forgotten;
        Ok(forgotten)
    }
}
