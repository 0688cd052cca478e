//! What a store has read and written so far.

use std::sync::atomic::{AtomicU64, Ordering};

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
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        (self.appended_bytes + self.moved_bytes) as f64 / self.row_bytes.max(1) as f64
    }
}

#[derive(Debug, Default)]
pub(crate) struct LogCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    row_bytes: AtomicU64,
    appended_bytes: AtomicU64,
    moved_bytes: AtomicU64,
    reads_under_way: AtomicU64,
    assisted_bytes: AtomicU64,
    compaction_failures: AtomicU64,
}

/// Pieces that are on their way, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadsUnderWay<'a> {
    all: &'a AtomicU64,
    pieces: u64,
}

impl Drop for ReadsUnderWay<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.pieces, Ordering::Relaxed);
    }
}

impl LogCounters {
    /// Counts pieces that are read while the result lives.
    #[must_use]
    pub(crate) fn count_reads(&self, pieces: &[FilePiece]) -> ReadsUnderWay<'_> {
        self.reads.fetch_add(pieces.len() as u64, Ordering::Relaxed);
        let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.under_way(pieces.len() as u64)
    }

    fn under_way(&self, pieces: u64) -> ReadsUnderWay<'_> {
        self.reads_under_way.fetch_add(pieces, Ordering::Relaxed);
        ReadsUnderWay { all: &self.reads_under_way, pieces }
    }

    pub(crate) fn count_write(&self, rows: usize, records: usize) {
        self.row_bytes.fetch_add(rows as u64, Ordering::Relaxed);
        self.appended_bytes.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_moved(&self, records: usize) {
        self.moved_bytes.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_assisted(&self, bytes: usize) {
        self.assisted_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn compaction_failed(&self) {
        self.compaction_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// All of [`LogCounts`]. The caller knows the dead bytes.
    pub(crate) fn log_counts(&self, dead_bytes: u64) -> LogCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogCounts {
            reads: load(&self.reads),
            read_bytes: load(&self.read_bytes),
            row_bytes: load(&self.row_bytes),
            appended_bytes: load(&self.appended_bytes),
            moved_bytes: load(&self.moved_bytes),
            reads_under_way: load(&self.reads_under_way),
            dead_bytes,
            assisted_bytes: load(&self.assisted_bytes),
            compaction_failures: load(&self.compaction_failures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_under_way_until_they_end() {
        let counters = LogCounters::default();
        let [three, two] = [3, 2].map(|pieces| counters.under_way(pieces));
        assert_eq!(counters.log_counts(0).reads_under_way, 5);
        drop(three);
        assert_eq!(counters.log_counts(0).reads_under_way, 2);
        drop(two);
        assert_eq!(counters.log_counts(0).reads_under_way, 0);
    }
}
