//! What one answer of a source has: rows and counts of one table.

use zagros_table::{RowBatch, StepRowBatch, Table};
use zagros_zip::ZipEq;

/// Bytes of rows in one answer, about.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(super) struct RowChunk {
    pub(super) rows: RowBatch,
    pub(super) removed: Vec<u64>,
    pub(super) counted: Vec<u64>,
    pub(super) counts: Vec<u32>,
    pub(super) sketch: Vec<u32>,
    pub(super) sketch_stripe: u32,
    pub(super) sketch_from: u32,
    /// What the step under way has changed.
    pub(super) step_rows: StepRowBatch,
}

impl RowChunk {
    pub(super) fn len(&self) -> usize {
        self.rows.ids.len() + self.removed.len() + self.counted.len()
    }

    /// Adds the counts of these ids of one stripe, as far as there are any.
    pub(super) fn add_counts(&mut self, table: &Table, stripe: usize, ids: &[u64]) {
        for (id, count) in ids.iter().zip_eq(table.counts_of(stripe, ids)).filter(|(_, count)| *count > 0) {
            self.counted.push(*id);
            self.counts.push(count);
        }
    }
}

pub(super) fn most_rows(table: &Table) -> usize {
    (CHUNK_BYTES / (12 + 4 * table.stride())).max(1)
}
