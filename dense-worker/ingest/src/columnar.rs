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

pub(crate) mod arrow;
pub(crate) mod groups;
pub(crate) mod kind;
pub(crate) mod parquet;
pub(crate) mod parser;
pub(crate) mod texts;

mod decoded;
mod fault;
mod features;
mod output;

use std::path::Path;

use self::arrow::file::ArrowFooter;
use self::groups::RowGroups;
use self::parquet::file::ParquetFooter;
use crate::IngestError;
use crate::formats::DataContent;

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
