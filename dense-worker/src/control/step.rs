//! One step of this worker, what is counted of it, and whether its loss and its labels make sense.

mod cost_meter;
mod divergence;
mod label_runs;
mod loss_check;
mod main_target;
mod tracker;
mod worker_counts;
mod worker_step;

pub(super) use divergence::DivergenceWatch;
pub(super) use label_runs::LabelRuns;
pub(super) use main_target::{MainTarget, loss_of_ignorance};
pub(super) use tracker::{MadeStep, TrackerState, TrainingTracker};
pub(super) use worker_counts::{VotedCounts, WorkerCounts};
