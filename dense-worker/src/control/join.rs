//! A worker from start to end: it looks at the data, joins the run, gets what it starts from (a checkpoint, a saved model, the
//! statistics of features), trains, and leaves.

mod restore;
mod start_model;
#[cfg(test)]
mod tests;
mod transforms;
mod waits;
mod worker;

pub(super) use start_model::StartModel;
pub use worker::{Worker, WorkerInput};
