//! How far the compaction of a table is.

use std::sync::Arc;

use super::segment::RowSegment;

#[derive(Debug, Default)]
pub(crate) struct CompactionState {
    pub(crate) cursor: Option<CompactionCursor>,
    /// Records that writers have to go over.
    pub(crate) owed: u64,
    pub(crate) chunk: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct CompactionCursor {
    pub(crate) slot: usize,
    pub(crate) segment: Arc<RowSegment>,
    pub(crate) rows: u32,
    /// The first record that may not be copied yet.
    pub(crate) next: u32,
}
