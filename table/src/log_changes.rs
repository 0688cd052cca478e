//! Hands what has changed in a stripe to the log and to the watcher.
//!
//! What stripes keep of a step that is under way, on its way to a log or to another server.
//!
//! Several workers push for one step, and a row takes the sum of their gradients once (`request/step_rows.rs`). A server that starts again
//! or hands its rows over between two of these pushes hands this over as well. Otherwise the later push would be an update of its own.
//!
//! ```text
//! push of worker 0 ─► rows, kept: (row before, g₁) ─► log ─► the process ends ─► recovery: rows, kept ─► push of worker 1: g₁ + g₂
//! ```

use std::sync::Arc;

use crate::key::{id_of, key_of};
use crate::update_log::StripeChanges;
use crate::{
    ChangeKind, ChangeWatcher, PushOrigin, PushStep, StepRowBatch, StepRowSlices, StripeChange, Table, TableError,
    TableSet,
};

impl TableSet {
    /// From now on `watcher` learns of changes, instead of the one before. Call it while no request is under way
    /// ([`Self::while_quiet`]): a request that is may not be seen.
    pub fn set_watcher(&self, watcher: Arc<dyn ChangeWatcher>) {
        self.shared.watcher.set(Some(watcher));
    }

    /// From now on only the log learns of changes.
    pub fn end_watch(&self) {
        self.shared.watcher.set(None);
    }
}

impl Table {
    /// Whether changes are logged or watched. Else none need to be noted.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.shared.log.get().is_some() || self.shared.watcher.is_taken()
    }

    /// Whether what a push of a part of a step leaves behind is logged.
    #[inline]
    pub(crate) fn logs_steps(&self, step: PushStep) -> bool {
        step.share < 1.0 && self.shared.log.get().is_some_and(|log| log.keeps_steps())
    }

    /// Appends a change of a stripe to the log, if there is one.
    pub(crate) fn log_change(&self, stripe: usize, origin: Option<&PushOrigin>, kind: ChangeKind<'_>) {
        if let Some(log) = self.shared.log.get() {
            log.append(&StripeChange { table: self.number, stripe: stripe as u32, origin, kind });
        }
    }

    /// Appends to the log what was noted, and forgets it. The lock of the stripe is held (invariant DU-2).
    pub(crate) fn append_changes(&self, stripe: usize, changes: &mut StripeChanges) {
        let StripeChanges { origin, ids, slots, access, seen, removed, step_rows } = changes;
        if !removed.is_empty() {
            self.log_change(stripe, None, ChangeKind::Removed(removed));
        }
        if !seen.is_empty() {
            self.log_change(stripe, None, ChangeKind::Seen(seen));
        }
        if !ids.is_empty() {
            self.log_change(stripe, origin.as_ref(), ChangeKind::Rows { ids, slots, access });
        }
        if !step_rows.ids.is_empty() {
            self.log_change(stripe, None, ChangeKind::StepRows(step_rows.as_slices()));
        }
        if self.shared.watcher.is_taken() {
            self.shared.watcher.notify_changed(self.number, stripe, &changes.removed);
            self.shared.watcher.notify_changed(self.number, stripe, &changes.ids);
            self.shared.watcher.notify_changed(self.number, stripe, &changes.seen);
        }
        changes.clear();
    }
}

impl TableSet {
    /// Appends to the log all that is kept of steps under way, for a log that begins here. No push is under way.
    pub fn log_steps(&self) {
        let keeps_steps = self.shared.log.get().is_some_and(|log| log.keeps_steps());
        for table in self.iter() {
            for stripe in 0..table.stripes() {
                let mut kept = StepRowBatch::default();
                table.read_step_rows(stripe, &table.step_ids(stripe), &mut kept);
                if keeps_steps && !kept.ids.is_empty() {
                    table.log_change(stripe, None, ChangeKind::StepRows(kept.as_slices()));
                }
            }
        }
    }
}

impl Table {
    /// Ids of the rows of one stripe that the newest step has changed and later pushes of it may change.
    #[must_use]
    pub fn step_ids(&self, stripe: usize) -> Vec<u64> {
        self.lock(stripe).step_rows.keys().map(id_of).collect()
    }

    /// Appends what one stripe keeps of these ids. Of two steps, the newer one stays.
    pub fn read_step_rows(&self, stripe: usize, ids: &[u64], into: &mut StepRowBatch) {
        let stripe = self.lock(stripe);
        ids.iter().for_each(|id| stripe.step_rows.read(key_of(*id), into));
    }

    /// Keeps what another process kept of these rows, unless a newer step has begun here. The rows themselves are put in before.
    /// On an error nothing changes.
    pub fn put_step_rows(&self, rows: &StepRowSlices<'_>) -> Result<(), TableError> {
        let StepRowSlices { step, ids, before, sums } = *rows;
        let (width, dim) = (self.stride(), self.dim());
        self.check_rows("slots before a step", ids, width, before.len())?;
        self.check_rows("sums of gradients", ids, dim, sums.len())?;
        let is_logged = self.shared.log.get().is_some_and(|log| log.keeps_steps());
        let stripe_of = |row: &usize| self.stripe_of(key_of(ids[*row]));
        // One lock and one record for the rows of a stripe, which come side by side.
        let all: Vec<usize> = (0..ids.len()).collect();
        for run in all.chunk_by(|row, next| stripe_of(row) == stripe_of(next)) {
            let mut stripe = self.lock(stripe_of(&run[0]));
            for row in run {
                let key = key_of(ids[*row]);
                let (before, sum) = (&before[row * width..][..width], &sums[row * dim..][..dim]);
                stripe.step_rows.restore(step, key, before, sum);
                if is_logged {
                    stripe.note_step_row(key);
                }
            }
            self.log_stripe(&mut stripe);
        }
        Ok(())
    }
}
