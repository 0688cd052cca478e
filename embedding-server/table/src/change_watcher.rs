//! A watcher learns which rows change, as the log does. A server that copies rows to another one has such a watcher.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

/// Learns which rows change. A row that a lookup made, in a table that admits every id, is no change: its first value is a
/// function of (seed, table, id).
pub trait ChangeWatcher: Send + Sync + fmt::Debug {
    /// These rows have changed, are gone, or were counted without being there. The lock of their stripe is held: the call does no I/O.
    fn changed(&self, table: u32, stripe: u32, ids: &[u64]);
}

#[derive(Debug, Default)]
pub(crate) struct WatcherSlot {
    /// Every request reads it. Without a watcher this costs one load.
    is_taken: AtomicBool,
    watcher: RwLock<Option<Arc<dyn ChangeWatcher>>>,
}

impl WatcherSlot {
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, watcher: Option<Arc<dyn ChangeWatcher>>) {
        let is_taken = watcher.is_some();
        *self.watcher.write() = watcher;
        self.is_taken.store(is_taken, Ordering::Release);
    }

    pub(crate) fn notify_changed(&self, table: u32, stripe: usize, ids: &[u64]) {
        if let Some(watcher) = self.watcher.read().as_ref().filter(|_| !ids.is_empty()) {
            watcher.changed(table, stripe as u32, ids);
        }
    }
}
