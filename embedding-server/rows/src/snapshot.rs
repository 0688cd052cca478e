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
mod error;
mod forget;
pub mod format;
mod reader;
mod rewrite;
mod row_values;
mod saved_file;
#[cfg(test)]
mod testing;
mod writer;

pub use chain::{ChainLink, FileChain, FoundRow, group_links, may_hold_bucket, row_bucket};
pub use error::{RewriteError, RowConversionError, SnapshotError};
pub use forget::{ForgottenIds, MentionedIds};
pub use format::{
    BlockContent, BlockHeader, BlockKind, FollowedFile, SnapshotBlock, SnapshotHeader, TableHeader, delta_name,
    file_name,
};
pub use reader::{SnapshotInput, SnapshotReader};
pub use rewrite::{RowChange, RowConversion, StateConversion, rewrite_rows};
pub use row_values::{NormBin, NormStatistics, SlotPart, decode_part, slot_parts};
pub use saved_file::{SavedFile, VerifiedFile, verify_file};
pub use writer::{SnapshotWriter, WrittenFile};
pub use zagros_table::{RowBatch, TableTime};
