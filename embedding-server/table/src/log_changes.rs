//! Hands what has changed in a stripe to the log and to the watcher.

use std::sync::Arc;

use crate::stripe_changes::StripeChanges;
use crate::{ChangeKind, ChangeWatcher, PushOrigin, PushStep, StripeChange, Table, TableSet};

impl TableSet {
    /// From now on `watcher` learns of changes, instead of the one before. Call it while no request is under way
    /// ([`Self::while_quiet`]): a request that is may not be seen.
    pub fn set_watcher(&self, watcher: Arc<dyn ChangeWatcher>) {
        self.shared().watcher.set(Some(watcher));
    }

    /// From now on only the log learns of changes.
    pub fn end_watch(&self) {
        self.shared().watcher.set(None);
    }
}

impl Table {
    /// Whether changes are logged or watched. Else none need to be noted.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.shared().log.get().is_some() || self.shared().watcher.is_taken()
    }

    /// Whether what a push of a part of a step leaves behind is logged.
    #[inline]
    pub(crate) fn logs_steps(&self, step: PushStep) -> bool {
        step.share < 1.0 && self.shared().log.get().is_some_and(|log| log.keeps_steps())
    }

    /// Appends to the log what was noted, and forgets it. The lock of the stripe is held (invariant DU-2).
    pub(crate) fn append_changes(&self, stripe: usize, changes: &mut StripeChanges) {
        if let Some(log) = self.shared().log.get() {
            let StripeChanges { origin, ids, slots, access, seen, removed, step_rows } = changes;
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
            if !step_rows.ids.is_empty() {
                append(None, ChangeKind::StepRows(step_rows.as_slices()));
            }
        }
        if self.shared().watcher.is_taken() {
            self.shared().watcher.notify_changed(self.number(), stripe, &changes.removed);
            self.shared().watcher.notify_changed(self.number(), stripe, &changes.ids);
            self.shared().watcher.notify_changed(self.number(), stripe, &changes.seen);
        }
        changes.clear();
    }
}
