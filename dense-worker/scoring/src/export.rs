//! Export of saved rows for other programs: one table as Parquet or safetensors, streamed, whole or not at all.
//!
//! | | Parquet | safetensors |
//! |---|---|---|
//! | id | column `id`, unsigned 64 bits | tensor `ids`, U64 `[rows]` |
//! | weights | column `weights`, a list of `dim` floats | tensor `weights`, `[rows, dim]` in the type they are stored in; of int8 also tensor `scales`, F32 `[rows]` |
//! | optimiser state, if asked for | a column each, a list or one float | a tensor each, F32 `[rows, values]` or `[rows]` |
//! | access metadata, if asked for and present | column `mark`, unsigned 32 bits | tensor `mark`, U32 `[rows]` |
//!
//! An id is the hash of a value in the data (`zagros_ingest::hash_value`). It uses all 64 bits, so programs with only
//! signed numbers or floats show another number. The model does not contain the value itself. Rows are in the order of
//! the files, which is by bucket and not by id.

mod parquet;
mod safetensors;
mod table;

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use zagros_plumbing::durable;
use zagros_rows::snapshot::SnapshotError;

pub use table::ExportSource;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Apache Parquet with Snappy-compressed pages.
    Parquet,
    Safetensors,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    pub rows: u64,
    pub columns: Vec<String>,
}

impl ExportFormat {
    pub fn from_path(path: &Path) -> Result<Self, ExportError> {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("parquet") => Ok(Self::Parquet),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => Err(ExportError::Format { path: path.to_owned() }),
        }
    }
}

/// Writes a table to `path`. `passed` gets the number of bytes of the saved files that are done since its last call. Its error ends
/// the export. After an error, the file at `path` is unchanged.
pub fn export_table(
    source: &ExportSource,
    path: &Path,
    replace: bool,
    mut passed: impl FnMut(u64) -> io::Result<()>,
) -> Result<ExportSummary, ExportError> {
    let format = ExportFormat::from_path(path)?;
    if path.exists() && !replace {
        return Err(ExportError::Exists { path: path.to_owned() });
    }
    let mut fill = |file: &mut BufWriter<File>| match format {
        ExportFormat::Parquet => parquet::write(source, file, &mut passed),
        ExportFormat::Safetensors => safetensors::write(source, file, &mut passed),
    };
    // The file is written whole or not at all (invariant CK-1).
    let written = durable::write_unless(path, |file| match fill(file) {
        Err(ExportError::Write(error)) => Err(error),
        done => Ok(done),
    });
    written.map_err(durable::add_path(path)).map_err(ExportError::Write)?
}

#[cfg(test)]
mod tests;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The file cannot be written. The message names the file.
    #[error("{0}")]
    Write(#[from] io::Error),
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

impl From<::parquet::errors::ParquetError> for ExportError {
    fn from(error: ::parquet::errors::ParquetError) -> Self {
        Self::Write(io::Error::other(error))
    }
}
