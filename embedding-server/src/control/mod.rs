//! The server as a member of a run. Never a sample.

mod follow;
mod join;

pub(crate) use follow::{Ended, follow};
pub(crate) use join::join;
