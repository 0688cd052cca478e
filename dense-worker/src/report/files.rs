//! Durable files, and errors that name them. Files and all else that blocks are off the threads that must not wait.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;
use zagros_plumbing::durable;
use zagros_store::StoreError;

use crate::error::WorkerError;

pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), WorkerError> {
    durable::write(path, content).map_err(|source| file_error("write", path, source))
}

pub(crate) fn file_error(what: &'static str, path: &Path, source: io::Error) -> WorkerError {
    StoreError::Disk { what, path: path.to_owned(), source }.into()
}

pub(crate) async fn run_blocking<T: Send + 'static>(
    thread: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkerError> {
    spawn_blocking(work).await.map_err(|error| WorkerError::Thread { thread, reason: error.to_string() })
}

pub(crate) fn seconds_since_epoch() -> f64 {
    // A clock before 1970 gives 0.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
