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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Parquet,
    Arrow,
}

#[derive(Debug)]
pub(crate) enum ColumnFile {
    Parquet(ParquetFooter),
    Arrow(ArrowFooter),
}

impl ColumnFile {
    pub(crate) fn open(path: &Path, format: FileFormat) -> Result<Self, IngestError> {
        Ok(match format {
            FileFormat::Parquet => Self::Parquet(ParquetFooter::open(path)?),
            FileFormat::Arrow => Self::Arrow(ArrowFooter::open(path)?),
        })
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

pub(crate) const PARQUET: &[u8; 4] = b"PAR1";
pub(crate) const ARROW: &[u8; 6] = b"ARROW1";
/// The first bytes of every Arrow stream, and of each of its messages.
pub(crate) const ARROW_STREAM: [u8; 4] = [0xff; 4];

/// What a file of columns is that starts like this, and what to do with it.
pub(crate) fn other_format(start: &[u8]) -> Option<&'static str> {
    match start {
        _ if start.starts_with(PARQUET) => Some("it is a Parquet file; set data.format = \"parquet\""),
        _ if start.starts_with(ARROW) => Some("it is an Arrow file; set data.format = \"arrow\""),
        _ => None,
    }
}
