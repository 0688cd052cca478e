//! Files and whatever else blocks, off the threads that must not wait.

use tokio::task::spawn_blocking;

use crate::error::WorkerError;

/// Runs what blocks where it may.
///
/// # Errors
/// When it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    thread: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkerError> {
    spawn_blocking(work).await.map_err(|error| WorkerError::Thread { thread, reason: error.to_string() })
}
