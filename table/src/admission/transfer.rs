//! Frequency counts of a whole table: its format in a saved model, and reading counts from one.

use zagros_zip::ZipEq;

use crate::key::key_of;
use crate::{ChangeKind, Table, TableError};

impl Table {
    /// How ids without a row are counted, for a saved model. [`Self::merge_sketch`] accepts sketches of a table with an
    /// equal layout. `None` if nothing is counted.
    pub fn counter_layout(&self) -> Option<String> {
        let rule = self.lock(0).filter.describe()?;
        Some(format!("{rule} in {} stripes", self.stripes()))
    }

    /// Adds to the counts of ids that have no row. A table that counts nothing ignores the call.
    /// On an error nothing changes.
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
                    stripe.filter.add_count(key, counts[*position]);
                    added.push(ids[*position]);
                    added_counts.push(counts[*position]);
                }
            }
            self.log_change(stripe.number, None, ChangeKind::CountsAdded(&added, &added_counts));
        }
        Ok(())
    }

    /// Raises the counts of a stripe to at least those of the same stripe of an equal table, from this server or another one. No count
    /// becomes too low. A table without a sketch ignores the call.
    /// On an error nothing changes.
    pub fn merge_sketch(&self, stripe: usize, cells: &[u32]) -> Result<(), TableError> {
        self.check_sketch_stripe(stripe)?;
        let expected = self.lock(stripe).filter.sketch_cells().len();
        if expected > 0 && expected != cells.len() {
            return Err(sketch_length(expected, 0, cells));
        }
        self.raise_sketch(stripe, 0, cells)
    }

    /// As [`Self::merge_sketch`], for the words of the sketch from word `from` on.
    /// On an error nothing changes.
    pub fn raise_sketch(&self, stripe: usize, from: usize, cells: &[u32]) -> Result<(), TableError> {
        self.check_sketch_stripe(stripe)?;
        let mut stripe = self.lock(stripe);
        let added = stripe.filter.raise(from, cells).map_err(|expected| sketch_length(expected, from, cells))?;
        if added.iter().any(|added| *added > 0) {
            self.log_change(stripe.number, None, ChangeKind::SketchAdded { from: from as u32, cells: &added });
        }
        Ok(())
    }

    /// Appends some words of the sketch of a stripe, `most` from word `from` on. Returns whether these were the last.
    pub fn read_sketch(&self, stripe: usize, from: usize, most: usize, into: &mut Vec<u32>) -> bool {
        let stripe = self.lock(stripe);
        let cells = stripe.filter.sketch_cells();
        let (start, end) = (from.min(cells.len()), from.saturating_add(most).min(cells.len()));
        into.extend_from_slice(&cells[start..end]);
        end == cells.len()
    }

    /// Ids of one stripe that have an exact count.
    pub fn counted_ids(&self, stripe: usize) -> Vec<u64> {
        self.lock(stripe).filter.counted_ids()
    }

    /// The counts of these ids of one stripe: exact, or what the sketch says. 0 where there is none.
    pub fn counts_of(&self, stripe: usize, ids: &[u64]) -> Vec<u32> {
        let stripe = self.lock(stripe);
        ids.iter().map(|id| stripe.filter.count(key_of(*id))).collect()
    }

    /// Takes counts over from the server that had the ids before. An exact count is added to that of an id that has no row; forget
    /// the one from before first ([`Self::forget_counts`]). A sketch is raised to at least this count.
    /// On an error nothing changes.
    pub fn take_counts(&self, ids: &[u64], counts: &[u32]) -> Result<(), TableError> {
        self.check_rows("frequency counts", ids, 1, counts.len())?;
        if self.lock(0).filter.sketch_cells().is_empty() {
            return self.insert_frequency_counts(ids, counts);
        }
        for (id, count) in ids.iter().zip_eq(counts) {
            let key = key_of(*id);
            let mut stripe = self.lock(self.stripe_of(key));
            let added = count.saturating_sub(stripe.filter.count(key));
            if added > 0 {
                stripe.filter.add_count(key, added);
                self.log_change(stripe.number, None, ChangeKind::CountsAdded(&[*id], &[added]));
            }
        }
        Ok(())
    }

    /// Forgets the exact counts of ids, as the log learns. Their rows are put in next.
    pub fn forget_counts(&self, ids: &[u64]) {
        for id in ids {
            let key = key_of(*id);
            let mut stripe = self.lock(self.stripe_of(key));
            if stripe.filter.forget(key) && self.is_logged() {
                stripe.changes.note_removed(key);
                self.log_stripe(&mut stripe);
            }
        }
    }

    pub(crate) fn check_sketch_stripe(&self, stripe: usize) -> Result<(), TableError> {
        if stripe < self.stripes() {
            return Ok(());
        }
        Err(TableError::Length { what: "stripes", expected: self.stripes(), found: stripe.saturating_add(1) })
    }
}

pub(crate) fn sketch_length(expected: usize, from: usize, cells: &[u32]) -> TableError {
    TableError::Length { what: "words of a sketch", expected, found: from.saturating_add(cells.len()) }
}
