//! One step of this worker, what is counted of it, and whether its loss and its labels make sense.

mod cost_meter;
mod loss_watch;
mod main_target;
mod tracker;
mod worker_counts;
mod worker_step;

pub(super) use loss_watch::LossWatch;
#[cfg(test)]
pub(super) use main_target::MainTarget;
pub(super) use tracker::{MadeStep, TrackerState, TrainingTracker};
pub(super) use worker_counts::{VotedCounts, WorkerCounts};
