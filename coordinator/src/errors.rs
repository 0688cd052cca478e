//! Why the coordinator could not serve.

use zagros_journal::JournalError;

/// Why the coordinator could not serve. The outcome of the run is no error of the coordinator: see [`crate::RunOutcome`].
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The gRPC port failed.
    #[error("the coordinator's gRPC port failed: {0}; no member can reach it")]
    Grpc(#[from] tonic::transport::Error),
    /// The HTTP port failed.
    #[error("the coordinator's HTTP port failed: {0}")]
    Admin(#[from] std::io::Error),
}
