//! A file of columns of any format, before its rows are read.

use std::path::Path;

use super::arrow::file::ArrowFooter;
use super::groups::RowGroups;
use super::parquet::file::ParquetFooter;
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
            Self::Parquet(footer) => footer.column_names(),
            Self::Arrow(footer) => footer.column_names(),
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
