//! Frequency counts of a whole table: described for a saved model, and read back from one.

use zagros_zip::ZipEq;

use crate::key::key_of;
use crate::{Table, TableError};

impl Table {
    /// How ids without a row are counted, for a saved model. [`Self::merge_sketch`] takes sketches of tables that answer
    /// the same. `None` where nothing is counted.
    #[must_use]
    pub fn counter_layout(&self) -> Option<String> {
        let rule = self.lock(0).filter.describe()?;
        Some(format!("{rule} in {} stripes", self.stripes()))
    }

    /// Adds to the counts of ids that have no row. A table that does not count single ids ignores them.
    ///
    /// # Errors
    /// When there is not one count for each id. Then nothing is added.
    pub fn insert_frequency_counts(&self, ids: &[u64], counts: &[u32]) -> Result<(), TableError> {
        self.check_rows("frequency counts", ids, 1, counts.len())?;
        for (id, count) in ids.iter().zip_eq(counts) {
            let key = key_of(*id);
            let mut stripe = self.lock(self.stripe_of(key));
            if stripe.find(key).is_none() {
                stripe.filter.restore(key, *count);
            }
        }
        Ok(())
    }

    /// Adds the sketch of a stripe of an equal table, on this server or another. No count becomes too low. A table without
    /// a sketch ignores it.
    ///
    /// # Errors
    /// When there is no such stripe, or its sketch has another size. Then nothing is added.
    pub fn merge_sketch(&self, stripe: usize, cells: &[u32]) -> Result<(), TableError> {
        if stripe >= self.stripes() {
            return Err(TableError::Length { what: "stripes", expected: self.stripes(), found: stripe + 1 });
        }
        let merged = self.lock(stripe).filter.merge(cells);
        merged.map_err(|expected| TableError::Length { what: "words of a sketch", expected, found: cells.len() })
    }
}
