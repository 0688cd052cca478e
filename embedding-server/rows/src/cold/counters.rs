//! What a store has read and written so far.

use parking_lot::Mutex;

use super::pieces::FilePiece;

/// Reads and writes of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Pieces of files that were read. One piece may have several rows.
    pub reads: u64,
    pub read_bytes: u64,
    /// Bytes of rows that callers wrote, without what the log adds to them.
    pub row_bytes: u64,
    /// Bytes of records that writes and removals appended.
    pub appended_bytes: u64,
    pub moved_bytes: u64,
    pub reads_under_way: u64,
    /// Bytes of records on the disk now that are not rows.
    pub dead_bytes: u64,
    /// Bytes of old segments that writers went over themselves, because compaction was behind.
    pub assisted_bytes: u64,
    pub compaction_failures: u64,
}

impl LogCounts {
    /// Bytes written to files for each byte of rows that callers wrote.
    pub fn write_amplification(&self) -> f64 {
        (self.appended_bytes + self.moved_bytes) as f64 / self.row_bytes.max(1) as f64
    }
}

/// Counted once a call, and not once a row.
#[derive(Debug, Default)]
pub(crate) struct LogCounters(Mutex<LogCounts>);

/// Pieces that are on their way, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadsUnderWay<'a> {
    all: &'a LogCounters,
    pieces: u64,
}

impl Drop for ReadsUnderWay<'_> {
    fn drop(&mut self) {
        self.all.0.lock().reads_under_way -= self.pieces;
    }
}

impl LogCounters {
    /// Counts pieces that are read while the result lives.
    pub(crate) fn count_reads(&self, pieces: &[FilePiece]) -> ReadsUnderWay<'_> {
        let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
        let mut counts = self.0.lock();
        counts.reads += pieces.len() as u64;
        counts.read_bytes += bytes as u64;
        counts.reads_under_way += pieces.len() as u64;
        ReadsUnderWay { all: self, pieces: pieces.len() as u64 }
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut LogCounts)) {
        change(&mut self.0.lock());
    }

    /// All of [`LogCounts`]. The caller knows the dead bytes.
    pub(crate) fn log_counts(&self, dead_bytes: u64) -> LogCounts {
        LogCounts { dead_bytes, ..*self.0.lock() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::pieces::testing::{numbers, pieces};

    #[test]
    fn reads_are_under_way_until_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let segment = numbers(folder.path(), 3);
        let counters = LogCounters::default();
        let [three, two] = [3, 2].map(|count| counters.count_reads(&pieces(&segment, 0..count)));
        assert_eq!(counters.log_counts(0).reads_under_way, 5);
        drop(three);
        assert_eq!(counters.log_counts(0).reads_under_way, 2);
        drop(two);
        assert_eq!(counters.log_counts(0).reads_under_way, 0);
    }
}
