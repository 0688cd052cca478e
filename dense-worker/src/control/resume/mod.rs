//! Going on where a run was interrupted: what a checkpoint holds, how it is cut, found and taken up again.
//!
//! A checkpoint is a saved model (`super::saved_model`) with `optimizer.safetensors`, `training.json` and the resolved
//! `job.toml` beside it. All of it is of one moment between two steps: every push before it is acknowledged, none
//! after it is in the rows (invariant CK-2).

mod cut;
mod home;
mod point;
mod restore;
mod training;

pub(crate) use cut::Cutter;
pub(crate) use home::Home;
pub use point::{Earlier, LastRun, ResumePoint};
pub(crate) use training::{FileSize, Training};
