//! A snapshot of all tables at one instant.

use std::time::Duration;

use parking_lot::RwLockWriteGuard;

use crate::{ColdError, Moment, Rows, Table, TableError, TableSet};

/// Longest wait for the requests that are under way.
const WAIT: Duration = Duration::from_secs(10);

/// All rows at one instant, to be read while training goes on. There is one at a time; dropping it ends it.
#[derive(Debug)]
pub struct Cut<'a> {
    set: &'a TableSet,
    moment: Moment,
    _gate: RwLockWriteGuard<'a, ()>,
}

/// Why there is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// There is one already.
    #[error("a snapshot of the tables is being read; wait until it is done")]
    Running,
    /// Requests did not end in time.
    #[error("no snapshot of the tables: after {}s {whom} had not ended", waited.as_secs())]
    Busy {
        /// Who was waited for.
        whom: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The cold tier could not be frozen.
    #[error("no snapshot of the tables")]
    Cold(#[from] ColdError),
}

impl TableSet {
    /// Takes the instant: no push is half in it, of however many tables.
    ///
    /// # Errors
    /// When there is a snapshot already, when requests that are under way do not end within 10 s, or when the cold
    /// tier fails.
    pub fn cut(&self) -> Result<Cut<'_>, CutError> {
        let busy = CutError::Busy { whom: "a lookup or a push", waited: WAIT };
        let gate = self.gate().try_write_for(WAIT).ok_or(busy)?;
        Ok(Cut { set: self, moment: self.now(), _gate: gate })
    }
}

impl Cut<'_> {
    /// The time of the instant, to be told to tables that load the rows ([`TableSet::tick`]).
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Appends all rows that one stripe of a table had at the instant, in memory or not, to `into`, in ascending order
    /// of ids. A stripe is read once.
    ///
    /// # Errors
    /// When there is no such table, or the cold tier fails.
    ///
    /// # Panics
    /// When there is no such stripe.
    pub fn read_stripe(&self, table: u32, stripe: usize, into: &mut Rows) -> Result<(), TableError> {
        let table: &Table = self.set.table(table)?;
        table.read_stripe(stripe, into);
        Ok(())
    }
}
