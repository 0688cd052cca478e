//! What the tables of one server share: memory, the tier behind it, time.

use crate::Capacity;
use crate::capacity::Budget;
use crate::clock::Clock;

/// What the tables of one server share.
#[derive(Debug)]
pub(crate) struct Shared {
    #[expect(dead_code, reason = "eviction is under way")]
    pub(crate) budget: Budget,
    #[expect(dead_code, reason = "eviction is under way")]
    pub(crate) capacity: Capacity,
    pub(crate) clock: Clock,
}

impl Shared {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self { budget: Budget::new(capacity.budget), capacity, clock: Clock::default() }
    }
}
