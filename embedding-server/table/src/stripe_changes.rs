//! What changes in a stripe while its lock is held, on its way to the log.

use crate::key::id_of;
use crate::{ChangeKind, PushOrigin, StripeChange, Table};

/// Changes that are not in the log yet. Empty whenever the lock of the stripe is free.
#[derive(Debug, Default)]
pub(crate) struct StripeChanges {
    /// The push that changed the rows.
    pub(crate) origin: Option<PushOrigin>,
    ids: Vec<u64>,
    slots: Vec<u32>,
    access: Vec<u32>,
    /// Ids without a row that were counted.
    seen: Vec<u64>,
    /// Ids whose rows are gone. They were there before any of the rows above changed.
    removed: Vec<u64>,
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

    fn clear(&mut self) {
        self.origin = None;
        self.ids.clear();
        self.slots.clear();
        self.access.clear();
        self.seen.clear();
        self.removed.clear();
    }
}

impl Table {
    /// Whether changes are logged. Else none need to be noted.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.shared().log.get().is_some()
    }

    /// Appends to the log what was noted, and forgets it. The lock of the stripe is held (invariant DU-2).
    pub(crate) fn append_changes(&self, stripe: usize, changes: &mut StripeChanges) {
        if let Some(log) = self.shared().log.get() {
            let StripeChanges { origin, ids, slots, access, seen, removed } = changes;
            let append = |origin: Option<&PushOrigin>, kind| {
                log.append(&StripeChange { table: self.number(), stripe: stripe as u32, origin, kind });
            };
            if !removed.is_empty() {
                append(None, ChangeKind::Removed(removed));
            }
            if !seen.is_empty() {
                append(None, ChangeKind::Seen(seen));
            }
            if !ids.is_empty() {
                append(origin.as_ref(), ChangeKind::Rows { ids, slots, access });
            }
        }
        changes.clear();
    }
}
