//! The file of rows, `rows-<server>-of-<servers>.zrows`, version 2. All numbers are little-endian.
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
//! | rows | 1 | buckets | ids u64 [entries] · slots u32 [entries × width] · marks u32 [entries], if the table has them |
//! | counts | 2 | buckets | ids u64 [entries] · frequency counts u32 [entries] |
//! | sketch | 3 | a stripe | cells u32 [words], packed as the table has them |
//! | clock | 4 | | steps u64 · seconds u64 |
//! | end | 0xffffffff | | blocks u64 · rows u64, the end itself not counted |
//!
//! `crc` is the CRC-32 (IEEE) of everything before it in the same part; that of a block covers its head too. `table`
//! counts the header's tables. `words` is the number of 32-bit words of an entry besides its id.
//!
//! Rows are in ascending order of (bucket, id) within a run of blocks, so that a block holds few buckets and says which:
//! who loads only some buckets seeks past the others, and equal tables make equal files. There are as many runs as
//! the writer's memory needs. The bucket of a row is `zagros_protocol::bucket_of` (table `number`, id, `buckets`).
//!
//! A slot is `[weights | optimiser state]`: weights in the element type that the header names, two to a word for the
//! narrow ones, the first in the low half; the state in f32, its layout by name. Words are kept bit for bit.
//!
//! Version 1 knew rows of f32 alone, had no CRC of heads, and ordered rows by stripe; it is still read.

use serde::{Deserialize, Serialize};
use zagros_table::WeightType;

/// First bytes of a file. The line ends and the control byte show a transfer that changed text.
pub const MAGIC: [u8; 8] = *b"ZROWS\r\n\x1a";
/// Version of everything in this module's documentation.
pub const VERSION: u32 = 2;
/// The version before, still read.
pub(crate) const VERSION_1: u32 = 1;
/// Bytes before the JSON of the header.
pub(crate) const PREAMBLE_BYTES: usize = 16;
/// Bytes of a head, without its CRC.
pub(crate) const HEAD_BYTES: usize = 24;
/// Bytes of a CRC.
pub(crate) const CRC_BYTES: usize = 4;
/// Entries of about this many bytes are written as one block.
pub(crate) const BLOCK_BYTES: usize = 4 << 20;
/// Rows of about this many bytes are worth sorting together: the memory that writing takes, besides a stripe's.
pub const RUN_BYTES: usize = 64 << 20;

/// What the file says of the model it was saved from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Release that wrote it, for a person.
    pub release: String,
    /// Server that wrote it.
    pub server: u32,
    /// Servers of that run.
    pub servers: u32,
    /// Buckets that the model is divided into; 0 where the file does not say.
    #[serde(default)]
    pub buckets: u32,
    /// Ranges of buckets `[first, end)` that the server owned: the file has no row of another.
    #[serde(default)]
    pub owned: Vec<[u32; 2]>,
    /// In the order of the block's table numbers.
    pub tables: Vec<TableHeader>,
}

/// One table of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableHeader {
    /// Name in the job file.
    pub name: String,
    /// Position in the model, which the bucket of a row depends on.
    pub number: u32,
    /// Weights per row.
    pub dim: usize,
    /// Type of a stored weight: `f32`, `f16` or `bf16`.
    pub element: String,
    /// Words of 32 bits per slot.
    pub width: usize,
    /// Layout of the optimiser state.
    pub state: String,
    /// What the access metadata of a row counts. `None` when rows have none. Files call it `marks`.
    #[serde(default, rename = "marks", alias = "access")]
    pub access: Option<String>,
    /// How ids without a row are counted. `None` when they are not. Files call it `frequency counts`.
    #[serde(default, rename = "sightings", alias = "counter")]
    pub counter: Option<String>,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole rows.
    Rows,
    /// Sightings of ids that have no row yet.
    Counts,
    /// The cells of one stripe's count-min sketch.
    Sketch,
    /// The time that marks are reported by.
    Clock,
    /// How much came before.
    End,
}

