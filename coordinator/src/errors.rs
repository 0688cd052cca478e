//! Why the coordinator could not serve.

use std::time::Duration;

use zagros_journal::JournalError;

/// Why the coordinator could not serve. The outcome of the run is no error of the coordinator: see [`crate::RunOutcome`].
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal could not be written for so long that no member waits for the coordinator any more.
    #[error(
        "the coordinator ends, because its journal could not be written for {waited:.0?}: {why}; no member waits for it any \
         more, and the next run resumes from the newest checkpoint"
    )]
    Unwritable {
        /// Since the first input that could not be written.
        waited: Duration,
        why: String,
    },
    #[error("the coordinator's gRPC port failed: {0}; no member can reach it")]
    Grpc(#[from] tonic::transport::Error),
    #[error("the coordinator's HTTP port failed: {0}")]
    Admin(#[from] std::io::Error),
}
