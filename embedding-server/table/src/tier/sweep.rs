//! How far the searches for rows past their time to live have come: one for each stripe in memory, one for the cold
//! tier of each table.

use crate::{ColdRows, ColdScan, ColdView};

/// The search in one stripe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StripeSweep {
    /// Bucket of the index to go on from. `None` between two sweeps.
    pub(crate) bucket: Option<usize>,
    /// Tick at which the last sweep started.
    pub(crate) started: u64,
}

/// The search in the cold tier of one table.
#[derive(Default)]
pub(crate) struct ColdSweep {
    /// The cold tier as it was when the sweep started. `None` between two sweeps.
    pub(crate) view: Option<Box<dyn ColdView>>,
    /// The stripe whose rows are looked at.
    pub(crate) stripe: usize,
    /// Cold key to go on from.
    pub(crate) from: Option<u64>,
    /// Tick at which the last sweep started.
    pub(crate) started: u64,
    /// Buffer for the rows of the view.
    pub(crate) scan: ColdScan,
    /// Buffer for the rows as they are now.
    pub(crate) rows: ColdRows,
}

impl std::fmt::Debug for ColdSweep {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stripe, from) = (self.stripe, self.from);
        to.debug_struct("ColdSweep").field("stripe", &stripe).field("from", &from).finish_non_exhaustive()
    }
}
