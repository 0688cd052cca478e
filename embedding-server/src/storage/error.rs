//! Why rows could not be written or read. Memory is as it was.

use std::io;
use std::path::PathBuf;

use zagros_protocol::{Refusal, RefusalKind};

/// Why rows could not be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("cannot write rows: {0}")]
    Write(#[source] io::Error),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{file:?} is not the name of a file in the folder; name files without a path, as the save answered them")]
    FileName { file: String },
    #[error("{} is not a file of rows: it starts with {found:02x?}", path.display())]
    Magic { path: PathBuf, found: [u8; 8] },
    #[error(
        "{} has format version {found}, this release reads {expected}; use the release that wrote it",
        path.display()
    )]
    Version { path: PathBuf, found: u32, expected: u32 },
    #[error("the header of {} cannot be read: {source}", path.display())]
    Header { path: PathBuf, source: serde_json::Error },
    #[error("{} is cut off: {place} needs {needed} bytes, {left} are left; use another save", path.display())]
    Truncated { path: PathBuf, place: String, needed: u64, left: u64 },
    #[error(
        "{} is damaged: {place} should have CRC-32 {expected:08x} and has {found:08x}; use another save",
        path.display()
    )]
    Corrupt { path: PathBuf, place: String, expected: u32, found: u32 },
    #[error("{} does not fit together: {problem}", path.display())]
    Inconsistent { path: PathBuf, problem: String },
    #[error("{} was saved from another model: {problem}", path.display())]
    OtherModel { path: PathBuf, problem: String },
}

impl From<StorageError> for Refusal {
    fn from(error: StorageError) -> Self {
        let kind = match &error {
            StorageError::Write(_) => RefusalKind::Internal,
            StorageError::Read { source, .. } if source.kind() != io::ErrorKind::NotFound => RefusalKind::Internal,
            _ => RefusalKind::Invalid,
        };
        Self::new(kind, error)
    }
}
