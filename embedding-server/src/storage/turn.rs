//! One save or load at a time: a second one would only take disk and memory from the first.

use parking_lot::{Mutex, MutexGuard};

use super::StorageError;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<()>);

impl Turns {
    /// Takes the turn, or says that it is taken; does not wait.
    pub(crate) fn take(&self) -> Result<MutexGuard<'_, ()>, StorageError> {
        self.0.try_lock().ok_or(StorageError::Busy)
    }
}
