//! Rows as files: save and load. The calls block, so they run on threads that may block.

mod capture;
mod captures;
mod checkpoint_files;
mod describe;
mod error;
mod forget;
mod last_load;
mod load;
mod loads;
mod lock;
mod save;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use captures::SnapshotCaptures;
pub(crate) use checkpoint_files::CheckpointFiles;
pub(crate) use error::StorageError;
pub(crate) use forget::forget;
pub(crate) use last_load::LastLoad;
#[cfg(test)]
pub(crate) use load::load;
pub(crate) use lock::StorageLock;
#[cfg(test)]
pub(crate) use save::save;
