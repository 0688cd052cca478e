//! Errors of a save or a load.

use std::io;

use zagros_protocol::{Refusal, RefusalKind};
use zagros_rows::snapshot::{RowConversionError, SnapshotError};
use zagros_store::{StoreError, StoreFault};
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
    #[error(
        "{file:?} is not the name of a file in the folder; name files as the save returned them, `NAME` or `../FOLDER/NAME`"
    )]
    FileName { file: String },
    #[error(transparent)]
    Capture(#[from] TableSnapshotError),
    #[error(transparent)]
    Clear(#[from] ClearError),
    #[error("table `{name}`: {source}")]
    Table { name: String, source: TableError },
    #[error(transparent)]
    Convert(#[from] RowConversionError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl StorageError {
    /// Whether an object store did not answer, or cannot serve at the moment.
    fn is_away(&self) -> bool {
        match self {
            Self::Folder(error) => error.fault() == StoreFault::Away,
            Self::Write(error) | Self::Read(SnapshotError::Read { source: error, .. }) => {
                error.kind() == io::ErrorKind::NotConnected
            }
            _ => false,
        }
    }
}

/// Whether the file itself is the cause of a failed read, and not the disk.
fn is_damage(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory)
}

impl From<StorageError> for Refusal {
    fn from(error: StorageError) -> Self {
        let kind = match &error {
            StorageError::Refused(refusal) => refusal.kind,
            error if error.is_away() => RefusalKind::Unavailable,
            StorageError::Folder(error) => match error.fault() {
                StoreFault::Machine => RefusalKind::Storage,
                StoreFault::Setting | StoreFault::Missing | StoreFault::Away => RefusalKind::Invalid,
            },
            StorageError::Write(_) => RefusalKind::Storage,
            StorageError::Read(SnapshotError::Read { source, .. }) if !is_damage(source.kind()) => RefusalKind::Storage,
            StorageError::Capture(_) | StorageError::Clear(_) => RefusalKind::Unavailable,
            StorageError::Table { source, .. } if source.is_retryable() => RefusalKind::Unavailable,
            _ => RefusalKind::Invalid,
        };
        Self::new(kind, with_cause(error.to_string(), &error))
    }
}

/// Adds the error's cause to a message of it that does not contain the cause.
pub(crate) fn with_cause(message: String, error: &dyn std::error::Error) -> String {
    match error.source().map(ToString::to_string) {
        Some(cause) if !message.contains(&cause) => format!("{message}: {cause}"),
        _ => message,
    }
}
