//! Resuming an interrupted run: what a checkpoint holds, where it lies and how it is found and written.
//!
//! A checkpoint is a saved model (`super::save`) with `optimizer.safetensors`, `training.json` and the resolved
//! `job.toml` beside it. All of it is of one moment between two steps: every push before it is acknowledged, none
//! after it is in the rows (invariant CK-2).

mod folders;
mod make;
mod point;
mod position;
mod writer;

pub(crate) use folders::{CheckpointRoot, delete_all, folder_of};
pub use point::{EarlierRun, LastRun, ResumePoint};
pub(crate) use position::{FileSize, ResumeCursor, TrainingPosition};
pub(crate) use writer::{CapturedCheckpoint, CheckpointWriter};
