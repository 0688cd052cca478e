//! Maintenance of all tables: it evicts rows before memory is full, removes expired rows, and applies pending
//! gradients.
//!
//! A thread of the caller does it in bounded parts. Each call takes the next stripe:
//!
//! ```text
//! stripe's turn ─► apply pending gradients ─► evict rows if memory is short, give memory back ─► sweep for expired and small rows
//!                                                              and for stripe 0 ─► sweep the cold tier
//! ```
//!
//! Clearing: removes all rows from memory and from the cold tier, before another model is loaded.

use std::ops::AddAssign;
use std::time::Duration;

use parking_lot::MutexGuard;

use crate::config::STRIPE_FLOOR;
use crate::key::{cold_key_of, cold_keys_of_stripe};
use crate::stripe::Stripe;
use crate::tier::ColdSweep;
use crate::tier::eviction::{EvictionOutcome, RoomFor};
use crate::tier::eviction_buffer::{EvictionBuffer, EvictionCandidate};
use crate::{ColdError, ColdScan, RequestDeadline, Table, TableError, TableSet};

/// If memory is short, a stripe keeps one part in this many of its slots free.
const FREE_SHARE: usize = 20;
const MOST: usize = 256;
const SWEPT: usize = 1024;
const SWEEPS_PER_TTL: u64 = 8;
/// Ticks between two sweeps for rows of small norm.
const NORM_EVERY: u64 = 1000;
/// Rank of a row of small norm. A row past its time to live has rank 0.
const SMALL: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    pub scanned: u64,
    /// Rows evicted from memory, or removed from the cold tier.
    pub removed: u64,
}

impl MaintenanceReport {
    /// Whether there was nothing to do. The caller may then wait for a while.
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

impl AddAssign for MaintenanceReport {
    fn add_assign(&mut self, other: Self) {
        self.scanned += other.scanned;
        self.removed += other.removed;
    }
}

impl TableSet {
    /// Does one bounded part of the maintenance: at most one write of some hundred rows to the cold tier. Call it
    /// repeatedly, and pause while it [is idle](MaintenanceReport::is_idle). Requests then seldom have to evict rows.
    /// If the cold tier fails, rows stay where they are.
    pub fn maintain(&self) -> Result<MaintenanceReport, ColdError> {
        let stripes: usize = self.iter().map(Table::stripes).sum();
        for _ in 0..stripes {
            let mut turn = self.next_turn() % stripes;
            for table in self.iter() {
                if turn < table.stripes() {
                    let done = table.maintain(turn)?;
                    if done.is_idle() {
                        break;
                    }
                    return Ok(done);
                }
                turn -= table.stripes();
            }
        }
        Ok(MaintenanceReport::default())
    }
}

impl Table {
    fn maintain(&self, stripe: usize) -> Result<MaintenanceReport, ColdError> {
        let mut done = MaintenanceReport::default();
        if !self.is_managed && self.eviction.small_norm == 0.0 {
            return Ok(done);
        }
        self.apply_all_pending().map_err(cold_error)?;
        done += self.shrink(&mut self.lock(stripe))?;
        done += self.free_slots(&mut self.lock(stripe))?;
        done += self.sweep(&mut self.lock(stripe))?;
        if stripe == 0 {
            done += self.sweep_cold()?;
        }
        Ok(done)
    }

    /// Gives a block of a stripe's memory back if rows have more than their budget: the index of the cold tier grows when rows
    /// leave. Evicts the rows that have no place without this block.
    fn shrink(&self, stripe: &mut MutexGuard<'_, Stripe>) -> Result<MaintenanceReport, ColdError> {
        let keep = stripe.rows_without_last_block();
        if !self.shared.budget.is_exceeded() || keep < STRIPE_FLOOR || stripe.is_captured() {
            return Ok(MaintenanceReport::default());
        }
        let mut report = MaintenanceReport::default();
        if let Some(count) = stripe.row_count().checked_sub(keep).filter(|count| *count > 0) {
            report += done(count, self.evict_rows(stripe, &[], count, RoomFor::Request, RequestDeadline::NONE)?);
        }
        if stripe.row_count() <= keep {
            stripe.shrink();
            self.charge(stripe);
            report.scanned += keep as u64;
        }
        Ok(report)
    }

    /// Evicts some rows of a full stripe if memory is short.
    fn free_slots(&self, stripe: &mut MutexGuard<'_, Stripe>) -> Result<MaintenanceReport, ColdError> {
        let wanted = (stripe.row_count() / FREE_SHARE).min(MOST);
        // A search costs the same for one row as for many, so it waits until half of the free slots are taken.
        if !self.shared.budget.is_tight() || stripe.vacant_slots() > wanted / 2 || wanted == 0 {
            return Ok(MaintenanceReport::default());
        }
        let count = wanted - stripe.vacant_slots();
        let outcome = self.evict_rows(stripe, &[], count, RoomFor::Hint, RequestDeadline::NONE)?;
        // If every row is needed soon, there is nothing to do for now.
        Ok(if outcome == EvictionOutcome::Evicted(0) { MaintenanceReport::default() } else { done(count, outcome) })
    }

