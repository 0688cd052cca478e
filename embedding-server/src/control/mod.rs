//! The server as a member of a run. Never a sample.

mod follow;
mod guard;
mod join;
mod roots;

pub(crate) use follow::{Ended, follow};
pub(crate) use guard::RunGuard;
pub(crate) use join::join;
pub(crate) use roots::StorageRoots;
