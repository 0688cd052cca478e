//! Errors of a save or a load.

use std::io;
use std::path::PathBuf;

use zagros_protocol::{Refusal, RefusalKind};
use zagros_rows::snapshot::{RowConversionError, SnapshotError};
use zagros_store::{StoreError, StoreFault};
use zagros_table::{ClearError, ColdError, TableError, TableSnapshotError};

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
    #[error("{} was saved from another model: {problem}", path.display())]
    OtherModel { path: PathBuf, problem: String },
    #[error("a load names no file, so it would only remove rows; name the files of the save")]
    NothingInPlace,
    #[error("a request that removes all rows names files to load; name none, or ask for a load")]
    ClearWithFiles,
    #[error(
        "a request removes all rows, and the job of this server never does (`train.reset_embeddings` is false); no row is removed"
    )]
    ClearUnwanted,
    #[error(
        "{} is not the file that was saved: its SHA-256 is {found}, but the manifest says {expected}; the file is \
         damaged or belongs to another save; use another checkpoint or model",
        path.display()
    )]
    OtherSave { path: PathBuf, expected: String, found: String },
    #[error(
        "{file}, which the changes follow, is gone; this save is given up, and the next one has all rows; delete no files of checkpoints \
         while their run goes on"
    )]
    Gone { file: String },
    #[error("rows are being saved or loaded already; try again when this is done")]
    Busy,
    #[error(transparent)]
    Capture(#[from] TableSnapshotError),
    #[error(transparent)]
    Clear(#[from] ClearError),
    #[error("table `{name}`: {source}")]
    Table { name: String, source: TableError },
    #[error(transparent)]
    Convert(#[from] RowConversionError),
    #[error("there is no table `{name}`; the tables are {known}")]
    NoTable { name: String, known: String },
    #[error("table `{name}` holds the dense network, and no rows of ids; name a table of features")]
    DenseTable { name: String },
    #[error("no row is removed: waited {waited:?} for lookups and pushes to end; try again later")]
    RequestsGoOn { waited: std::time::Duration },
    #[error("some rows may be left in the cold tier: {0}; check its disk, then give the same command again")]
    Cold(ColdError),
    #[error(transparent)]
    Log(Refusal),
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
        if let StorageError::Read(SnapshotError::Magic { path, .. }) = &error {
            // The message must not show the content of a file that is not ours.
            let help = "files of rows end in .zrows and are in a model folder";
            return Self::invalid(format!("{} is not a file of rows; {help}", path.display()));
        }
        let kind = match &error {
            StorageError::Log(refusal) => refusal.kind,
            error if error.is_away() => RefusalKind::Unavailable,
            StorageError::Folder(error) => match error.fault() {
                StoreFault::Machine => RefusalKind::Storage,
                StoreFault::Setting | StoreFault::Missing | StoreFault::Away => RefusalKind::Invalid,
            },
            StorageError::Write(_) => RefusalKind::Storage,
            StorageError::ClearUnwanted => RefusalKind::Forbidden,
            StorageError::Read(SnapshotError::Read { source, .. }) if !is_damage(source.kind()) => RefusalKind::Storage,
            StorageError::Busy
            | StorageError::Capture(_)
            | StorageError::Clear(_)
            | StorageError::RequestsGoOn { .. }
            | StorageError::Cold(_) => RefusalKind::Unavailable,
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
