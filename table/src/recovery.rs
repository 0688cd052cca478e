//! Making the tables of an earlier process again, and reading them for that while they change.
//!
//! A server that starts puts in what its log says by the calls here, before it serves anything and before
//! [`TableSet::set_log`]. None of these calls is logged.
//!
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
use std::time::Duration;

use zagros_zip::ZipEq;

use crate::admission::transfer::sketch_length;
use crate::key::{id_of, key_of};
use crate::update_log::StripeChanges;
use crate::{
    ChangeKind, ChangeWatcher, ColdError, FrequencyCounts, PushOrigin, PushStep, RequestBuffers, RowBatch, RowSlices,
    StepRowBatch, StepRowSlices, StripeChange, Table, TableError, TableSet, TableTime, UpdateLog,
};

impl TableSet {
    /// From now on changes are logged. Only the first log counts.
    pub fn set_log(&self, log: Arc<dyn UpdateLog>) {
        let _ = self.shared.log.set(log);
    }

    /// Does `work` while no lookup, push or clear is under way. They wait meanwhile. `None` if those under way do not end within
    /// `wait`.
    pub fn while_quiet<T>(&self, wait: Duration, work: impl FnOnce() -> T) -> Option<T> {
        let _alone = self.gate.try_write_for(wait)?;
        Some(work())
    }

    /// Waits until all rows of the cold tier are on the disk, if there is one.
    pub fn flush_cold(&self) -> Result<(), ColdError> {
        self.shared.capacity.cold.as_ref().map_or(Ok(()), |store| store.flush())
    }

    pub fn table_time(&self) -> TableTime {
        self.shared.clock.now()
    }

    pub fn apply_pending_gradients(&self) -> Result<(), TableError> {
        self.iter().try_for_each(Table::apply_all_pending)
    }

    /// From now on `watcher` learns of changes, instead of the one before. Call it while no request is under way
    /// ([`Self::while_quiet`]): a request that is may not be seen.
    pub fn set_watcher(&self, watcher: Arc<dyn ChangeWatcher>) {
        self.shared.watcher.set(Some(watcher));
    }

    /// From now on only the log learns of changes.
    pub fn end_watch(&self) {
        self.shared.watcher.set(None);
    }

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
    /// Makes room for this many rows in all, spread over the stripes by their ids. A caller that puts rows in that came from
    /// [`Self::ids_in_memory`] calls it first: they come in the order of the index, which fills a small index unevenly.
    pub fn reserve_rows(&self, rows: usize) {
        let mean = rows / self.stripes();
        // The rows of a stripe are binomial: hardly one stripe in ten thousand has more.
        let most = mean + 4 * mean.isqrt() + usize::from(rows > 0);
        for stripe in 0..self.stripes() {
            let mut stripe = self.lock(stripe);
            stripe.reserve(most);
            if self.is_managed {
                self.charge(&mut stripe);
            }
        }
    }

    /// Puts rows of one stripe in, and replaces those that are there, as [`Self::insert`]. It takes the rows of one record of a
    /// log where they lie, and one lock.
    /// On an error nothing changes.
    pub fn restore_rows(
        &self,
        stripe: usize,
        rows: &RowSlices<'_>,
        scratch: &mut RequestBuffers,
    ) -> Result<(), TableError> {
        let RowSlices { ids, slots, access } = *rows;
        self.check_rows("slots", ids, self.stride(), slots.len())?;
        let one_by_one = self.is_managed || self.is_logged() || stripe >= self.stripes();
        match scratch.group_of_stripe(ids, stripe, self.stripes()).filter(|_| !one_by_one) {
            Some(mut group) => self.put_group(&mut self.lock(stripe), &mut group, slots),
            None => {
                let rows = RowBatch { ids: ids.to_vec(), slots: slots.to_vec(), access: access.to_vec() };
                self.insert(&rows, scratch)?;
            }
        }
        Ok(())
    }

    /// The ids of the rows of one stripe that are in memory, in the order of its index.
    pub fn ids_in_memory(&self, stripe: usize) -> Vec<u64> {
        let mut rows = Vec::new();
        self.lock(stripe).scan(0, usize::MAX, &mut rows);
        rows.into_iter().map(|(key, _)| id_of(key)).collect()
    }

    /// Appends those rows of `ids`, which are of one stripe, that are in memory now.
    pub fn read_rows(&self, stripe: usize, ids: &[u64], into: &mut RowBatch) {
        let stripe = self.lock(stripe);
        ids.iter().for_each(|id| stripe.prefetch_entry(key_of(*id)));
        for id in ids {
            self.append_from_memory(&stripe, *id, into);
        }
    }

    /// The frequency counts of one stripe, and the position of the log at which they are what they are. 0 without a log.
    pub fn counts_with_position(&self, stripe: usize, into: &mut FrequencyCounts) -> u64 {
        let stripe = self.lock(stripe);
        stripe.filter.save(into);
        self.shared.log.get().map_or(0, |log| log.position())
    }

    /// Counts uses of ids without a row, in their order, as a lookup did.
    pub fn observe_again(&self, ids: &[u64]) {
        for id in ids {
            let key = key_of(*id);
            self.lock(self.stripe_of(key)).filter.observe(key);
        }
    }

    /// Forgets the exact counts of ids that were removed.
    pub fn forget_counts_again(&self, ids: &[u64]) {
        for id in ids {
            let key = key_of(*id);
            self.lock(self.stripe_of(key)).filter.forget(key);
        }
    }

    /// Adds cells that were added to the sketch of a stripe, from word `from` on.
    /// On an error nothing changes.
    pub fn add_sketch_again(&self, stripe: usize, from: usize, cells: &[u32]) -> Result<(), TableError> {
        self.check_sketch_stripe(stripe)?;
        let added = self.lock(stripe).filter.merge(from, cells);
        added.map_err(|expected| sketch_length(expected, from, cells))
    }

    /// Adds to the counts of ids, whether they have a row now or not.
    pub fn add_counts_again(&self, ids: &[u64], counts: &[u32]) {
        for (id, count) in ids.iter().zip_eq(counts) {
            let key = key_of(*id);
            self.lock(self.stripe_of(key)).filter.add_count(key, *count);
        }
    }

    /// Keeps a gradient of a row that may not be in memory. It is applied before anyone sees the row.
    pub fn defer_again(&self, id: u64, gradient: &[f32], step: PushStep) {
        self.defer_gradient(key_of(id), gradient, step, None);
    }

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
        let StripeChanges { origin, rows: RowBatch { ids, slots, access }, seen, removed, step_rows } = changes;
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
            self.shared.watcher.notify_changed(self.number, stripe, &changes.rows.ids);
            self.shared.watcher.notify_changed(self.number, stripe, &changes.seen);
        }
        changes.clear();
    }

    /// Ids of the rows of one stripe that the newest step has changed and later pushes of it may change.
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
