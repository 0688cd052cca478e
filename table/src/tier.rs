//! The cold tier: which rows are evicted from memory, where they go, and how they are paged in.

pub(crate) mod cold_store;
pub(crate) mod eviction;
pub(crate) mod eviction_buffer;
pub(crate) mod eviction_policy;
pub(crate) mod lookahead;
pub(crate) mod maintenance;
pub(crate) mod managed;
pub(crate) mod moving;
pub(crate) mod page_in;
pub(crate) mod page_in_rows;
pub(crate) mod pending;
pub(crate) mod shared_memory;
pub(crate) mod stripe_notes;

use crate::{ColdRows, ColdScan, ColdView};

/// The positions of the searches for rows past their time to live: one for each stripe in memory, and one for the cold
/// tier of each table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StripeSweep {
    /// Bucket of the index to continue from. `None` between two sweeps.
    pub(crate) bucket: Option<usize>,
    pub(crate) started: u64,
}

#[derive(Default)]
pub(crate) struct ColdSweep {
    /// The content of the cold tier when the sweep started. `None` between two sweeps.
    pub(crate) view: Option<Box<dyn ColdView>>,
    pub(crate) stripe: usize,
    /// Cold key to continue from.
    pub(crate) from: Option<u64>,
    pub(crate) started: u64,
    pub(crate) scan: ColdScan,
    /// Buffer for the present content of these rows.
    pub(crate) rows: ColdRows,
}

impl std::fmt::Debug for ColdSweep {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stripe, from) = (self.stripe, self.from);
        to.debug_struct("ColdSweep").field("stripe", &stripe).field("from", &from).finish_non_exhaustive()
    }
}
