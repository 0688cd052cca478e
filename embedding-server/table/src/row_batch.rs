//! Rows as values: what a table gives out for a snapshot and takes in from one.

/// Whole rows. The three lists have the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowBatch {
    /// Ids.
    pub ids: Vec<u64>,
    /// Words of 32 bits, `[ids.len() * stride]`. A slot is `[weights | optimiser state]`: packed weights, and state as f32.
    pub slots: Vec<u32>,
    /// Access metadata of each row, in the table's own form. Empty for a table whose rows are never evicted.
    pub access: Vec<u32>,
}
