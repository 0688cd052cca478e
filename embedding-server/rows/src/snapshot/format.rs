//! The format of a file of rows, `rows-<server>-of-<servers>.zrows`, version 2, and of a file of changed rows, a *delta*,
//! version 3. All numbers are little-endian.
//!
//! ```text
//! file   := header block* end
//! header := magic [8] · version u32 · length u32 · JSON [length] · crc u32
//! block  := head · payload · crc u32
//! head   := kind u32 · table u32 · from u32 · until u32 · entries u32 · words u32 · crc u32
//! end    := a block of kind `end`
//! ```
//!
//! | kind | number | from .. until | payload |
//! |---|---|---|---|
//! | rows | 1 | buckets | ids u64 [entries] · slots u32 [entries × width] · access metadata u32 [entries], if the table has it |
//! | counts | 2 | buckets | ids u64 [entries] · frequency counts u32 [entries] |
//! | sketch | 3 | a stripe | cells u32 [words], packed as in the table |
//! | clock | 4 | | steps u64 · seconds u64 |
//! | removed | 5, in deltas | buckets | ids u64 [entries] |
//! | end | 0xffffffff | | blocks u64 · rows u64, without the end itself |
//!
//! `crc` is the CRC-32 (IEEE) of everything before it in the same part. The CRC of a block covers the block's head as
//! well. `table` is a position in the header's list of tables. `words` is the number of 32-bit words of an entry,
//! without its id.
//!
//! Within a run of blocks, rows are in ascending order of (bucket, id). A block thus contains few buckets and states
//! them. A reader of some buckets skips the other blocks, and equal tables make equal files. The writer's memory limits
//! the length of a run. The bucket of a row is `zagros_protocol::bucket_of` (table `number`, id, `buckets`).
//!
//! A slot is `[weights | optimiser state]`. Weights have the number format in the header. Weights of 16 bits are two to a
//! word, the first one in the low half. Weights in int8 are a word with their scale, an f32, and then four codes to a word, the
//! first one in the lowest byte; a weight is its code, −127 to 127, times the scale. The state is f32, in the layout that the
//! header names. Words keep every bit.
//!
//! A delta has the rows that have changed since the file that its header names, whole, and the ids of rows that are gone. Its
//! counts and sketches are all that there are. [`crate::snapshot::FileChain`] says how a file and its deltas are read.

use serde::{Deserialize, Serialize};
use zagros_table::{RowBatch, TableConfig, TableTime, WeightType};

/// First bytes of a file. A transfer in text mode changes the line ends or the control byte, which shows.
pub const MAGIC: [u8; 8] = *b"ZROWS\r\n\x1a";
pub const VERSION: u32 = 2;
pub const DELTA_VERSION: u32 = 3;
/// Bytes before the JSON of the header.
pub(crate) const PREAMBLE_BYTES: usize = 16;
/// Bytes of a head, without its CRC.
pub(crate) const HEAD_BYTES: usize = 24;
pub(crate) const CRC_BYTES: usize = 4;
/// A block has about this many bytes of entries.
pub(crate) const BLOCK_BYTES: usize = 4 << 20;
/// Bytes of rows that a writer should sort together. Writing takes this memory, and the memory of one stripe.
pub const RUN_BYTES: usize = 64 << 20;

/// The description of the model in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// The release that wrote the file, for people.
    pub release: String,
    pub server: u32,
    pub servers: u32,
    /// The number of buckets of the model. A file of rows states it.
    #[serde(default)]
    pub buckets: u32,
    /// Ranges of buckets `[first, end)` that the server owned. The file has no row of other buckets.
    #[serde(default)]
    pub owned: Vec<[u32; 2]>,
    /// The tables, in the order of their numbers in blocks.
    pub tables: Vec<TableHeader>,
    /// The file to which a delta adds. `None` in a file of all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<FollowedFile>,
}

/// The file before a delta, in the same folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedFile {
    pub name: String,
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableHeader {
    pub name: String,
    /// Number of the table in the model. The bucket of a row depends on it.
    pub number: u32,
    pub dim: usize,
    /// Number format of a weight: `f32`, `f16`, `bf16` or `int8`.
    pub element: String,
    /// Words of 32 bits per slot.
    pub width: usize,
    pub state: String,
    /// Format of the access metadata. `None` if rows have none. Files call it `marks`.
    #[serde(default, rename = "marks")]
    pub access: Option<String>,
    /// How ids without a row are counted. `None` if they are not. Files call it `frequency counts`.
    #[serde(default, rename = "sightings")]
    pub counter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    Rows,
    /// Frequency counts of ids that have no row yet.
    Counts,
    Sketch,
    Clock,
    /// Ids of rows that are gone, in a delta.
    Removed,
    /// The number of blocks and rows in the file.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    pub kind: BlockKind,
    /// Position in the header's list of tables.
    pub table: u32,
    /// First bucket, or the stripe of a sketch.
    pub from: u32,
    /// One past the last bucket.
    pub until: u32,
    pub entries: u32,
    /// Words of an entry, without its id.
    pub words: u32,
}

