//! A block as values, which the writer encodes and the reader decodes.

use zagros_table::RowBatch;

use crate::format::{BlockHeader, BlockKind, TableHeader};

/// The time of a snapshot. Access metadata counts from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotTime {
    pub steps: u64,
    pub seconds: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockContent {
    Rows(RowBatch),
    /// Frequency counts of ids that have no row yet.
    Counts {
        ids: Vec<u64>,
        counts: Vec<u32>,
    },
    Sketch {
        stripe: u32,
        cells: Vec<u32>,
    },
    Clock(SnapshotTime),
    /// Ids of rows of a table that are gone.
    Removed(Vec<u64>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// Position in the header's list of tables.
    pub table: usize,
    pub content: BlockContent,
}

impl BlockContent {
    /// Decodes a payload of the header's size. The end of a file has no content.
    pub(crate) fn decode(head: &BlockHeader, table: &TableHeader, payload: &[u8]) -> Self {
        let ids_end = if head.kind.is_keyed() { 8 * head.entries as usize } else { 0 };
        let (ids, words) = payload.split_at(ids_end);
        match head.kind {
            BlockKind::Rows => {
                let (slots, access) = words.split_at(4 * head.entries as usize * table.width);
                Self::Rows(RowBatch {
                    ids: read_u64s(ids),
                    slots: self::read_u32s(slots),
                    access: self::read_u32s(access),
                })
            }
            BlockKind::Counts => Self::Counts { ids: read_u64s(ids), counts: self::read_u32s(words) },
            BlockKind::Removed => Self::Removed(read_u64s(ids)),
            BlockKind::Sketch => Self::Sketch { stripe: head.from, cells: self::read_u32s(words) },
            BlockKind::Clock | BlockKind::End => {
                let numbers = read_u64s(words);
                let number = |index: usize| numbers.get(index).copied().unwrap_or_default();
                Self::Clock(SnapshotTime { steps: number(0), seconds: number(1) })
            }
        }
    }
}

/// Reads 64-bit numbers. Bytes after the last whole number are skipped.
pub(crate) fn read_u64s(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

pub(crate) fn read_u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}
