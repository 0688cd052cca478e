//! The file of rows, `rows-<server>-of-<servers>.zrows`. All numbers are little-endian.
//!
//! ```text
//! file   := header block* end
//! header := magic [8] · version u32 · length u32 · JSON [length] · crc u32
//! block  := table u32 · first bucket u32 · end bucket u32 · rows u32 · stride u32
//!           · ids u64 [rows] · slots f32 [rows × stride] · crc u32
//! end    := 0xffffffff · blocks u64 · rows u64 · crc u32
//! ```
//!
//! `crc` is the CRC-32 (IEEE) of everything before it in the same part. `table` counts the header's tables. A block
//! whose rows lie in any bucket says `0, 0`. A slot is `[weights | optimiser state]` in the layout that the header
//! names. Rows are in ascending order of ids within a stripe, so that equal tables make equal files.

use serde::{Deserialize, Serialize};

/// First bytes of a file. The line ends and the control byte show a transfer that changed text.
pub(crate) const MAGIC: [u8; 8] = *b"ZROWS\r\n\x1a";
/// Version of everything in this module's documentation.
pub(crate) const VERSION: u32 = 1;
/// Stands where a block has its table.
pub(crate) const END: u32 = u32::MAX;
/// Bytes before the JSON of the header.
pub(crate) const PREAMBLE_BYTES: usize = 16;
/// Bytes before the ids of a block.
pub(crate) const BLOCK_HEAD_BYTES: usize = 20;
/// Bytes of the end after its mark, without its CRC.
pub(crate) const END_BYTES: usize = 16;
/// Bytes of a CRC.
pub(crate) const CRC_BYTES: usize = 4;
/// Rows of about this many bytes are written as one block.
pub(crate) const BLOCK_BYTES: usize = 4 << 20;

/// What the file says of the model it was saved from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Release that wrote it, for a person.
    pub(crate) release: String,
    /// Server that wrote it.
    pub(crate) server: u32,
    /// Servers of that run.
    pub(crate) servers: u32,
    /// In the order of the block's table numbers.
    pub(crate) tables: Vec<TableHeader>,
}

/// One table of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableHeader {
    pub(crate) name: String,
    /// Weights per row.
    pub(crate) dim: usize,
    /// Values per slot.
    pub(crate) stride: usize,
    /// Layout of the optimiser state.
    pub(crate) state: String,
}

/// The number that starts each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHead {
    pub(crate) table: u32,
    pub(crate) buckets: [u32; 2],
    pub(crate) rows: u32,
    pub(crate) stride: u32,
}

impl BlockHead {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let words = [self.table, self.buckets[0], self.buckets[1], self.rows, self.stride];
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// Bytes of ids and slots, `None` when that overflows.
    pub(crate) fn payload_bytes(&self) -> Option<u64> {
        let row = 8_u64.checked_add(u64::from(self.stride).checked_mul(4)?)?;
        row.checked_mul(u64::from(self.rows))
    }
}

/// Name of a server's file.
pub(crate) fn file_name(server: u32, servers: u32) -> String {
    format!("rows-{server}-of-{servers}.zrows")
}
