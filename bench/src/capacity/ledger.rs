//! A ledger of all pushes. With SGD at learning rate 1 from zero and gradients of 1, a weight is minus its row's
//! pushes.

use zagros_shell::{Exit, Failure};
use zagros_table::{LookupMode, RequestBuffers, RequestPart, TableSet};
use zagros_zip::ZipEq;

use super::table::{DIM, table_failure};

const CHUNK: usize = 16_384;

pub(super) struct PushCounts {
    pushes: Vec<u32>,
}

/// The ids of rows. They are one-to-one and spread over all 64 bits, like hashed ids.
pub(super) fn row_ids(numbers: &[u32]) -> Vec<u64> {
    numbers.iter().map(|number| u64::from(*number).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

impl PushCounts {
    pub(super) fn new(rows: usize) -> Self {
        Self { pushes: vec![0; rows] }
    }

    pub(super) fn push_ones(
        &mut self,
        tables: &TableSet,
        numbers: &[u32],
        step: u64,
        buffers: &mut RequestBuffers,
    ) -> Result<(), Failure> {
        let ids = row_ids(numbers);
        let gradients = vec![1.0; ids.len() * DIM];
        tables.advance_clock(step, 0);
        let part = RequestPart { table: 0, dim: DIM as u32, ids: &ids };
        tables.push(&[part], &gradients, step, buffers).map_err(table_failure)?;
        numbers.iter().for_each(|number| self.pushes[*number as usize] += 1);
        Ok(())
    }

    /// `weights` is `[numbers, DIM]`. Fails with the first row that is not what was pushed to it.
    pub(super) fn check_weights(&self, numbers: &[u32], weights: &[f32]) -> Result<(), Failure> {
        for (number, weights) in numbers.iter().zip_eq(weights.chunks_exact(DIM)) {
            let pushes = self.pushes[*number as usize];
            if weights.iter().any(|weight| *weight != -(pushes as f32)) {
                let what = format!("row {number} was pushed {pushes} times and holds {weights:?}: rows were lost");
                let next = "this is a bug of the table or of its cold tier, or the disk is damaged";
                return Err(Failure::with_help(Exit::Internal, what, next));
            }
        }
        Ok(())
    }

    /// Compares every row, in memory and on disk.
    pub(super) fn check_all(&self, tables: &TableSet) -> Result<(), Failure> {
        let (mut buffers, all) = (RequestBuffers::new(), (0..self.pushes.len() as u32).collect::<Vec<_>>());
        for numbers in all.chunks(CHUNK) {
            let mut weights = vec![f32::NAN; numbers.len() * DIM];
            let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &row_ids(numbers) }];
            tables.lookup(&parts, LookupMode::Read, &mut weights, &mut buffers).map_err(table_failure)?;
            self.check_weights(numbers, &weights)?;
        }
        Ok(())
    }
}
