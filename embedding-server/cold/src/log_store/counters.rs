//! What a store has read and written so far.

use std::sync::atomic::{AtomicU64, Ordering};

use super::file_piece::FilePiece;

/// Reads and writes of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Pieces of files that were read. One piece may have several rows.
    pub reads: u64,
    /// Bytes of these pieces.
    pub read_bytes: u64,
    /// Bytes of rows that callers wrote, without what the log adds to them.
    pub row_bytes: u64,
    /// Bytes of records that writes and removals appended.
    pub appended_bytes: u64,
    /// Bytes of records that compaction appended again.
    pub moved_bytes: u64,
}

impl LogCounts {
    /// Bytes written to files for each byte of rows that callers wrote.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        (self.appended_bytes + self.moved_bytes) as f64 / self.row_bytes.max(1) as f64
    }
}

/// The counters behind [`LogCounts`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    row_bytes: AtomicU64,
    appended_bytes: AtomicU64,
    moved_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self, pieces: &[FilePiece]) {
        self.reads.fetch_add(pieces.len() as u64, Ordering::Relaxed);
        let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, rows: usize, records: usize) {
        self.row_bytes.fetch_add(rows as u64, Ordering::Relaxed);
        self.appended_bytes.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self, records: usize) {
        self.moved_bytes.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> LogCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogCounts {
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            row_bytes: of(&self.row_bytes),
            appended_bytes: of(&self.appended_bytes),
            moved_bytes: of(&self.moved_bytes),
        }
    }
}
