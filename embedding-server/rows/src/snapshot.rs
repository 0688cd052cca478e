//! Rows as files: the format, its writer, its reader, and tools to inspect files. The crate has no sockets, threads or
//! clock.
//!
//! ```text
//! save     stripes ─► a run of rows ─► sorted by (bucket, id) ─► blocks of one range of buckets ─► Writer
//! load     Reader ─► the head of a block ─► has it buckets of this server? read and check : skip
//! inspect  Reader ─► Norms, find, verify
//! rewrite  Reader ─► without some ids, or weights in another number format ─► Writer
//! ```
//!
//! [`format`] describes the bytes.

mod chain;
mod convert;
mod error;
mod find_row;
mod forget;
pub mod format;
mod norms;
mod reader;
mod rewrite;
mod saved_file;
mod slot_parts;
#[cfg(test)]
mod testing;
mod writer;

pub use chain::{ChainLink, ChainPlace, FileChain, LaterRows, as_rows, group_links};
pub use convert::{RowConversion, StateConversion};
pub use error::{RewriteError, RowConversionError, SnapshotError};
pub use find_row::{FoundRow, may_hold_bucket, row_bucket};
pub use forget::{ForgottenIds, MentionedIds};
pub use format::{
    BlockContent, BlockHeader, BlockKind, FollowedFile, SnapshotBlock, SnapshotHeader, SnapshotTime, TableHeader,
    delta_name, file_name,
};
pub use norms::{NormBin, NormStatistics};
pub use reader::{SnapshotInput, SnapshotReader};
pub use rewrite::{RowChange, rewrite_rows};
pub use saved_file::{SavedFile, VerifiedFile, verify_file};
pub use slot_parts::{SlotPart, decode_part, slot_parts};
pub use writer::{SnapshotWriter, WrittenFile};
pub use zagros_table::RowBatch;
