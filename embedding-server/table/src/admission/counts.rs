//! Frequency counts as values: what a snapshot saves about ids that have no row.

/// Frequency counts of one stripe, or of several stripes in order.
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
    pub(super) fn append(&mut self, mut other: Self) {
        self.ids.append(&mut other.ids);
        self.counts.append(&mut other.counts);
        self.cells.append(&mut other.cells);
    }
}
