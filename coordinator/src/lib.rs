//! The coordinator process: control path only.
//!
//! [`zagros_coordinator_core::Core`] decides; this crate gives it a clock, a lock and two ports. In one process
//! [`LocalCoordinator`] is called directly; [`run`] serves the same object to other processes.

pub mod journal;
mod journaled;
mod local;
mod metrics;
mod page;
mod process;
mod service;
mod status;

use std::time::Duration;

use crate::journal::JournalError;

pub use journaled::{JournalRuns, JournalUse};
pub use local::LocalCoordinator;
pub use process::{CoordinatorConfig, CoordinatorEnd, run};
pub use status::{
    CheckpointReport, DiskReport, EvaluationReport, HistoryReport, LoadReport, MemberReport, ProgressReport,
    ScaleReport, StageReport, StatusReport, WaitReport,
};
pub use zagros_coordinator_core::RunOutcome;

/// Why the coordinator could not serve. The outcome of the run is no error of the coordinator: see [`crate::RunOutcome`].
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal could not be written for so long that no member waits for the coordinator any more.
    #[error(
        "the coordinator ends, because its journal could not be written for {waited:.0?}: {why}; no member waits for it any \
         more, and the next run resumes from the newest checkpoint"
    )]
    Unwritable {
        /// Since the first input that could not be written.
        waited: Duration,
        why: String,
    },
    #[error("the coordinator's gRPC port failed: {0}; no member can reach it")]
    Grpc(#[from] tonic::transport::Error),
    #[error("the coordinator's HTTP port failed: {0}")]
    Admin(#[from] std::io::Error),
}
