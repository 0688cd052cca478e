//! What the tables of one server share: memory, the tier behind it, time.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::machine::memory::{Arena, Pages};
use crate::tier::capacity::Budget;
use crate::tier::clock::Clock;
use crate::{Capacity, ColdError};

/// What the tables of one server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) budget: Budget,
    pub(crate) capacity: Capacity,
    pub(crate) clock: Clock,
    /// Where rows and indexes lie: small tables share huge pages.
    pub(crate) arena: Arc<Arena>,
    /// Held shared while rows go to the cold tier or are forgotten there, alone while it is frozen for a snapshot.
    pub(crate) moves: RwLock<()>,
    /// Why rows could not go to the cold tier the last time.
    failure: Mutex<Option<ColdError>>,
}

impl Shared {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self {
            budget: Budget::new(capacity.budget),
            capacity,
            clock: Clock::default(),
            arena: Arena::new(Pages::Huge),
            moves: RwLock::default(),
            failure: Mutex::default(),
        }
    }

    /// Remembers what came of the last attempt to write.
    pub(crate) fn note(&self, failure: Option<&ColdError>) {
        *self.failure.lock() = failure.cloned();
    }

    pub(crate) fn failure(&self) -> Option<ColdError> {
        self.failure.lock().clone()
    }
}
