//! How far the compaction of a table is.

use std::sync::Arc;

use super::segment::RowSegment;

/// The compaction of a table.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// The segment that is being compacted.
    pub(crate) cursor: Option<CompactionCursor>,
    /// Records that writers have to go over.
    pub(crate) owed: u64,
    /// Records that are being copied.
    pub(crate) chunk: Vec<u8>,
}

/// How far a segment is compacted.
#[derive(Clone, Debug)]
pub(crate) struct CompactionCursor {
    pub(crate) slot: usize,
    pub(crate) segment: Arc<RowSegment>,
    pub(crate) rows: u32,
    /// The first record that may not be copied yet.
    pub(crate) next: u32,
}
