//! Removing all rows, in memory and in the cold tier: the step before another model's rows are put in.

use std::time::Duration;

use crate::tier::maintenance::cold_error;
use crate::tier::sweep::ColdSweep;
use crate::{ColdError, Table, TableSet};

/// Longest wait for requests that are under way, and the part of a request's timeout that it may take.
const WAIT: Duration = Duration::from_secs(10);
const WAIT_SHARE: u32 = 4;

/// Why the tables were not cleared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClearError {
    /// Another thread did not end in time. Nothing is removed.
    #[error("the tables are not cleared: after {waited:?} {whom} had not ended; try again later")]
    Busy {
        /// What was waited for.
        whom: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The cold tier failed. Some rows may be removed.
    #[error("the tables are not cleared; see to the disk of the cold tier and load the model again")]
    Cold(#[source] ColdError),
}

impl TableSet {
    /// Removes every row of every table, and all frequency counts. The memory and [`crate::TableCounts`] stay.
    ///
    /// Steps count from 0 again: else rows of an earlier step that are put in next would be past their time to live at
    /// once. The caller that puts them in sets their step ([`Self::tick`]).
    ///
    /// # Errors
    /// When requests that are under way do not end within 10 s or a quarter of their timeout, or when the cold tier fails.
    pub fn clear(&self) -> Result<(), ClearError> {
        let wait = self.shared().capacity.wait(WAIT, WAIT_SHARE);
        let busy = |whom| ClearError::Busy { whom, waited: wait };
        self.iter().try_for_each(Table::apply_all_pending).map_err(|error| ClearError::Cold(cold_error(error)))?;
        let _alone = self.gate().try_write_for(wait).ok_or(busy("a lookup or a push"))?;
        // No row is evicted between the two, so none is left in the cold tier that was in memory (invariant TI-1).
        let _still = self.shared().cold_writes.try_write_for(wait).ok_or(busy("a write to the cold tier"))?;
        if self.iter().any(Table::has_pending) {
            return Err(busy("a row of the cold tier that a gradient waits for"));
        }
        self.shared().clock.restart_steps();
        if let Some(log) = self.shared().log.get() {
            log.cleared();
        }
        self.iter().try_for_each(Table::clear)
    }
}

impl Table {
    fn clear(&self) -> Result<(), ClearError> {
        *self.cold_sweep.lock() = ColdSweep::default();
        (0..self.stripes()).for_each(|stripe| self.lock(stripe).clear());
        // Every request waits meanwhile: one call, however many rows there are.
        self.cold().map_or(Ok(()), |store| store.remove_all(self.number()).map_err(ClearError::Cold))
    }
}
