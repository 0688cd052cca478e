//! Errors of an export.

use std::io;
use std::path::PathBuf;

use zagros_snapshot::SnapshotError;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The file cannot be written. The message names the file.
    #[error("{0}")]
    Write(#[source] io::Error),
    #[error("the name of {} has no known ending; end the name in .parquet or .safetensors", path.display())]
    Format { path: PathBuf },
    #[error("{} exists and is kept; choose another name, or use --force to replace it", path.display())]
    Exists { path: PathBuf },
    #[error(
        "table `{table}` in {} differs from the files before it ({problem}); pass the files of one save",
        path.display()
    )]
    Differs { path: PathBuf, table: String, problem: String },
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
