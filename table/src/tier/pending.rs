//! Pending gradients: gradients that were acknowledged and whose row cannot be read at the moment.
//!
//! A push reads its rows from the cold tier before it changes anything. If this read fails, the whole push is refused.
//! But a row may be evicted after this read, before the push updates it. If the cold tier fails then, part of the push
//! is already applied. The gradient of such a row waits in its stripe, and is applied before a request sees the row
//! again:
//!
//! ```text
//! push: read cold copies ─► row 1 updated ─► row 2 was evicted, the cold tier fails ─► gradient of row 2 is pending
//! next page-in of row 2 ─► apply the pending gradient ─► hand out the row
//! ```

use std::sync::atomic::Ordering;

use crate::key::id_of;
use crate::request::row_loops::row;
use crate::request::update::RowUpdate;
use crate::stripe::{PendingGradient, Stripe};
use crate::tier::page_in_rows::{PageIn, PageInEntry};
use crate::{ChangeKind, PushOrigin, PushStep, Table, TableError};

impl Table {
    /// Keeps the gradients of rows that cannot be read. A row that is in memory by now takes its gradient at once.
    pub(crate) fn defer_gradients(
        &self,
        entries: &[PageInEntry],
        gradients: &[f32],
        step: PushStep,
        origin: Option<PushOrigin>,
    ) {
        for entry in entries {
            self.defer_gradient(entry.key, row(gradients, entry.position, self.dim()), step, origin);
        }
    }

    pub(crate) fn defer_gradient(&self, key: u64, gradient: &[f32], step: PushStep, origin: Option<PushOrigin>) {
        let mut stripe = self.lock(self.stripe_of(key));
        self.log_change(stripe.number, origin.as_ref(), ChangeKind::Pending { id: id_of(key), step, gradient });
        stripe.pending.push(PendingGradient { key, step, gradient: gradient.into() });
        self.pending_count.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = stripe.find(key) {
            self.apply_pending(&mut stripe, key, slot);
            self.log_stripe(&mut stripe);
        }
    }

    /// Applies the pending gradients of a row that is in memory now, in the order in which they came.
    #[inline]
    pub(crate) fn apply_pending(&self, stripe: &mut Stripe, key: u64, slot: u32) {
        if !stripe.pending.is_empty() {
            self.apply_pending_of(stripe, key, slot);
        }
    }

    #[cold]
    fn apply_pending_of(&self, stripe: &mut Stripe, key: u64, slot: u32) {
        let mut buffer = Vec::new();
        let applied: Vec<PendingGradient> = stripe.pending.extract_if(.., |gradient| gradient.key == key).collect();
        for pending in &applied {
            stripe.preserve_row(key, slot);
            let mut update = RowUpdate::new(self.layout, pending.step, &mut buffer);
            stripe.update(stripe.address(slot), key, &mut update, &pending.gradient);
        }
        // Else the next push of the step, after a restart, would go on without these gradients.
        if applied.iter().any(|pending| self.logs_steps(pending.step)) {
            stripe.note_step_row(key);
        }
        self.pending_count.fetch_sub(applied.len(), Ordering::Relaxed);
        if self.is_logged() && !applied.is_empty() {
            stripe.note_row(key, slot);
        }
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending_count.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn apply_all_pending(&self) -> Result<(), TableError> {
        if !self.has_pending() {
            return Ok(());
        }
        let mut page_in = PageIn::default();
        for number in 0..self.stripes() {
            let stripe = self.lock(number);
            let in_memory = |key: u64| stripe.find(key).is_some();
            stripe
                .pending
                .iter()
                .for_each(|gradient| page_in.add(gradient.key, 0, stripe.cold_versions.now, !in_memory(gradient.key)));
        }
        self.read_cold(&mut page_in)?;
        self.page_in_all(&mut page_in, &mut |stripe, entry, slot| {
            if slot.is_none() {
                self.discard_pending(stripe, entry.key);
            }
        })
    }

    /// Drops the pending gradients of a row that is past its time to live and not admitted again.
    fn discard_pending(&self, stripe: &mut Stripe, key: u64) {
        if self.is_logged() {
            stripe.changes.note_removed(key);
        }
        self.forget_pending(stripe, key);
    }
}
