//! Maintenance of all tables, a bounded part at a time, by a thread of the caller's: room ahead of need, rows to
//! forget, gradients that wait.

use std::ops::AddAssign;

use parking_lot::MutexGuard;

use crate::stripe::Stripe;
use crate::tier::evict::{Leaving, Ranked, Relief};
use crate::{ColdError, Table, TableError, TableSet};

/// One row in this many of a stripe is kept free where memory is short.
const FREE_SHARE: usize = 20;
/// Most rows that leave a stripe in one call.
const MOST: usize = 256;
/// Rows of a stripe that are looked at in one call.
const SWEPT: usize = 1024;
/// Sweeps in a time to live.
const SWEEPS_PER_TTL: u64 = 8;
/// Ticks between two sweeps for rows of small norm.
const NORM_EVERY: u64 = 1000;
/// Rank of a row of small norm: it is not past its time to live.
const SMALL: u32 = 1;

/// What one call did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tended {
    /// Rows looked at.
    pub scanned: u64,
    /// Rows that left memory, or were forgotten in the cold tier.
    pub removed: u64,
}

impl Tended {
    /// Whether there was nothing to do: the caller may rest for a while.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

impl AddAssign for Tended {
    fn add_assign(&mut self, other: Self) {
        self.scanned += other.scanned;
        self.removed += other.removed;
    }
}

impl TableSet {
    /// Does one bounded part of what keeps requests from waiting: at most one write of some hundred rows to the cold
    /// tier. To be called again and again, with a rest where it [is idle](Tended::is_idle).
    ///
    /// # Errors
    /// When the cold tier fails; rows stay where they are then.
    pub fn tend(&self) -> Result<Tended, ColdError> {
        let stripes: usize = self.iter().map(Table::stripes).sum();
        for _ in 0..stripes {
            let mut turn = self.next_turn() % stripes;
            for table in self.iter() {
                if turn < table.stripes() {
                    let done = table.tend(turn)?;
                    if done.is_idle() {
                        break;
                    }
                    return Ok(done);
                }
                turn -= table.stripes();
            }
        }
        Ok(Tended::default())
    }
}

impl Table {
    /// One stripe's turn.
    fn tend(&self, stripe: usize) -> Result<Tended, ColdError> {
        let mut done = Tended::default();
        if !self.is_managed() && self.retention().small_norm == 0.0 {
            return Ok(done);
        }
        self.pay_all().map_err(cold_error)?;
        done += self.relieve(&mut self.lock(stripe))?;
        done += self.sweep(&mut self.lock(stripe))?;
        if stripe == 0 {
            done += self.sweep_cold()?;
        }
        Ok(done)
    }

    /// Frees some slots of a stripe that is full while memory is short.
    fn relieve(&self, stripe: &mut MutexGuard<'_, Stripe>) -> Result<Tended, ColdError> {
        let wanted = (stripe.rows() / FREE_SHARE).min(MOST);
        if !self.shared().budget.is_tight() || stripe.vacant() >= wanted {
            return Ok(Tended::default());
        }
        let count = wanted - stripe.vacant();
        Ok(done(count, self.evict(stripe, &mut [], 0, count)?))
    }

    /// Looks for rows of a stripe that are past their time to live or small, where the last sweep is long ago. As rows
    /// leave, others move within the index: a sweep may miss some, and the next one meets them.
    fn sweep(&self, stripe: &mut MutexGuard<'_, Stripe>) -> Result<Tended, ColdError> {
        let tick = self.tick();
        let Some(place) = self.sweep_place(stripe, tick) else {
            return Ok(Tended::default());
        };
        self.with_leaving(|leaving| {
            let mut scanned = 0;
            let relief = self.send_away(stripe, leaving, &mut [], |stripe, leaving| {
                scanned = leaving.choose_to_forget(self, stripe, place, tick);
            })?;
            Ok(done(scanned, relief))
        })
    }

    /// Where the sweep of a stripe goes on; `None` if none is due.
    fn sweep_place(&self, stripe: &mut Stripe, tick: u64) -> Option<usize> {
        let every = match (self.marks().ttl(), self.retention().small_norm > 0.0) {
            (None, false) => return None,
            (None, true) => NORM_EVERY,
            (Some(ttl), small) => (ttl / SWEEPS_PER_TTL).clamp(1, if small { NORM_EVERY } else { u64::MAX }),
        };
        if stripe.sweep.place.is_none() && tick >= stripe.sweep.started.saturating_add(every) {
            (stripe.sweep.place, stripe.sweep.started) = (Some(0), tick);
        }
        stripe.sweep.place
    }
}

impl Leaving {
    /// Ranks the rows to forget among some from a place of the index on, and moves the sweep on; answers how many it
    /// looked at.
    fn choose_to_forget(&mut self, table: &Table, stripe: &mut Stripe, place: usize, tick: u64) -> usize {
        self.scanned.clear();
        self.ranked.clear();
        stripe.sweep.place = stripe.scan(place, SWEPT, &mut self.scanned);
        let mut weights = vec![0.0; table.dim()];
        let least = table.retention().small_norm;
        for (key, slot) in &self.scanned {
            if table.is_managed() && table.marks().expired(stripe.mark(*slot), tick) {
                self.ranked.push(Ranked::new(0, *key, *slot));
            } else if least > 0.0 && norm(table, stripe, *slot, &mut weights) < least {
                self.ranked.push(Ranked::new(SMALL, *key, *slot));
            }
        }
        self.scanned.len()
    }
}

fn norm(table: &Table, stripe: &Stripe, slot: u32, weights: &mut [f32]) -> f32 {
    table.layout().read(stripe.slot(slot), weights);
    weights.iter().map(|weight| weight * weight).sum::<f32>().sqrt()
}

fn done(scanned: usize, relief: Relief) -> Tended {
    match relief {
        Relief::Left(removed) => Tended { scanned: scanned as u64, removed },
        // Nothing to do here for now.
        Relief::Others | Relief::Frozen => Tended::default(),
    }
}

pub(crate) fn cold_error(error: TableError) -> ColdError {
    match error {
        TableError::Cold { source, .. } | TableError::Full { source, .. } => source,
        other => ColdError { doing: "read", reason: other.to_string() },
    }
}
