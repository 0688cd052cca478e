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
        let counts = |[steps, skipped, samples, staleness_max, staleness_sum, micros, untrained_rows]: [u64; 7]| {
            WorkerCounts { steps, skipped, samples, staleness_max, staleness_sum, micros, untrained_rows }
        };
        let (one, other) = (counts([3, 1, 128, 3, 4, 9, 2]), counts([1, 0, 64, 1, 1, 10, 3]));
        let both = counts([4, 1, 192, 3, 5, 10, 5]);
        assert_eq!((one.plus(other), other.plus(one)), (both, both));
        assert_eq!([one, other].into_iter().fold(WorkerCounts::default(), WorkerCounts::plus), both);
    }
}
