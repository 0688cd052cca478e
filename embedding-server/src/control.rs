//! The server as a member of a run. This module touches no samples.

mod member_loop;
mod run_check;
mod storage_folders;

pub(crate) use member_loop::{StopReason, take_part_in_run};
pub(crate) use run_check::RunCheck;
pub(crate) use storage_folders::StorageFolders;