/// The numbers that start each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// What is in it.
    pub kind: Kind,
    /// Position among the header's tables.
    pub table: u32,
    /// First bucket, or the stripe of a sketch.
    pub from: u32,
    /// One past the last.
    pub until: u32,
    /// Rows, or what the kind has instead.
    pub entries: u32,
    /// Words of an entry, its id not counted.
    pub words: u32,
}

impl Kind {
    const NUMBERS: [(Self, u32, &'static str); 5] = [
        (Self::Rows, 1, "rows"),
        (Self::Counts, 2, "counts"),
        (Self::Sketch, 3, "sketch"),
        (Self::Clock, 4, "clock"),
        (Self::End, u32::MAX, "end"),
    ];

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::NUMBERS.iter().find(|entry| entry.1 == number).map(|entry| entry.0)
    }

    /// Name for a person.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    fn entry(self) -> &'static (Self, u32, &'static str) {
        Self::NUMBERS.iter().find(|entry| entry.0 == self).unwrap_or(&Self::NUMBERS[4])
    }

    /// Whether each entry is found by an id, and so lies in a bucket.
    pub(crate) fn is_keyed(self) -> bool {
        matches!(self, Self::Rows | Self::Counts)
    }
}

impl BlockHead {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let words = [self.kind.entry().1, self.table, self.from, self.until, self.entries, self.words];
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// Bytes of the payload; a sum of this size cannot overflow.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let entries = u64::from(self.entries);
        let words = 4 * u128::from(entries) * u128::from(self.words);
        let ids = if self.kind.is_keyed() { 8 * u128::from(entries) } else { 0 };
        u64::try_from(words + ids).unwrap_or(u64::MAX)
    }

    /// Whether a bucket is in its range.
    #[must_use]
    pub fn covers(&self, bucket: u32) -> bool {
        (self.from..self.until).contains(&bucket)
    }
}

impl TableHeader {
    /// Words of a row besides its id: slot and mark.
    #[must_use]
    pub fn row_words(&self) -> usize {
        self.width + usize::from(self.access.is_some())
    }

    /// Type of a stored weight, `None` for one of a later release.
    pub(crate) fn element(&self) -> Option<WeightType> {
        [WeightType::F32, WeightType::F16, WeightType::Bf16].into_iter().find(|element| element.name() == self.element)
    }

    /// What does not fit together.
    pub(crate) fn problem(&self) -> Option<String> {
        let Self { name, dim, element, width, .. } = self;
        let Some(weights) = self.element().map(|element| element.words(*dim)) else {
            return Some(format!("has table `{name}` of {element}, which this release does not know"));
        };
        (*width < weights).then(|| format!("has table `{name}` of {weights} words of weights in slots of {width}"))
    }
}

/// Name of a server's file.
#[must_use]
pub fn file_name(server: u32, servers: u32) -> String {
    format!("rows-{server}-of-{servers}.zrows")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_numbers_of_their_own() {
        for (kind, number, name) in Kind::NUMBERS {
            assert_eq!(Kind::from_number(number), Some(kind));
            assert_eq!(kind.name(), name);
        }
        assert_eq!(Kind::from_number(0), None);
    }

    #[test]
    fn the_size_of_a_payload_never_overflows() {
        let head = |kind, entries, words| BlockHead { kind, table: 0, from: 0, until: 0, entries, words };
        assert_eq!(head(Kind::Rows, 3, 5).payload_bytes(), 3 * 8 + 3 * 5 * 4);
        assert_eq!(head(Kind::Sketch, 1, 7).payload_bytes(), 28);
        assert_eq!(head(Kind::Rows, u32::MAX, u32::MAX).payload_bytes(), u64::MAX);
    }

    #[test]
    fn a_header_of_an_earlier_release_has_no_words_of_a_later_one() {
        let text = r#"{"release":"0.2.0","server":1,"servers":2,"tables":[]}"#;
        let header: Header = serde_json::from_str(text).unwrap();
        assert_eq!((header.buckets, header.owned), (0, vec![]));
    }
}
