//! Allows one save or load at a time. A second one would slow down the first.

use parking_lot::{Mutex, MutexGuard};

use super::StorageError;

#[derive(Debug, Default)]
pub(crate) struct StorageLock(Mutex<()>);

impl StorageLock {
    /// Does not wait.
    pub(crate) fn take_turn(&self) -> Result<MutexGuard<'_, ()>, StorageError> {
        self.0.try_lock().ok_or(StorageError::Busy)
    }
}
