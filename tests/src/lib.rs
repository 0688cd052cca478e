//! What the test suites share: the repository, the binary, running it, real data.

mod binary;
mod data;
mod files;
mod monitoring;

pub use binary::{FinishedCommand, RunningCommand, TestProgram, signal_process, zagros, zagros_bench, zagros_in};
pub use data::real_data;
pub use files::{files_that_end_in, repository, sources};
pub use monitoring::{dashboards, prometheus_tool};
