//! What a worker does besides touching samples: join, get splits, complete them, evaluate, save, leave.
//!
//! `driver` performs what the training loop (`zagros_worker_core`) decides. `trainer` names the driver's parts. The other
//! files hold one part, or perform one kind of action, each.

mod asynchronous;
mod ballots;
mod barrier_calls;
mod best_states;
mod blocking;
mod books;
mod calibration;
mod calibrators;
mod checkpoint;
mod checkpoint_names;
mod completer;
mod conclude;
mod context;
mod cost_meter;
mod departure;
mod diverged;
mod divergence;
mod driver;
mod early_stopping;
mod epoch_end;
mod evaluate;
mod evaluation;
mod forgotten;
mod group;
mod group_session;
mod group_step;
mod group_watch;
mod importance;
mod interruption;
mod label_runs;
mod lease;
mod lookup;
mod loss_check;
mod main_target;
mod manifest;
mod manifest_rows;
mod measures;
mod model_choice;
mod outputs;
mod part_scores;
mod predict;
mod replaced_file;
mod restore;
mod resume;
mod round;
mod row_servers;
mod saved_model;
mod scoring;
mod slow;
mod splits;
mod start_meanings;
mod start_model;
mod status_report;
mod step;
mod stop;
mod stream;
mod stream_position;
#[cfg(test)]
mod tests;
mod tracker;
mod trainer;
mod transforms;
mod worker;
mod worker_counts;

pub use evaluate::Evaluate;
pub use forgotten::{forget_rows, note_forgotten, request_forgetting};
pub use manifest::{FileRecord, MANIFEST, Manifest};
pub use measures::{Importance, ImportanceOptions, Measures, TargetImportance};
pub use part_scores::target_form;
pub use predict::{Predict, ScoredRows};
pub use resume::{Earlier, LastRun, ResumePoint};
pub use saved_model::JOB;
pub use worker::{Input, Worker};
