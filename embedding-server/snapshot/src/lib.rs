//! Rows as files: the format, its writer, its reader, and tools to inspect files. The crate has no sockets, threads or
//! clock.
//!
//! ```text
//! save     stripes ─► a run of rows ─► sorted by (bucket, id) ─► blocks of one range of buckets ─► Writer
//! load     Reader ─► the head of a block ─► has it buckets of this server? read and check : skip
//! inspect  Reader ─► Norms, find, verify
//! ```
//!
//! [`format`] describes the bytes.

mod block;
mod error;
mod find;
pub mod format;
mod input;
mod norms;
mod reader;
mod row;
mod run;
mod saved;
#[cfg(test)]
mod testing;
mod verify;
mod writer;

pub use block::{Block, Clock, Content};
pub use error::SnapshotError;
pub use find::{Found, bucket, find, holds};
pub use format::{BlockHead, Header, Kind, TableHeader, file_name};
pub use input::Input;
pub use norms::{Bin, Norms};
pub use reader::Reader;
pub use row::{Part, decode, parts};
pub use saved::SavedFile;
pub use verify::{Checked, verify};
pub use writer::{Writer, Written};
pub use zagros_table::RowBatch;
