//! What a worker does besides touching samples: join, get splits, complete them, evaluate, save, leave.

mod apart;
mod blocking;
mod checkpoints;
mod choice;
mod completer;
mod conclude;
mod evaluate;
mod label_runs;
mod meeting;
mod passes;
mod peers;
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
pub use resume::{LastRun, ResumePoint};
pub use saved_model::{JOB, MANIFEST, Manifest};
pub use worker::{Input, Worker};
