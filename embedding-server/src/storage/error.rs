//! Why rows could not be saved or loaded.

use std::io;
use std::path::PathBuf;

use zagros_protocol::{Refusal, RefusalKind};
use zagros_snapshot::SnapshotError;
use zagros_store::{Fault, StoreError};
use zagros_table::{ClearError, TableError, TableSnapshotError};

/// Why rows could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("cannot write rows: {0}")]
    Write(#[from] io::Error),
    #[error(transparent)]
    Folder(#[from] StoreError),
    #[error(transparent)]
    Read(#[from] SnapshotError),
    #[error("{file:?} is not the name of a file in the folder; name files without a path, as the save answered them")]
    FileName { file: String },
    #[error("{} was saved from another model: {problem}", path.display())]
    OtherModel { path: PathBuf, problem: String },
    #[error("a load that replaces all rows names no file, which would only forget them; name the files of the save")]
    NothingInPlace,
    #[error(
        "{} is not the file that was saved: its SHA-256 is {found}, the manifest says {expected}; it is damaged or of \
         another save, use another one",
        path.display()
    )]
    OtherSave { path: PathBuf, expected: String, found: String },
    #[error("rows are being saved or loaded already; ask again when that is done")]
    Busy,
    #[error(transparent)]
    Capture(#[from] TableSnapshotError),
    #[error(transparent)]
    Clear(#[from] ClearError),
    #[error("table `{name}`: {source}")]
    Table { name: String, source: TableError },
}

impl StorageError {
    /// Whether an object store did not answer, or could not.
    fn is_away(&self) -> bool {
        match self {
            Self::Folder(error) => error.fault() == Fault::Away,
            Self::Write(error) | Self::Read(SnapshotError::Read { source: error, .. }) => {
                error.kind() == io::ErrorKind::NotConnected
            }
            _ => false,
        }
    }
}

/// Whether that a file cannot be read is the file's own fault, and not the disk's.
fn is_damage(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory)
}

impl From<StorageError> for Refusal {
    fn from(error: StorageError) -> Self {
        if let StorageError::Read(SnapshotError::Magic { path, .. }) = &error {
            // What is in a file that holds no rows is none of the caller's business.
            let path = path.display();
            return Self::invalid(format!(
                "{path} is not a file of rows; they end in .zrows and lie in a model folder"
            ));
        }
        let kind = match &error {
            error if error.is_away() => RefusalKind::Unavailable,
            StorageError::Folder(error) => match error.fault() {
                Fault::Machine => RefusalKind::Storage,
                Fault::Setting | Fault::Missing | Fault::Away => RefusalKind::Invalid,
            },
            StorageError::Write(_) => RefusalKind::Storage,
            StorageError::Read(SnapshotError::Read { source, .. }) if !is_damage(source.kind()) => RefusalKind::Storage,
            StorageError::Busy | StorageError::Capture(_) | StorageError::Clear(_) => RefusalKind::Unavailable,
            StorageError::Table { source, .. } if source.is_retryable() => RefusalKind::Unavailable,
            _ => RefusalKind::Invalid,
        };
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        let reported = error.to_string();
        match cause.filter(|cause| !reported.contains(cause.as_str())) {
            Some(cause) => Self::new(kind, format!("{reported}: {cause}")),
            None => Self::new(kind, reported),
        }
    }
}
