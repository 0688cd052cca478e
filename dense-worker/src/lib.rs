//! The trainer process: reads, looks up, steps, pushes.
//!
//! [`Worker`] is all of it; [`Evaluate`] scores data with a model that a worker saved. What happens meanwhile is
//! reported to an [`Observer`].

pub mod datapath;
pub mod metrics;
pub mod model;
pub mod report;

mod control;
mod error;
mod event;
mod progress;
mod summary;
#[cfg(test)]
mod testing;

pub use control::{Earlier, Evaluate, FileRecord, Input, JOB, LastRun, MANIFEST, Manifest, ResumePoint, Worker};
pub use error::{ExitClass, WorkerError};
pub use event::{Evaluation, Event, HeldOutPart, Observer, Several, Silent, StepReport};
pub use report::{Recorder, RunFolder, RunLock};
pub use summary::{Outcome, StageSeconds, Staleness, Summary};
