//! Frequency counts of a whole table: its format in a saved model, and reading counts from one.

use crate::key::key_of;
use crate::stripe::Stripe;
use crate::{ChangeKind, StripeChange, Table, TableError};

impl Table {
    /// How ids without a row are counted, for a saved model. [`Self::merge_sketch`] accepts sketches of a table with an
    /// equal layout. `None` if nothing is counted.
    #[must_use]
    pub fn counter_layout(&self) -> Option<String> {
        let rule = self.lock(0).filter.describe()?;
        Some(format!("{rule} in {} stripes", self.stripes()))
    }

    /// Adds to the counts of ids that have no row. A table without exact counts ignores the call.
    ///
    /// # Errors
    /// If the lengths of `ids` and `counts` differ. Then nothing is added.
    pub fn insert_frequency_counts(&self, ids: &[u64], counts: &[u32]) -> Result<(), TableError> {
        self.check_rows("frequency counts", ids, 1, counts.len())?;
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|position| self.stripe_of(key_of(ids[*position])));
        for of_stripe in order.chunk_by(|a, b| self.stripe_of(key_of(ids[*a])) == self.stripe_of(key_of(ids[*b]))) {
            let mut stripe = self.lock(self.stripe_of(key_of(ids[of_stripe[0]])));
            let (mut added, mut added_counts) = (Vec::new(), Vec::new());
            for position in of_stripe {
                let key = key_of(ids[*position]);
                if stripe.find(key).is_none() {
                    stripe.filter.restore(key, counts[*position]);
                    added.push(ids[*position]);
                    added_counts.push(counts[*position]);
                }
            }
            self.log_change(&stripe, ChangeKind::CountsAdded(&added, &added_counts));
        }
        Ok(())
    }

    /// Adds the sketch of a stripe of an equal table, from this server or another one. No count becomes too low. A
    /// table without a sketch ignores the call.
    ///
    /// # Errors
    /// If there is no such stripe, or its sketch has another size. Then nothing is added.
    pub fn merge_sketch(&self, stripe: usize, cells: &[u32]) -> Result<(), TableError> {
        if stripe >= self.stripes() {
            return Err(TableError::Length { what: "stripes", expected: self.stripes(), found: stripe + 1 });
        }
        let mut stripe = self.lock(stripe);
        let merged = stripe.filter.merge(cells);
        merged.map_err(|expected| TableError::Length { what: "words of a sketch", expected, found: cells.len() })?;
        self.log_change(&stripe, ChangeKind::SketchAdded(cells));
        Ok(())
    }

    fn log_change(&self, stripe: &Stripe, kind: ChangeKind<'_>) {
        if let Some(log) = self.shared().log.get() {
            log.append(&StripeChange { table: self.number(), stripe: stripe.number as u32, origin: None, kind });
        }
    }
}
