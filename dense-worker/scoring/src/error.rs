//! Why a saved model cannot be read, or rows cannot be scored.

use zagros_model::ModelError;
use zagros_rows::snapshot::SnapshotError;
use zagros_store::StoreError;
use zagros_table::{ColdError, TableError};

#[derive(Debug, thiserror::Error)]
pub enum ScoringError {
    /// A folder does not hold a saved model, or holds that of another job.
    #[error("{folder}: {reason}")]
    SavedModel {
        folder: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of rows is damaged, or cannot be read.
    #[error(transparent)]
    RowFile(#[from] SnapshotError),
    /// The rows that memory has no room for cannot be kept on the disk.
    #[error(transparent)]
    ColdTier(#[from] ColdError),
    #[error("table `{name}`: {source}")]
    Table { name: String, source: TableError },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the batch does not have the shape of the model's features: {reason}")]
    Batch {
        /// Which length is another one.
        reason: String,
    },
}
