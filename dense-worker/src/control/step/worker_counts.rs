//! What an asynchronous worker has done, as its vote at a barrier reports it to the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerCounts {
    pub(crate) steps: u64,
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

/// What all workers had done when they voted last, and what those had done that have gone since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VotedCounts {
    by_worker: BTreeMap<u32, WorkerCounts>,
    gone: WorkerCounts,
}

impl VotedCounts {
    pub(crate) fn note_votes(&mut self, votes: BTreeMap<u32, WorkerCounts>) {
        self.by_worker = votes;
    }

    /// The processes that voted last for these workers are gone. The counts of the run never go down, because checkpoints
    /// are named by them.
    pub(crate) fn note_departed(&mut self, is_gone: impl Fn(u32) -> bool) {
        for (_, counts) in self.by_worker.extract_if(.., |index, _| is_gone(*index)) {
            self.gone = self.gone.plus(counts);
        }
    }

    pub(crate) fn counts_of_others(&self, index: u32) -> WorkerCounts {
        let others = self.by_worker.iter().filter(|(worker, _)| **worker != index);
        others.map(|(_, counts)| *counts).fold(self.gone, WorkerCounts::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_gone_still_counts_and_its_replacement_counts_beside_it() {
        let made = |steps| WorkerCounts { steps, ..WorkerCounts::default() };
        let mut counts = VotedCounts::default();
        counts.note_votes(BTreeMap::from([(0, made(5)), (1, made(7))]));
        assert_eq!((counts.counts_of_others(0).steps, counts.counts_of_others(1).steps), (7, 5));
        counts.note_departed(|index| index == 1);
        counts.note_departed(|index| index == 1);
        assert_eq!((counts.counts_of_others(0).steps, counts.counts_of_others(1).steps), (7, 12));
        counts.note_votes(BTreeMap::from([(0, made(8)), (1, made(2))]));
        assert_eq!((counts.counts_of_others(0).steps, counts.counts_of_others(1).steps), (9, 15));
    }

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
