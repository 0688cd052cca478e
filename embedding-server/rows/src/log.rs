//! The log of an embedding server: what changed in its tables, on disk before a push is acknowledged.
//!
//! ```text
//! tables ─► LogWriter: append under the lock of a stripe ─► flush before the acknowledgement ─► segments
//! now and then: all rows ─► Base ─► segments before it are deleted
//! start: Base ─► LogTail (checked, torn end cut off) ─► tables
//! ```
//!
//! It is a log of after-images: rows as they are after a change. [`mod@format`] describes the bytes. The crate
//! has no runtime and no clock, and starts no threads.

mod base;
mod disk;
mod error;
mod folder;
pub mod format;
mod record;
mod rows_view;
mod segment_reader;
mod segments;
pub(crate) mod small_files;
mod summary;
mod tail;
mod window_group;
mod writer;

pub use base::{BaseDraft, BaseManifest, BasePartDraft, LogBase, PartSize, PartialImage};
pub use disk::{LogDisk, SyncMode, SystemDisk};
pub use error::{LogError, LogStopped};
pub use folder::{LineageFile, LogFolder, LogPlace, TableDescription};
pub use format::{RecordHead, RecordKind};
pub use record::{LogRecord, LoggedGradient};
pub use rows_view::{LoggedRows, RowsView};
pub use segments::{SEGMENT_BYTES, WriterConfig};
pub use summary::{LogSummary, RecordCount, WriterSummary};
pub use tail::{LogTail, SegmentEnd, TailPlan, TailSegment};
pub use window_group::{WindowGroup, WindowImage};
pub use writer::{LogReservation, LogWriter};
