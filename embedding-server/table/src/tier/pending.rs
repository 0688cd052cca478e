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

use crate::request::row_loops::row;
use crate::request::update::RowUpdate;
use crate::stripe::{PendingGradient, Stripe};
use crate::tier::page_in_rows::{PageIn, PageInEntry};
use crate::{PushStep, Table, TableError};

impl Table {
    /// Keeps the gradients of rows that cannot be read. If a row is in memory by now, its gradient is applied at once.
    pub(crate) fn defer_gradients(&self, entries: &[PageInEntry], gradients: &[f32], step: PushStep) {
        for entry in entries {
            let mut stripe = self.lock(self.stripe_of(entry.key));
            let gradient = row(gradients, entry.position, self.dim()).into();
            stripe.pending.push(PendingGradient { key: entry.key, step, gradient });
            self.pending_count().fetch_add(1, Ordering::Relaxed);
            if let Some(slot) = stripe.find(entry.key) {
                self.apply_pending(&mut stripe, entry.key, slot);
            }
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
            stripe.keep(key, slot);
            RowUpdate::new(*self.layout(), pending.step, &mut buffer).apply(
                stripe.slot_mut(slot),
                key,
                &pending.gradient,
            );
        }
        self.pending_count().fetch_sub(applied.len(), Ordering::Relaxed);
    }

    /// Whether the table has pending gradients.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending_count().load(Ordering::Relaxed) > 0
    }

    /// Pages in all rows that have pending gradients.
    ///
    /// # Errors
    /// If the cold tier still cannot be read.
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
                .for_each(|gradient| page_in.add(gradient.key, 0, stripe.cold_version, !in_memory(gradient.key)));
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
        let before = stripe.pending.len();
        stripe.pending.retain(|gradient| gradient.key != key);
        self.pending_count().fetch_sub(before - stripe.pending.len(), Ordering::Relaxed);
    }
}