    /// Looks for rows of a stripe that are past their time to live or of small norm, if a sweep is due. Removing a row
    /// moves other rows in the index, so a sweep may miss some rows. The next sweep finds them.
    fn sweep(&self, stripe: &mut MutexGuard<'_, Stripe>) -> Result<MaintenanceReport, ColdError> {
        let tick = self.current_tick();
        let Some(bucket) = self.next_bucket(stripe, tick) else { return Ok(MaintenanceReport::default()) };
        self.with_eviction_buffer(|buffer| {
            let mut scanned = 0;
            let outcome = self.evict_chosen(stripe, buffer, RequestDeadline::NONE, |stripe, buffer| {
                scanned = buffer.choose_expired(self, stripe, bucket, tick);
            })?;
            Ok(done(scanned, outcome))
        })
    }

    /// The bucket of the index where the stripe's sweep continues. `None` if no sweep is due.
    fn next_bucket(&self, stripe: &mut Stripe, tick: u64) -> Option<usize> {
        let every = match (self.access_codec.ttl(), self.eviction.small_norm > 0.0) {
            (None, false) => return None,
            (None, true) => NORM_EVERY,
            (Some(ttl), small) => (ttl / SWEEPS_PER_TTL).clamp(1, if small { NORM_EVERY } else { u64::MAX }),
        };
        if stripe.sweep.bucket.is_none() && tick >= stripe.sweep.started.saturating_add(every) {
            (stripe.sweep.bucket, stripe.sweep.started) = (Some(0), tick);
        }
        stripe.sweep.bucket
    }
}

impl EvictionBuffer {
    /// Checks some rows from bucket `bucket` of the index on, makes candidates of the rows to remove, and advances the
    /// sweep. Returns how many rows it checked.
    fn choose_expired(&mut self, table: &Table, stripe: &mut Stripe, bucket: usize, tick: u64) -> usize {
        self.scanned.clear();
        self.candidates.clear();
        stripe.sweep.bucket = stripe.scan(bucket, SWEPT, &mut self.scanned);
        let mut weights = vec![0.0; table.dim()];
        let least = table.eviction.small_norm;
        for (key, slot) in &self.scanned {
            if table.is_managed && table.access_codec.is_expired(stripe.access(*slot), tick) {
                self.candidates.push(EvictionCandidate::new(0, *key, *slot));
            } else if least > 0.0 && norm(table, stripe, *slot, &mut weights) < least {
                self.candidates.push(EvictionCandidate::new(SMALL, *key, *slot));
            }
        }
        self.scanned.len()
    }
}

fn norm(table: &Table, stripe: &Stripe, slot: u32, weights: &mut [f32]) -> f32 {
    table.layout.read_weights(stripe.slot(slot), weights);
    weights.iter().map(|weight| weight * weight).sum::<f32>().sqrt()
}

fn done(scanned: usize, outcome: EvictionOutcome) -> MaintenanceReport {
    match outcome {
        EvictionOutcome::Evicted(removed) => MaintenanceReport { scanned: scanned as u64, removed },
        // The next call tries again.
        EvictionOutcome::OtherThread | EvictionOutcome::Frozen => MaintenanceReport::default(),
    }
}

pub(crate) fn cold_error(error: TableError) -> ColdError {
    match error {
        TableError::Cold { source, .. } | TableError::Full { source, .. } => source,
        other => ColdError { doing: "read", reason: other.to_string() },
    }
}

// Expiry in the cold tier removes rows past their time to live. Lookups ignore such rows, but the rows take space.
//
// The sweep reads a frozen view of the cold tier, so it reads each row once. It reads a row again before it removes
// the row, because the row may have been used and evicted since.

/// Sweeps of the cold tier per time to live.
const COLD_SWEEPS_PER_TTL: u64 = 4;

impl Table {
    /// Continues the sweep, or starts one if it is due.
    pub(crate) fn sweep_cold(&self) -> Result<MaintenanceReport, ColdError> {
        let (Some(ttl), Some(store), tick) = (self.access_codec.ttl(), self.cold_store(), self.current_tick()) else {
            return Ok(MaintenanceReport::default());
        };
        let Some(mut sweep) = self.cold_sweep.try_lock() else { return Ok(MaintenanceReport::default()) };
        if sweep.view.is_none() {
            if tick < sweep.started.saturating_add((ttl / COLD_SWEEPS_PER_TTL).max(1)) {
                return Ok(MaintenanceReport::default());
            }
            sweep.view = Some(store.freeze()?);
            (sweep.started, sweep.stripe, sweep.from) = (tick, 0, None);
        }
        self.sweep_some(&mut sweep, tick)
    }

