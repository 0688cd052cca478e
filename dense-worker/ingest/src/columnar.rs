//! From files of columns, Parquet's and Arrow's, to rows.
//!
//! ```text
//! footer ──► schema: columns by name and kind        (once a file)
//!        └─► row groups ──► a split owns some ──► slices of rows      (reading thread)
//! slice ──► a reader a column: page ──► levels, values ──► cells ──► rows (parsing threads)
//! ```
//!
//! Decoding is the work of the crates `parquet` and `arrow-ipc` (docs/adr/0061). What is here is what they leave
//! open: which rows are whose, what a value means to a job, and where a fault is. A record batch of Arrow is a row group here.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ::parquet::errors::ParquetError;

use crate::IngestError;
use crate::columnar::arrow::file::ArrowFooter;
use crate::columnar::groups::RowGroups;
use crate::columnar::parquet::file::ParquetFooter;
use crate::error::panic_text;
use crate::formats::DataContent;

pub(crate) mod arrow;
pub(crate) mod groups;
pub(crate) mod kind;
pub(crate) mod parquet;
pub(crate) mod parser;
pub(crate) mod texts;

mod decoded;
mod features;
mod output;

#[derive(Debug)]
pub(crate) enum ColumnFile {
    Parquet(ParquetFooter),
    Arrow(ArrowFooter),
}

impl ColumnFile {
    /// Opens a file of a format; `None` if its rows are lines.
    pub(crate) fn open(path: &Path, content: DataContent) -> Option<Result<Self, IngestError>> {
        match content {
            DataContent::Parquet => Some(ParquetFooter::open(path).map(Self::Parquet)),
            DataContent::Arrow => Some(ArrowFooter::open(path).map(Self::Arrow)),
            DataContent::Lines | DataContent::Jsonl => None,
        }
    }

    pub(crate) fn column_names(&self) -> &[String] {
        match self {
            Self::Parquet(footer) => &footer.names,
            Self::Arrow(footer) => &footer.names,
        }
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        match self {
            Self::Parquet(footer) => footer.bytes,
            Self::Arrow(footer) => footer.bytes,
        }
    }

    pub(crate) fn row_groups(
        &self,
        path: &Path,
        positions: impl IntoIterator<Item = usize>,
    ) -> Result<RowGroups, IngestError> {
        match self {
            Self::Parquet(footer) => footer.row_groups(path, positions),
            Self::Arrow(footer) => footer.row_groups(path, positions),
        }
    }
}

/// What is wrong. The caller that knows the place adds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFault(pub(super) String);

pub(super) type FileResult<T> = Result<T, FileFault>;

impl FileFault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ParquetError> for FileFault {
    fn from(error: ParquetError) -> Self {
        Self(match error {
            ParquetError::General(text) | ParquetError::NYI(text) | ParquetError::EOF(text) => text,
            other => other.to_string(),
        })
    }
}

pub(super) fn fail<T>(text: impl Into<String>) -> FileResult<T> {
    Err(FileFault::new(text))
}

/// Calls a decoder of a library. Libraries check what writers usually get wrong and panic at the rest: a page header that
/// names one kind of page and describes another makes the crate `parquet` unwrap nothing. A panic is a fault of the file.
/// What `decode` changed must not be used afterwards.
pub(super) fn catch_panics<T>(decode: impl FnOnce() -> FileResult<T>) -> FileResult<T> {
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|panic| fail(format!("its bytes make no sense: {}", panic_text(panic.as_ref()))))
}
