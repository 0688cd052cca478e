//! Expiry in the cold tier: removes rows past their time to live. Lookups ignore such rows, but the rows take space.
//!
//! The sweep reads a frozen view of the cold tier, so it reads each row once. It reads a row again before it removes
//! the row, because the row may have been used and evicted since.

use crate::key::{cold_key_of, cold_keys_of_stripe};
use crate::tier::maintenance::MaintenanceReport;
use crate::tier::sweep::ColdSweep;
use crate::{ColdError, ColdScan, Table};

const SWEPT: usize = 1024;
/// Sweeps per time to live.
const SWEEPS_PER_TTL: u64 = 4;

impl Table {
    /// Continues the sweep, or starts one if it is due.
    pub(crate) fn sweep_cold(&self) -> Result<MaintenanceReport, ColdError> {
        let (Some(ttl), Some(store), tick) = (self.access_codec().ttl(), self.cold_store(), self.current_tick()) else {
            return Ok(MaintenanceReport::default());
        };
        let Some(mut sweep) = self.cold_sweep.try_lock() else {
            return Ok(MaintenanceReport::default());
        };
        if sweep.view.is_none() {
            if tick < sweep.started.saturating_add((ttl / SWEEPS_PER_TTL).max(1)) {
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
        *from = view.scan(self.number(), from.unwrap_or(*range.start())..=*range.end(), SWEPT, scan)?;
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
            |words: &[u32], row: usize| self.access_codec().is_expired(words[row * (stride + 1) + stride], tick);
        let mut row = 0;
        let ColdScan { cold_keys, rows: words } = scan;
        cold_keys.retain(|_| {
            row += 1;
            expired(words, row - 1)
        });
        let (Some(store), Some(_only), Some(_writing)) =
            (self.cold_store(), self.eviction_lock(number).try_lock(), self.shared().cold_writes.try_read())
        else {
            return Ok(0);
        };
        if cold_keys.is_empty() {
            return Ok(0);
        }
        store.read(self.number(), cold_keys, rows)?;
        let mut row = 0;
        cold_keys.retain(|_| {
            row += 1;
            rows.found[row - 1] && expired(&rows.rows, row - 1)
        });
        store.remove(self.number(), cold_keys)?;
        let mut stripe = self.lock(number);
        stripe.cold_versions.make_all_stale();
        // The cold copy of a row in memory was void, so its removal does not count.
        let removed = cold_keys.iter().filter(|cold_key| stripe.find(cold_key_of(**cold_key)).is_none()).count() as u64;
        stripe.counts.expired += removed;
        Ok(removed)
    }
}
