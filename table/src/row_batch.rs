//! Rows and frequency counts as values, for snapshots and inserts.

/// Whole rows. The three lists have the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowBatch {
    pub ids: Vec<u64>,
    /// Slots as 32-bit words, `[ids.len() * stride]`. A slot is `[weights | optimiser state]`: packed weights, and
    /// state as f32.
    pub slots: Vec<u32>,
    /// Access metadata of each row, in the table's own format. Empty for a table that never evicts rows.
    pub access: Vec<u32>,
}

/// The rows of a [`RowBatch`], which lie somewhere else.
#[derive(Clone, Copy, Debug)]
pub struct RowSlices<'a> {
    pub ids: &'a [u64],
    /// Slots, `[ids.len() * stride]`.
    pub slots: &'a [u32],
    /// Access metadata of each row, or none.
    pub access: &'a [u32],
}

/// Rows that one training step has changed so far, for a log or another server: later pushes of the step go on from there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRowBatch {
    pub step: u64,
    pub ids: Vec<u64>,
    /// The rows before the step, as slots, `[ids.len() * stride]`.
    pub before: Vec<u32>,
    /// The sum of each row's gradients in the step, `[ids.len() * dim]`.
    pub sums: Vec<f32>,
}

/// The rows of a [`StepRowBatch`], which lie somewhere else.
#[derive(Clone, Copy, Debug)]
pub struct StepRowSlices<'a> {
    pub step: u64,
    pub ids: &'a [u64],
    /// The rows before the step, `[ids.len() * stride]`.
    pub before: &'a [u32],
    /// Sums of gradients, `[ids.len() * dim]`.
    pub sums: &'a [f32],
}

impl StepRowBatch {
    pub fn as_slices(&self) -> StepRowSlices<'_> {
        StepRowSlices { step: self.step, ids: &self.ids, before: &self.before, sums: &self.sums }
    }

    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.before.clear();
        self.sums.clear();
    }
}

impl RowBatch {
    pub(crate) fn push_row(&mut self, id: u64, words: &[u32], access: Option<u32>) {
        self.ids.push(id);
        self.slots.extend_from_slice(words);
        self.access.extend(access);
    }

    /// Removes all rows. The memory is used again.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.slots.clear();
        self.access.clear();
    }

    /// Keeps the rows for whose id `keep` holds. A slot has `width` words.
    pub fn retain(&mut self, width: usize, keep: impl Fn(u64) -> bool) {
        let mut kept = 0;
        for row in 0..self.ids.len() {
            if keep(self.ids[row]) {
                self.ids[kept] = self.ids[row];
                self.slots.copy_within(row * width..(row + 1) * width, kept * width);
                if let Some(access) = self.access.get(row).copied() {
                    self.access[kept] = access;
                }
                kept += 1;
            }
        }
        self.ids.truncate(kept);
        self.slots.truncate(kept * width);
        self.access.truncate(kept);
    }
}

/// What a snapshot saves about ids that have no row: frequency counts of one stripe, or of several stripes in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrequencyCounts {
    /// Ids with an exact count, in ascending order within a stripe.
    pub ids: Vec<u64>,
    /// The count of each id, `[ids.len()]`.
    pub counts: Vec<u32>,
    /// Cells of the stripe's count-min sketch. Each word holds two cells, the first one in the low half.
    pub cells: Vec<u32>,
}

impl FrequencyCounts {
    pub(crate) fn append(&mut self, mut other: Self) {
        self.ids.append(&mut other.ids);
        self.counts.append(&mut other.counts);
        self.cells.append(&mut other.cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_kept_keep_their_order_slots_and_access() {
        let mut rows = RowBatch { ids: vec![5, 6, 7], slots: vec![50, 51, 60, 61, 70, 71], access: vec![1, 2, 3] };
        rows.retain(2, |id| id != 6);
        assert_eq!(rows, RowBatch { ids: vec![5, 7], slots: vec![50, 51, 70, 71], access: vec![1, 3] });
        rows.access.clear();
        rows.retain(2, |id| id == 7);
        assert_eq!(rows, RowBatch { ids: vec![7], slots: vec![70, 71], access: vec![] });
    }
}
