//! One step of this worker, what is counted of it, and whether its loss and its labels make sense.

mod cost_meter;
mod loss_watch;
mod main_target;
mod tracker;
mod worker_counts;
mod worker_step;

pub(super) use loss_watch::LossWatch;
pub(super) use main_target::{MainTarget, loss_of_ignorance};
pub(super) use tracker::{MadeStep, TrackerState, TrainingTracker};
pub(super) use worker_counts::{VotedCounts, WorkerCounts};
