//! The server as a member of a run. This module touches no samples.

mod member_loop;
mod request_checks;

pub(crate) use member_loop::{StopReason, take_part_in_run};
pub(crate) use request_checks::{RunCheck, StorageFolders};
