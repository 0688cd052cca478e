//! The files of a run: its folder, and its measures over time.

pub(crate) mod files;
mod recorder;
mod run_folder;
pub mod tensorboard;

pub use recorder::MeasureRecorder;
pub use run_folder::{RunFolder, RunLock};
