//! Why rows could not be exported.

use std::io;
use std::path::PathBuf;

use zagros_snapshot::SnapshotError;

/// Why rows could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The saved rows cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The file cannot be written; the message names it.
    #[error("{0}")]
    Write(#[source] io::Error),
    /// No format by this ending.
    #[error("the ending of {} names no format; end the name in .parquet or .safetensors", path.display())]
    Format {
        /// What was asked for.
        path: PathBuf,
    },
    /// Nothing is replaced unasked.
    #[error("{} exists and is kept; choose another name, or replace it with --force", path.display())]
    Exists {
        /// What was asked for.
        path: PathBuf,
    },
    /// The files are not of one save.
    #[error(
        "table `{table}` in {} differs from the files before it ({problem}); give the files of one save",
        path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// In what.
        problem: String,
    },
}

impl From<io::Error> for ExportError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<parquet::errors::ParquetError> for ExportError {
    fn from(error: parquet::errors::ParquetError) -> Self {
        Self::Write(io::Error::other(error))
    }
}
