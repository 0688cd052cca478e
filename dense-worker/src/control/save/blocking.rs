//! Files and all else that blocks, off the threads that must not wait.

use tokio::task::spawn_blocking;

use crate::error::WorkerError;

pub(crate) async fn run_blocking<T: Send + 'static>(
    thread: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkerError> {
    spawn_blocking(work).await.map_err(|error| WorkerError::Thread { thread, reason: error.to_string() })
}
