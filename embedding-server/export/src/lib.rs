//! Saved rows for other programs: one table as Parquet or as safetensors, streamed, whole or not at all.
//!
//! | | Parquet | safetensors |
//! |---|---|---|
//! | id | column `id`, unsigned 64 bits | tensor `ids`, U64 `[rows]` |
//! | weights | column `weights`, a list of `dim` floats | tensor `weights`, `[rows, dim]` in the type they are stored in |
//! | optimiser state, if asked for | a column each, a list or one float | a tensor each, F32 `[rows, values]` or `[rows]` |
//! | mark, if asked for and there is one | column `mark`, unsigned 32 bits | tensor `mark`, U32 `[rows]` |
//!
//! An id is the hash of the value as it stood in the data (`zagros_ingest::hash_value`): it needs all 64 bits, and
//! programs that know only signed numbers or floats show another one. The text itself is not in a model.
//! Rows are in the order of the files, which is that of buckets, not of ids.

mod error;
mod parquet;
mod safetensors;
mod table;

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use zagros_plumbing::durable;

pub use error::ExportError;
pub use table::Source;

/// What other programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet, Snappy-compressed pages.
    Parquet,
    /// safetensors.
    Safetensors,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Rows.
    pub rows: u64,
    /// Names of columns or tensors.
    pub columns: Vec<String>,
}

impl Format {
    /// The format that a file's ending names.
    ///
    /// # Errors
    /// [`ExportError::Format`] when it names none.
    pub fn of(path: &Path) -> Result<Self, ExportError> {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("parquet") => Ok(Self::Parquet),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => Err(ExportError::Format { path: path.to_owned() }),
        }
    }
}

/// Writes a table to `path`; `passed` gets how many bytes of the saved files are done.
///
/// # Errors
/// When `path` exists and is not to be replaced, names no format or cannot be written, and when the saved rows cannot
/// be read. The file at `path` is then as it was.
pub fn export(
    source: &Source,
    path: &Path,
    replace: bool,
    mut passed: impl FnMut(u64),
) -> Result<Exported, ExportError> {
    let format = Format::of(path)?;
    if path.exists() && !replace {
        return Err(ExportError::Exists { path: path.to_owned() });
    }
    let mut fill = |file: &mut BufWriter<File>| match format {
        Format::Parquet => parquet::write(source, file, &mut passed),
        Format::Safetensors => safetensors::write(source, file, &mut passed),
    };
    // Whole or not at all (invariant CK-1).
    let written = durable::write_unless(path, |file| match fill(file) {
        Err(ExportError::Write(error)) => Err(error),
        done => Ok(done),
    });
    written.map_err(durable::naming(path)).map_err(ExportError::Write)?
}

#[cfg(test)]
mod tests;
