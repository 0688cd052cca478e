//! What the tables of one server share: memory, the cold tier and the time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::machine::memory::{Arena, PageSize};
use crate::tier::clock::TableClock;
use crate::tier::copy_budget::{CopyBudget, CopyPermit};
use crate::tier::eviction_buffer::EvictionBuffer;
use crate::tier::table_resources::RowBudget;
use crate::{ColdError, TableResources};

/// Cold copies of pushes may take one part in this many of the budget, in addition to it, and a minimum in any case.
const COPIES_SHARE: usize = 16;
const LEAST_COPIES: usize = 1 << 20;
/// The longest wait of a push for the copies of other pushes, and the share of its timeout that the wait may take.
const COPIES_WAIT: Duration = Duration::from_secs(5);
const COPIES_WAIT_SHARE: u32 = 4;

/// Memory, cold tier and time of the tables of one server.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) budget: RowBudget,
    pub(crate) capacity: TableResources,
    pub(crate) clock: TableClock,
    /// The memory of rows and indexes. Small tables share huge pages.
    pub(crate) arena: Arc<Arena>,
    /// Writes to the cold tier and removals lock it shared. A freeze locks it exclusively.
    pub(crate) cold_writes: RwLock<()>,
    /// The budget for cold copies of pushes.
    pub(crate) copies: CopyBudget,
    /// Buffers for eviction. There are as many as threads have evicted at once.
    pub(crate) buffer: Mutex<Vec<EvictionBuffer>>,
    /// Why the last write to the cold tier failed. `None` if it succeeded.
    failure: Mutex<Option<ColdError>>,
}

impl SharedMemory {
    pub(crate) fn new(capacity: TableResources) -> Self {
        Self {
            budget: RowBudget::new(capacity.budget),
            copies: CopyBudget::new(capacity.budget.map(|budget| LEAST_COPIES.max(budget / COPIES_SHARE))),
            capacity,
            clock: TableClock::default(),
            arena: Arena::new(PageSize::Huge),
            cold_writes: RwLock::default(),
            buffer: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Acquires permission to hold the cold copies of a push.
    pub(crate) fn acquire_copies(&self, bytes: usize) -> CopyPermit<'_> {
        self.copies.acquire(bytes, self.capacity.wait(COPIES_WAIT, COPIES_WAIT_SHARE))
    }

    /// Notes the result of the last write to the cold tier.
    pub(crate) fn note(&self, failure: Option<&ColdError>) {
        *self.failure.lock() = failure.cloned();
    }

    pub(crate) fn failure(&self) -> Option<ColdError> {
        self.failure.lock().clone()
    }
}
