//! Rows as files: save and load. The calls block, so they run on threads that may block.

mod capture;
mod captures;
mod checkpoint_files;
mod error;
mod forget;
mod load;
mod save;
#[cfg(test)]
mod tests;

pub(crate) use captures::{LastLoad, SnapshotCaptures, StorageLock};
pub(crate) use checkpoint_files::CheckpointFiles;
pub(crate) use error::{StorageError, with_cause};
pub(crate) use forget::forget;
#[cfg(test)]
pub(crate) use load::load;
#[cfg(test)]
pub(crate) use save::save;
