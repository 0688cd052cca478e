//! The dense worker: reads batches, looks up rows, makes steps, pushes gradients.
//!
//! [`Worker`] runs a whole worker. [`ScoringCommand`] scores data with a saved model. Both report events to an [`Observer`].

pub mod metrics;
pub mod report;

mod control;
mod datapath;
mod error;
mod event;
mod progress;
mod summary;
#[cfg(test)]
mod testing;

pub use control::{
    EarlierRun, ImportanceReport, LastRun, PartMeasures, ResumePoint, ScoredRows, ScoringCommand, TargetImportance,
    Worker, WorkerInput, forget_rows, note_forgotten, target_form,
};
pub use error::{ExitClass, WorkerError};
pub use event::{Evaluation, HeldOutPart, Observer, ObserverList, StepReport, TargetMeasures, WorkerEvent};
pub use report::{MeasureRecorder, RunFolder, RunLock};
pub use summary::{BaselineMeasures, RunSummary, StageSeconds, StepStaleness, TrainingCost};
pub use zagros_ingest::RareCategories;
