//! What a request to end makes of a call.

use zagros_ingest::IngestError;

use crate::error::WorkerError;

/// A request to end is no failure; anything else is.
///
/// # Errors
/// The error, where it is no request to end.
pub(crate) fn interrupted_or(reason: WorkerError) -> Result<(), WorkerError> {
    if is_interruption(&reason) { Ok(()) } else { Err(reason) }
}

pub(crate) fn is_interruption(error: &WorkerError) -> bool {
    matches!(error, WorkerError::Interrupted | WorkerError::Ingest(IngestError::Cancelled))
}
