//! A file of columns of any format, before its rows are read.

use std::path::Path;

use super::arrow::file::ArrowFooter;
use super::groups::RowGroups;
use super::parquet::file::ParquetFooter;
use crate::IngestError;

/// The formats of files of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Parquet,
    Arrow,
}

/// An opened file.
#[derive(Debug)]
pub(crate) enum ColumnFile {
    Parquet(ParquetFooter),
    Arrow(ArrowFooter),
}

impl ColumnFile {
    /// Reads the footer of a file.
    pub(crate) fn open(path: &Path, format: FileFormat) -> Result<Self, IngestError> {
        Ok(match format {
            FileFormat::Parquet => Self::Parquet(ParquetFooter::open(path)?),
            FileFormat::Arrow => Self::Arrow(ArrowFooter::open(path)?),
        })
    }

    /// The names of the columns, in their order.
    pub(crate) fn column_names(&self) -> &[String] {
        match self {
            Self::Parquet(footer) => footer.column_names(),
            Self::Arrow(footer) => footer.column_names(),
        }
    }

    /// Size of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        match self {
            Self::Parquet(footer) => footer.bytes,
            Self::Arrow(footer) => footer.bytes,
        }
    }

    /// The row groups with the columns at `positions`.
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
