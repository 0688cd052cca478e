//! The operator against a fake Kubernetes: whole lives of jobs, with faults.
//!
//! Time is virtual: pauses of minutes pass at once, and nothing here depends on how fast the machine is.

mod api;
mod checks;
mod clock;
mod edits;
mod faults;
mod lives;
mod load;
mod operators;
mod order;
mod rejoin;
mod replaced;
mod user_errors;
mod world;
