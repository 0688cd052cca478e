//! Gradients that were acknowledged and whose row cannot be read just then.
//!
//! A push reads what it needs from the cold tier before it changes anything, and is refused whole if it cannot. Between
//! that and its own turn a row may still leave memory; if the cold tier fails in that very moment, part of the push is
//! applied already and the gradient waits here until its row comes back. It is applied before anyone sees the row.

use std::sync::atomic::Ordering;

use crate::request::hot::row;
use crate::request::update::Update;
use crate::stripe::{Owed, Stripe};
use crate::tier::visit::{Todo, Visit};
use crate::{Step, Table, TableError};

impl Table {
    /// Keeps the gradients of rows that cannot be read; those in memory by now take them at once.
    pub(crate) fn owe(&self, todo: &[Todo], gradients: &[f32], step: Step) {
        for todo in todo {
            let mut stripe = self.lock(self.stripe_of(todo.key));
            let gradient = row(gradients, todo.position, self.dim()).into();
            stripe.owed.push(Owed { key: todo.key, step, gradient });
            self.owing().fetch_add(1, Ordering::Relaxed);
            if let Some(slot) = stripe.find(todo.key) {
                self.pay(&mut stripe, todo.key, slot);
            }
        }
    }

    /// Applies what is owed to a row that is in memory now, in the order in which it came.
    #[inline]
    pub(crate) fn pay(&self, stripe: &mut Stripe, key: u64, slot: u32) {
        if !stripe.owed.is_empty() {
            self.pay_some(stripe, key, slot);
        }
    }

    #[cold]
    fn pay_some(&self, stripe: &mut Stripe, key: u64, slot: u32) {
        let mut buffer = Vec::new();
        let paid: Vec<Owed> = stripe.owed.extract_if(.., |owed| owed.key == key).collect();
        for owed in &paid {
            stripe.keep(key, slot);
            Update::new(*self.layout(), owed.step, &mut buffer).apply(stripe.slot_mut(slot), key, &owed.gradient);
        }
        self.owing().fetch_sub(paid.len(), Ordering::Relaxed);
    }

    /// Whether gradients wait.
    pub(crate) fn is_indebted(&self) -> bool {
        self.owing().load(Ordering::Relaxed) > 0
    }

    /// Brings the rows to memory for which gradients wait.
    ///
    /// # Errors
    /// When the cold tier still cannot be read.
    pub(crate) fn pay_all(&self) -> Result<(), TableError> {
        if !self.is_indebted() {
            return Ok(());
        }
        let mut visit = Visit::default();
        for number in 0..self.stripes() {
            let stripe = self.lock(number);
            let hot = |key: u64| stripe.find(key).is_some();
            stripe.owed.iter().for_each(|owed| visit.add(owed.key, 0, stripe.departures, !hot(owed.key)));
        }
        visit.read(self).map_err(|source| self.unreadable(source))?;
        self.settle(&mut visit, &mut |stripe, todo, slot| {
            if slot.is_none() {
                self.forgive(stripe, todo.key);
            }
        })
    }

    /// Drops what is owed to a row that is past its time to live and has not been admitted again.
    fn forgive(&self, stripe: &mut Stripe, key: u64) {
        let before = stripe.owed.len();
        stripe.owed.retain(|owed| owed.key != key);
        self.owing().fetch_sub(before - stripe.owed.len(), Ordering::Relaxed);
    }
}
