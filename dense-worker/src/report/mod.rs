//! What a run leaves behind: its folder, its measures over time.

pub(crate) mod files;
mod recorder;
mod run_folder;
pub mod tensorboard;

pub use recorder::Recorder;
pub use run_folder::{RunFolder, RunLock};
