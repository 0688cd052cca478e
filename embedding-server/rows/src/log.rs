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
mod error;
mod folder;
pub mod format;
mod record;
mod rows_view;
mod segment_reader;
mod segments;
pub(crate) mod small_files;
mod tail;
mod writer;

pub use base::{BaseDraft, BaseManifest, BasePartDraft, LogBase, PartSize, PartialImage};
pub use error::{LogError, LogStopped};
pub use folder::{LineageFile, LogFolder, LogPlace, TableDescription};
pub use format::{RecordHead, RecordKind};
pub use record::{LogRecord, LoggedGradient};
pub use rows_view::{RowsView, WindowGroup, WindowImage};
pub use segments::{SEGMENT_BYTES, WriterConfig};
pub use small_files::{LogDisk, SyncMode, SystemDisk};
pub use tail::{LogSummary, LogTail, RecordCount, SegmentEnd, TailPlan, TailSegment, WriterSummary};
pub use writer::{LogReservation, LogWriter};
