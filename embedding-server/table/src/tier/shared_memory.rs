//! What the tables of one server share: memory, the cold tier, time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::machine::memory::{Arena, Pages};
use crate::tier::capacity::MemoryBudget;
use crate::tier::clock::TableClock;
use crate::tier::copy_budget::{CopyBudget, CopyPermit};
use crate::tier::eviction_buffer::EvictionBuffer;
use crate::{Capacity, ColdError, RequestDeadline, TableError};

/// Pushes may hold one part in this many of the budget beside it, and a little in any case.
const COPIES_SHARE: usize = 16;
const LEAST_COPIES: usize = 1 << 20;
/// How long a push waits for other pushes to free their copies, and the part of its timeout that the wait may take.
const COPIES_WAIT: Duration = Duration::from_secs(5);
const COPIES_WAIT_SHARE: u32 = 4;

/// What requests wait for, in the words of [`TableError::Late`].
const OTHER_PUSHES: &str = "other pushes that hold copies of rows of the cold tier";
pub(crate) const COLD_READ: &str = "rows of the cold tier";

/// What the tables of one server share.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) budget: MemoryBudget,
    pub(crate) capacity: Capacity,
    pub(crate) clock: TableClock,
    /// Where rows and indexes lie: small tables share huge pages.
    pub(crate) arena: Arc<Arena>,
    /// Locked shared while rows are written to the cold tier or removed from it, exclusively while it is frozen.
    pub(crate) cold_writes: RwLock<()>,
    /// The budget for cold copies of pushes.
    pub(crate) copies: CopyBudget,
    /// Buffers for eviction, as many as threads evicted at once.
    pub(crate) buffer: Mutex<Vec<EvictionBuffer>>,
    /// Why the last write to the cold tier failed.
    failure: Mutex<Option<ColdError>>,
}

impl SharedMemory {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self {
            budget: MemoryBudget::new(capacity.budget),
            copies: CopyBudget::new(capacity.budget.map(|budget| LEAST_COPIES.max(budget / COPIES_SHARE))),
            capacity,
            clock: TableClock::default(),
            arena: Arena::new(Pages::Huge),
            cold_writes: RwLock::default(),
            buffer: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Permission to hold the cold copies that a push needs.
    ///
    /// # Errors
    /// When the push's sender gives up meanwhile.
    pub(crate) fn acquire_copies(&self, bytes: usize, deadline: RequestDeadline) -> Result<CopyPermit<'_>, TableError> {
        let most = self.capacity.wait(COPIES_WAIT, COPIES_WAIT_SHARE);
        let permit = self.copies.acquire(bytes, self.wait_until(deadline, most));
        self.check(deadline, OTHER_PUSHES)?;
        Ok(permit)
    }

    /// The shorter of `most` and what is left until the sender of a request gives up.
    pub(crate) fn wait_until(&self, deadline: RequestDeadline, most: Duration) -> Duration {
        self.left(deadline).map_or(most, |left| left.min(most))
    }

    /// What is left until the sender of a request gives up; `None` where there is no end.
    pub(crate) fn left(&self, deadline: RequestDeadline) -> Option<Duration> {
        deadline.left(self.capacity.nanos?()).map(Duration::from_nanos)
    }

    /// Lets a request go on whose sender still waits. `whom` the request has waited for.
    ///
    /// # Errors
    /// [`TableError::Late`] when the sender has given up.
    pub(crate) fn check(&self, deadline: RequestDeadline, whom: &'static str) -> Result<(), TableError> {
        match self.left(deadline) {
            Some(Duration::ZERO) => Err(TableError::Late { whom }),
            _ => Ok(()),
        }
    }

    /// Notes the result of the last write.
    pub(crate) fn note(&self, failure: Option<&ColdError>) {
        *self.failure.lock() = failure.cloned();
    }

    pub(crate) fn failure(&self) -> Option<ColdError> {
        self.failure.lock().clone()
    }
}
