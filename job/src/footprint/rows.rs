//! The memory of rows: of one at a server, and of those that a worker's batches have under way.

use crate::settings::{Categorical, Job, Table};

/// Index bytes of a row: twelve for an entry, with 64 to 80 % of its places used, and free space in the last block.
const INDEX: usize = 24;
const VALUE: u64 = 4;

impl Table {
    /// Bytes of one row in a server's memory: weights, optimiser state, index.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        VALUE as usize * self.table_config().stride() + INDEX
    }
}

impl Job {
    /// Values of the vectors of all features of a sample.
    #[must_use]
    pub fn looked_up_values(&self) -> u64 {
        let values = |feature: &Categorical| {
            let dim = self.tables[feature.table].dim;
            feature.values.sequence().map_or(dim, |sequence| sequence.input_width(dim)) as u64
        };
        self.features.categorical.iter().map(values).sum()
    }

    /// Bytes of the rows and gradients of one worker's batches between lookup and acknowledgement, at most.
    #[must_use]
    pub fn in_flight_bytes(&self) -> u64 {
        let batches = (self.train.batch_size as u64).saturating_mul(self.train.staleness as u64 + 1);
        batches.saturating_mul(2 * VALUE * self.looked_up_values())
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    #[test]
    fn a_row_is_its_values_state_and_index() {
        let row_bytes = |text: &str| job(CRITEO, text).tables[0].row_bytes();
        // Adagrad keeps as many values as there are weights.
        assert_eq!(row_bytes("[embedding]\ndim = 16\n"), 4 * 32 + 24);
        assert_eq!(row_bytes("[embedding]\ndim = 16\noptimizer = { kind = 'sgd' }\n"), 4 * 16 + 24);
    }

    #[test]
    fn rows_in_flight_are_those_of_all_batches_under_way() {
        let job = job(CRITEO, "[embedding]\ndim = 16\n[train]\nbatch_size = 100\nstaleness = 2\n");
        assert_eq!(job.looked_up_values(), 26 * 16);
        assert_eq!(job.in_flight_bytes(), 3 * 100 * 26 * 16 * 8);
    }
}
