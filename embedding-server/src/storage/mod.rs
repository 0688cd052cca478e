//! Rows as files: describe, save, load. Blocking file work, called on threads that may block.

mod error;
mod format;
mod load;
mod reader;
mod save;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use error::StorageError;
pub(crate) use load::load;
pub(crate) use save::save;