impl BlockKind {
    const NUMBERS: [(Self, u32, &'static str); 6] = [
        (Self::Rows, 1, "rows"),
        (Self::Counts, 2, "counts"),
        (Self::Sketch, 3, "sketch"),
        (Self::Clock, 4, "clock"),
        (Self::Removed, 5, "removed"),
        (Self::End, u32::MAX, "end"),
    ];

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::NUMBERS.iter().find(|entry| entry.1 == number).map(|entry| entry.0)
    }

    pub fn name(self) -> &'static str {
        self.entry().2
    }

    fn entry(self) -> &'static (Self, u32, &'static str) {
        Self::NUMBERS.iter().find(|entry| entry.0 == self).unwrap_or(&Self::NUMBERS[5])
    }

    /// Whether entries have ids, and so belong to buckets.
    pub(crate) fn is_keyed(self) -> bool {
        matches!(self, Self::Rows | Self::Counts | Self::Removed)
    }
}

impl BlockHeader {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let words = [self.kind.entry().1, self.table, self.from, self.until, self.entries, self.words];
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// Bytes of the payload. The sum cannot overflow.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let entries = u64::from(self.entries);
        let words = 4 * u128::from(entries) * u128::from(self.words);
        let ids = if self.kind.is_keyed() { 8 * u128::from(entries) } else { 0 };
        u64::try_from(words + ids).unwrap_or(u64::MAX)
    }

    pub fn has_bucket(&self, bucket: u32) -> bool {
        (self.from..self.until).contains(&bucket)
    }
}

impl TableHeader {
    /// A table of these settings, without access metadata and counts.
    pub fn new(name: &str, number: u32, config: &TableConfig) -> Self {
        Self {
            name: name.to_owned(),
            number,
            dim: config.dim,
            element: config.element.name().to_owned(),
            width: config.stride(),
            state: config.optimizer.state_layout().to_owned(),
            access: None,
            counter: None,
        }
    }

    /// The difference that prevents a load of rows of this table into `here`, in words. Access metadata and frequency counts may
    /// differ: they start anew.
    pub fn find_difference(&self, here: &Self) -> Option<String> {
        let shape = |table: &Self| {
            let Self { dim, element, width, state, .. } = table;
            format!("dim {dim} of {element} with {width} words of {state} a row")
        };
        let [there, here] = [self, here].map(shape);
        (there != here).then(|| format!("table `{}` has {there} there, and {here} here", self.name))
    }

    /// Words of a row without its id: slot and access metadata.
    pub fn row_words(&self) -> usize {
        self.width + usize::from(self.access.is_some())
    }

    /// Number format of a weight. `None` if this release does not know it.
    pub(crate) fn weight_type(&self) -> Option<WeightType> {
        WeightType::ALL.into_iter().find(|element| element.name() == self.element)
    }

    /// Describes the first contradiction in the header.
    pub(crate) fn find_problem(&self) -> Option<String> {
        let Self { name, dim, element, width, .. } = self;
        let Some(weights) = self.weight_type().map(|element| element.words(*dim)) else {
            return Some(format!("has table `{name}` of {element}, which this release does not know"));
        };
        (*width < weights).then(|| format!("has table `{name}` of {weights} words of weights in slots of {width}"))
    }
}

/// Name of a server's delta. Deltas are numbered from 1.
pub fn delta_name(server: u32, servers: u32, number: usize) -> String {
    format!("rows-{server}-of-{servers}.delta-{number}.zrows")
}

pub fn file_name(server: u32, servers: u32) -> String {
    format!("rows-{server}-of-{servers}.zrows")
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
    /// The time of the snapshot. Access metadata counts from it.
    Clock(TableTime),
    /// Ids of rows of a table that are gone.
    Removed(Vec<u64>),
}

/// A block as values, which the writer encodes and the reader decodes.
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
                Self::Rows(RowBatch { ids: read_u64s(ids), slots: read_u32s(slots), access: read_u32s(access) })
            }
            BlockKind::Counts => Self::Counts { ids: read_u64s(ids), counts: read_u32s(words) },
            BlockKind::Removed => Self::Removed(read_u64s(ids)),
            BlockKind::Sketch => Self::Sketch { stripe: head.from, cells: read_u32s(words) },
            BlockKind::Clock | BlockKind::End => {
                let numbers = read_u64s(words);
                let number = |index: usize| numbers.get(index).copied().unwrap_or_default();
                Self::Clock(TableTime { steps: number(0), seconds: number(1) })
            }
        }
    }
}

/// Reads 64-bit numbers. Bytes after the last whole number are skipped.
fn read_u64s(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

fn read_u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_payload_never_overflows() {
        let head = |kind, entries, words| BlockHeader { kind, table: 0, from: 0, until: 0, entries, words };
        assert_eq!(head(BlockKind::Rows, 3, 5).payload_bytes(), 3 * 8 + 3 * 5 * 4);
        assert_eq!(head(BlockKind::Sketch, 1, 7).payload_bytes(), 28);
        assert_eq!(head(BlockKind::Rows, u32::MAX, u32::MAX).payload_bytes(), u64::MAX);
    }
}
