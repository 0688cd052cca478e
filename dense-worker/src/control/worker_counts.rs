//! What an asynchronous worker has done, as its vote at a barrier reports it to the others.

use serde::{Deserialize, Serialize};

/// What a worker has done so far, as it is reported to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerCounts {
    pub(crate) steps: u64,
    /// Those of them that were skipped.
    pub(crate) skipped: u64,
    pub(crate) samples: u64,
    pub(crate) staleness_max: u64,
    pub(crate) staleness_sum: u64,
    /// Microseconds of training.
    pub(crate) micros: u64,
    /// Rows of streams that had none to train on.
    #[serde(default)]
    pub(crate) untrained_rows: u64,
}

impl WorkerCounts {
    /// Of both together; they trained at the same time.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            skipped: self.skipped + other.skipped,
            samples: self.samples + other.samples,
            staleness_max: self.staleness_max.max(other.staleness_max),
            staleness_sum: self.staleness_sum + other.staleness_sum,
            micros: self.micros.max(other.micros),
            untrained_rows: self.untrained_rows + other.untrained_rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_in_any_order() {
        let one = WorkerCounts {
            steps: 3,
            skipped: 1,
            samples: 128,
            staleness_max: 3,
            staleness_sum: 4,
            micros: 9,
            untrained_rows: 2,
        };
        let other = WorkerCounts {
            steps: 1,
            skipped: 0,
            samples: 64,
            staleness_max: 1,
            staleness_sum: 1,
            micros: 10,
            untrained_rows: 3,
        };
        let both = WorkerCounts {
            steps: 4,
            skipped: 1,
            samples: 192,
            staleness_max: 3,
            staleness_sum: 5,
            micros: 10,
            untrained_rows: 5,
        };
        assert_eq!((one.plus(other), other.plus(one)), (both, both));
        assert_eq!([one, other].into_iter().fold(WorkerCounts::default(), WorkerCounts::plus), both);
    }
}
