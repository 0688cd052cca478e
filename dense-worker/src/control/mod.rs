//! What a worker does besides touching samples: join, get splits, complete them, evaluate, save, leave.

mod apart;
mod barrier;
mod blocking;
mod checkpoints;
mod choice;
mod completer;
mod conclude;
mod divergence;
mod epochs;
mod evaluate;
mod fence;
mod label_runs;
mod manifest;
mod peers;
mod reconcile;
mod regroup;
mod resume;
mod saved_model;
mod slow;
mod splits;
mod stop;
mod stream;
mod telling;
#[cfg(test)]
mod tests;
mod tracker;
mod train;
mod transforms;
mod worker;

pub use evaluate::Evaluate;
pub use manifest::{FileRecord, MANIFEST, Manifest};
pub use resume::{Earlier, LastRun, ResumePoint};
pub use saved_model::JOB;
pub use worker::{Input, Worker};
