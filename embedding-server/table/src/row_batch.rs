//! Rows as values, for snapshots and inserts.

/// Whole rows. The three lists have the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowBatch {
    /// Ids of the rows.
    pub ids: Vec<u64>,
    /// Slots as 32-bit words, `[ids.len() * stride]`. A slot is `[weights | optimiser state]`: packed weights, and
    /// state as f32.
    pub slots: Vec<u32>,
    /// Access metadata of each row, in the table's own format. Empty for a table that never evicts rows.
    pub access: Vec<u32>,
}