    fn sweep_some(&self, sweep: &mut ColdSweep, tick: u64) -> Result<MaintenanceReport, ColdError> {
        let ColdSweep { view: Some(view), stripe, from, scan, .. } = sweep else {
            return Ok(MaintenanceReport::default());
        };
        let range = cold_keys_of_stripe(*stripe, self.stripes());
        scan.cold_keys.clear();
        scan.rows.clear();
        *from = view.scan(self.number, from.unwrap_or(*range.start())..=*range.end(), SWEPT, scan)?;
        let scanned = scan.cold_keys.len() as u64;
        let swept = *stripe;
        if from.is_none() {
            *stripe += 1;
        }
        if *stripe == self.stripes() {
            sweep.view = None;
        }
        let removed = self.remove_expired_cold(swept, sweep, tick)?;
        Ok(MaintenanceReport { scanned: scanned.max(1), removed })
    }

    /// Removes the found rows that are still past their time to live. The eviction lock prevents a write of newer rows
    /// of this stripe in the meantime.
    fn remove_expired_cold(&self, number: usize, sweep: &mut ColdSweep, tick: u64) -> Result<u64, ColdError> {
        let ColdSweep { scan, rows, .. } = sweep;
        let stride = self.stride();
        let expired =
            |words: &[u32], row: usize| self.access_codec.is_expired(words[row * (stride + 1) + stride], tick);
        let mut row = 0;
        let ColdScan { cold_keys, rows: words } = scan;
        cold_keys.retain(|_| {
            row += 1;
            expired(words, row - 1)
        });
        let (Some(store), Some(_only), Some(_writing)) =
            (self.cold_store(), self.eviction_lock(number).try_lock(), self.shared.cold_writes.try_read())
        else {
            return Ok(0);
        };
        if cold_keys.is_empty() {
            return Ok(0);
        }
        store.read(self.number, cold_keys, rows)?;
        let mut row = 0;
        cold_keys.retain(|_| {
            row += 1;
            rows.found[row - 1] && expired(&rows.rows, row - 1)
        });
        store.remove(self.number, cold_keys)?;
        let mut stripe = self.lock(number);
        stripe.cold_versions.make_all_stale();
        // The cold copy of a row in memory was void, so its removal does not count.
        let removed = cold_keys.iter().filter(|cold_key| stripe.find(cold_key_of(**cold_key)).is_none()).count() as u64;
        stripe.counts.expired += removed;
        Ok(removed)
    }
}

/// Longest wait for running requests, and the share of a request's timeout that the wait may take.
const WAIT: Duration = Duration::from_secs(10);
const WAIT_SHARE: u32 = 4;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClearError {
    /// A request or a write did not end in time. Nothing is removed.
    #[error("the tables are not cleared: waited {waited:?} for {whom}; try again later")]
    Busy { whom: &'static str, waited: Duration },
    /// The log takes nothing in. No row is removed, but the log will say that all are: the caller refuses every use of the rows.
    #[error("the tables are not cleared: {}; free the disk of the log, then load the model again", .0.reason)]
    Log(ColdError),
    /// The cold tier failed. Some rows may already be removed.
    #[error("the tables are not cleared: the cold tier failed; check its disk, then load the model again")]
    Cold(#[source] ColdError),
}

impl TableSet {
    /// Removes every row of every table, and all frequency counts. Allocated memory and [`crate::TableCounts`] stay.
    ///
    /// Steps count from 0 again. Otherwise rows of an earlier step, inserted next, would already be past their time to
    /// live. The caller that inserts rows sets their step ([`Self::advance_clock`]).
    /// It waits 10 s, or a quarter of the timeout of requests, for running ones to end.
    pub fn clear(&self) -> Result<(), ClearError> {
        let wait = self.shared.capacity.longest_wait(WAIT, WAIT_SHARE);
        let busy = |whom| ClearError::Busy { whom, waited: wait };
        self.iter().try_for_each(Table::apply_all_pending).map_err(|error| ClearError::Cold(cold_error(error)))?;
        let _alone = self.gate.try_write_for(wait).ok_or(busy("a lookup or a push to end"))?;
        // With both locks held no row is evicted. So no row of memory stays behind in the cold tier (invariant TI-1).
        let _still = self.shared.cold_writes.try_write_for(wait).ok_or(busy("a write to the cold tier to end"))?;
        if self.iter().any(Table::has_pending) {
            return Err(busy("pending gradients, whose rows cannot be read from the cold tier"));
        }
        self.shared.clock.restart_steps();
        if let Some(log) = self.shared.log.get() {
            log.cleared();
            // Else the cold tier could lose rows that the log still has.
            log.flush().map_err(ClearError::Log)?;
        }
        self.iter().try_for_each(Table::clear)
    }
}

impl Table {
    fn clear(&self) -> Result<(), ClearError> {
        *self.cold_sweep.lock() = ColdSweep::default();
        (0..self.stripes()).for_each(|stripe| self.lock(stripe).clear());
        // Every request waits during this call. It is one call, however many rows there are.
        self.cold_store().map_or(Ok(()), |store| store.remove_all(self.number).map_err(ClearError::Cold))
    }
}
