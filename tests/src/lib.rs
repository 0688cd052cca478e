//! What the test suites share: the repository, the binary, running it, real data.

mod binary;
mod files;

pub use binary::{
    ChildGuard, FinishedCommand, RunningCommand, TestProgram, assert_contains, signal_process, zagros, zagros_bench,
    zagros_in,
};
pub use files::{
    dashboard_queries, dashboards, files_that_end_in, prometheus_tool, read, real_data, repository, short, sources,
};
