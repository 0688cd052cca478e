//! Clearing: removes all rows from memory and from the cold tier, before another model is loaded.

use std::time::Duration;

use crate::tier::ColdSweep;
use crate::tier::maintenance::cold_error;
use crate::{ColdError, Table, TableSet};

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
