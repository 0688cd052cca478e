//! The rows that a lookup returns, and the gradients of a push.

use super::dedup::UniqueIds;

/// Values with the tables of [`UniqueIds::tables`]: rows and sums, or their gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchRows {
    /// Per table, row-major `[wanted, dim]`. There is one row per id. With bags there are the rows outside of bags,
    /// then one row per bag ([`super::TableIds::result_rows`]).
    pub tables: Vec<Vec<f32>>,
}

impl BatchRows {
    #[must_use]
    pub fn zeros_like(unique: &UniqueIds) -> Self {
        Self { tables: unique.tables.iter().map(|table| vec![0.0; table.result_rows() * table.dim as usize]).collect() }
    }

    #[must_use]
    pub fn table_slices(&self) -> Vec<&[f32]> {
        self.tables.iter().map(Vec::as_slice).collect()
    }

    #[must_use]
    pub fn table_slices_mut(&mut self) -> Vec<&mut [f32]> {
        self.tables.iter_mut().map(Vec::as_mut_slice).collect()
    }
}
