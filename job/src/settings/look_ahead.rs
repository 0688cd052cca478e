//! How far a worker looks ahead, and for how long the servers keep what it asked for.

use super::Job;

/// Batches that are hinted before their lookup. A worker holds so many more batches in memory.
const AHEAD: usize = 2;
/// Batches between a hint and its lookup, beside those of [`AHEAD`]: looked up before they are asked for, or being handed over.
const BETWEEN: usize = 4;

impl Job {
    /// Batches that are hinted before they are looked up; 0 if every row is in memory.
    #[must_use]
    pub fn lookahead_batches(&self) -> usize {
        if self.reads_disk() { AHEAD } else { 0 }
    }

    /// Whether rows can be on disk.
    #[must_use]
    pub fn reads_disk(&self) -> bool {
        self.cluster.memory.is_some()
            && self.server_tables().iter().any(|table| table.config.retention.keeps_evicted_rows())
    }

    /// For how many more hints of one worker the rows of a hint are needed. 0 without hints.
    #[must_use]
    pub fn lookahead_horizon(&self) -> usize {
        match self.lookahead_batches() {
            0 => 0,
            batches => batches + BETWEEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    #[test]
    fn only_rows_that_can_be_on_disk_are_hinted() {
        let look_ahead = |text: &str| {
            let job = job(CRITEO, text);
            (job.lookahead_batches(), job.lookahead_horizon())
        };
        assert_eq!(look_ahead(""), (0, 0));
        assert_eq!(look_ahead("[cluster]\nmemory = '1GiB'\n"), (2, 6));
        assert_eq!(look_ahead("[cluster]\nmemory = '1GiB'\n[embedding]\nvictims = 'drop'\n"), (0, 0));
    }
}
