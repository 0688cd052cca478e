//! Rows as files: save, load. Blocking file work, called on threads that may block.

mod cut;
mod describe;
mod error;
mod load;
mod save;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use cut::Cuts;
pub(crate) use error::StorageError;
pub(crate) use load::load;
#[cfg(test)]
pub(crate) use save::save;
pub(crate) use turn::Turns;
