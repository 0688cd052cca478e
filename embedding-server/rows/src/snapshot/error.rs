//! Errors of files: which file, which block, at which byte, what was expected and what was found; or which row does not fit.

use std::io;
use std::path::PathBuf;

use zagros_table::WeightType;

/// Why a file could not be read. Offsets count bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The message does not show the content of a file that is not ours.
    #[error("{} is not a file of rows; files of rows end in .zrows and are in a model folder", path.display())]
    Magic { path: PathBuf },
    #[error(
        "{} has format version {found}, this release reads versions 2 to {newest}; it was written by release \
         {release}: use that release or a later one",
        path.display()
    )]
    Version {
        path: PathBuf,
        found: u32,
        /// The newest version that this release reads.
        newest: u32,
        release: String,
    },
    /// The header is whole, but does not have the expected fields.
    #[error("the header of {} cannot be read: {source}", path.display())]
    Header { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} is cut off: {place} at byte {offset} needs {needed} bytes, but only {left} are left; use another save",
        path.display()
    )]
    Truncated { path: PathBuf, place: String, offset: u64, needed: u64, left: u64 },
    #[error(
        "{} is damaged: {place} at byte {offset} should have CRC-32 {expected:08x}, but has {found:08x}; use another save",
        path.display()
    )]
    Corrupt { path: PathBuf, place: String, offset: u64, expected: u32, found: u32 },
    #[error("{} does not fit together: {problem}", path.display())]
    Inconsistent { path: PathBuf, problem: String },
    #[error("{} has no table `{name}`; its tables are {}", path.display(), .known.join(", "))]
    UnknownTable { path: PathBuf, name: String, known: Vec<String> },
}

/// A weight that is not finite, or beyond the largest number of the format.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "row {id:#018x} of table `{table}` has the weight {weight}, which {} cannot hold; take another element, or remove the row \
     (zagros forget MODEL --table {table} --id {id:#x})",
    element.name()
)]
pub struct RowConversionError {
    pub table: String,
    pub id: u64,
    /// The first one of the row.
    pub weight: f32,
    pub element: WeightType,
}

/// Why a file could not be copied with changed rows.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    #[error(transparent)]
    Read(#[from] SnapshotError),
    #[error(transparent)]
    Row(#[from] RowConversionError),
    #[error("cannot write rows: {0}")]
    Write(#[from] io::Error),
}
