//! The coordinator process: control path only.
//!
//! [`zagros_coordinator_core::Core`] decides; this crate gives it a clock, a lock and two ports. In one process
//! [`LocalCoordinator`] is called directly; [`run`] serves the same object to other processes.

mod errors;
mod journaled;
mod local;
mod metrics;
mod page;
mod process;
mod service;
mod state_file;
mod status;

pub use errors::CoordinatorError;
pub use journaled::{JournalRuns, JournalUse};
pub use local::LocalCoordinator;
pub use process::{CoordinatorConfig, CoordinatorEnd, run};
pub use status::{
    CheckpointReport, DiskReport, EvaluationReport, HistoryReport, LoadReport, MemberReport, ProgressReport,
    ScaleReport, StageReport, StatusReport, WaitReport,
};
pub use zagros_coordinator_core::RunOutcome;
