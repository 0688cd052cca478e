//! At most one save or load at a time: a second one would take disk and memory from the first.

use parking_lot::{Mutex, MutexGuard};

use super::StorageError;

/// Held by the save or load in progress.
#[derive(Debug, Default)]
pub(crate) struct StorageLock(Mutex<()>);

impl StorageLock {
    /// Takes the lock without waiting.
    ///
    /// # Errors
    /// [`StorageError::Busy`] while another save or load holds it.
    pub(crate) fn take(&self) -> Result<MutexGuard<'_, ()>, StorageError> {
        self.0.try_lock().ok_or(StorageError::Busy)
    }
}
