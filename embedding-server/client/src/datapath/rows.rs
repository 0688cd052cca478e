//! What a lookup answers and a push brings.

use super::dedup::UniqueIds;

/// Values aligned with [`UniqueIds::tables`]: rows and sums, or their gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Per table, row-major `[wanted, dim]`: a row per id, or where there are bags the rows wanted themselves and then
    /// one per bag ([`super::TableIds::wanted`]).
    pub tables: Vec<Vec<f32>>,
}

impl Rows {
    /// Zeros for every value of `unique`.
    #[must_use]
    pub fn zeroed(unique: &UniqueIds) -> Self {
        Self { tables: unique.tables.iter().map(|table| vec![0.0; table.wanted() * table.dim as usize]).collect() }
    }

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(|table| size_of_val(&table[..])).sum()
    }
}
