//! Sightings of a table as a whole: told for a saved model, and taken over from one.

use crate::key::key_of;
use crate::{Table, TableError};

impl Table {
    /// How sightings are counted, for a saved model: what [`Self::merge_sketch`] takes is of a table that says the
    /// same. `None` where nothing is counted.
    #[must_use]
    pub fn counter_layout(&self) -> Option<String> {
        let rule = self.lock(0).filter.describe()?;
        Some(format!("{rule} in {} stripes", self.stripes()))
    }

    /// Adds sightings of ids that have no row. A table that does not count single ids leaves them.
    ///
    /// # Errors
    /// When there is not one count for each id; nothing is added then.
    pub fn insert_frequency_counts(&self, ids: &[u64], counts: &[u32]) -> Result<(), TableError> {
        self.check_rows("frequency counts", ids, 1, counts.len())?;
        for (id, count) in std::iter::zip(ids, counts) {
            let key = key_of(*id);
            let mut stripe = self.lock(self.stripe_of(key));
            if stripe.find(key).is_none() {
                stripe.filter.restore(key, *count);
            }
        }
        Ok(())
    }

    /// Adds what the sketch of a stripe of an equal table has counted, on this server or another: no count becomes too
    /// low. A table without a sketch leaves it.
    ///
    /// # Errors
    /// When there is no such stripe, or its sketch has another size; nothing is added then.
    pub fn merge_sketch(&self, stripe: usize, cells: &[u32]) -> Result<(), TableError> {
        if stripe >= self.stripes() {
            return Err(TableError::Length { what: "stripes", expected: self.stripes(), found: stripe + 1 });
        }
        let merged = self.lock(stripe).filter.merge(cells);
        merged.map_err(|expected| TableError::Length { what: "words of a sketch", expected, found: cells.len() })
    }
}
