//! A ledger of all pushes. With SGD at learning rate 1 from zero and gradients of 1, each weight of a row is minus the
//! number of its pushes.

use zagros_table::{LookupMode, RequestBuffers, RequestPart, TableSet};

use crate::DIM;

/// Pushes per row.
pub(crate) struct Ledger {
    pushes: Vec<u32>,
}

/// The ids of rows. They are one-to-one and spread over all 64 bits, like hashed ids.
pub(crate) fn ids(numbers: &[u32]) -> Vec<u64> {
    numbers.iter().map(|number| u64::from(*number).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

impl Ledger {
    pub(crate) fn new(rows: usize) -> Self {
        Self { pushes: vec![0; rows] }
    }

    pub(crate) fn pushed(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|number| self.pushes[*number as usize] += 1);
    }

    /// Whether `weights` are the weights of these rows.
    pub(crate) fn agrees(&self, numbers: &[u32], weights: &[f32]) -> bool {
        let expected = |position: usize| -(self.pushes[numbers[position / DIM] as usize] as f32);
        weights.len() == numbers.len() * DIM
            && weights.iter().enumerate().all(|(position, weight)| *weight == expected(position))
    }

    /// Compares every row, in memory and in the cold tier.
    ///
    /// # Panics
    /// If a row differs from its pushes.
    pub(crate) fn check(&self, tables: &TableSet) {
        let (mut scratch, all) = (RequestBuffers::new(), (0..self.pushes.len() as u32).collect::<Vec<_>>());
        for numbers in all.chunks(16_384) {
            let mut weights = vec![f32::NAN; numbers.len() * DIM];
            let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &ids(numbers) }];
            tables.lookup(&parts, LookupMode::Read, &mut weights, &mut scratch).expect("rows are read");
            assert!(self.agrees(numbers, &weights), "the ledger is wrong in rows {}…", numbers[0]);
        }
    }
}
