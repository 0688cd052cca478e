//! What changes in a stripe while its lock is held, on its way to the log.

use crate::key::id_of;
use crate::{PushOrigin, StepRowBatch};

/// Changes that are not in the log yet. Empty whenever the lock of the stripe is free.
#[derive(Debug, Default)]
pub(crate) struct StripeChanges {
    pub(crate) origin: Option<PushOrigin>,
    pub(crate) ids: Vec<u64>,
    pub(crate) slots: Vec<u32>,
    pub(crate) access: Vec<u32>,
    pub(crate) seen: Vec<u64>,
    /// Ids whose rows are gone. They were there before any of the rows above changed.
    pub(crate) removed: Vec<u64>,
    /// What the stripe keeps of the rows above until the step is over. Rarely used, so that a stripe stays small.
    pub(crate) step_rows: Box<StepRowBatch>,
}

impl StripeChanges {
    #[inline]
    pub(crate) fn note_row(&mut self, key: u64, words: &[u32], access: Option<u32>) {
        self.ids.push(id_of(key));
        self.slots.extend_from_slice(words);
        self.access.extend(access);
    }

    pub(crate) fn note_seen(&mut self, key: u64) {
        self.seen.push(id_of(key));
    }

    pub(crate) fn note_removed(&mut self, key: u64) {
        self.removed.push(id_of(key));
    }

    pub(crate) fn clear(&mut self) {
        self.origin = None;
        self.ids.clear();
        self.slots.clear();
        self.access.clear();
        self.seen.clear();
        self.removed.clear();
        self.step_rows.clear();
    }
}
