//! What a worker does besides touching samples: join, get splits, complete them, evaluate, save, leave.
//!
//! `trainer` performs what the training loop (`zagros_worker_core`) decides, and names the parts for it. Each folder holds some of the
//! parts, and performs the actions on them.
//!
//! ```text
//! join ─► checkpoint ─► evaluate ─► group ─► save, step, data
//! ```
//!
//! An arrow: the files of the first name items of the second, and never the reverse. Only `trainer`, which has a part from
//! each folder, is named by all of them.

mod checkpoint;
mod data;
mod evaluate;
mod group;
mod join;
mod save;
mod step;
mod trainer;

pub use checkpoint::{EarlierRun, LastRun, ResumePoint};
pub use evaluate::{ImportanceReport, PartMeasures, ScoredRows, ScoringCommand, TargetImportance, target_form};
pub use join::{Worker, WorkerInput};
pub use save::{forget_rows, note_forgotten};
