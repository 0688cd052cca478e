//! What the tables of one server share: memory, the tier behind it, time.

use std::sync::Arc;

use crate::Capacity;
use crate::capacity::Budget;
use crate::clock::Clock;
use crate::memory::{Arena, Pages};

/// What the tables of one server share.
#[derive(Debug)]
pub(crate) struct Shared {
    #[expect(dead_code, reason = "eviction is under way")]
    pub(crate) budget: Budget,
    #[expect(dead_code, reason = "eviction is under way")]
    pub(crate) capacity: Capacity,
    pub(crate) clock: Clock,
    /// Where rows and indexes lie: small tables share huge pages.
    pub(crate) arena: Arc<Arena>,
}

impl Shared {
    pub(crate) fn new(capacity: Capacity) -> Self {
        let arena = Arena::new(Pages::Huge);
        Self { budget: Budget::new(capacity.budget), capacity, clock: Clock::default(), arena }
    }
}
