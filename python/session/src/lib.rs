//! A user's own training loop as the worker of a run. The package for Python stands on it.
//!
//! ```text
//!  look_up ──► wait for a place in the window ──► rows ──► (their network) ──► push ──► place is free once acknowledged
//!  (returns at once)      (background)              │                            │
//!                                          Session::wait_for_rows         (background)
//! ```
//!
//! Calls are plain functions. A call that waits ends at a deadline, and asks its caller ten times a second whether to go
//! on ([`Look`]): that is where Python hears of Ctrl-C.

mod batch;
mod ending;
mod error;
mod gradient_sum;
mod job_text;
mod link;
mod session;
mod storage;
#[cfg(test)]
mod tests;
mod waiting;

pub use batch::{BatchAccess, LookupBatch};
pub use error::SessionError;
pub use job_text::{job_toml, parse_job};
pub use link::SessionEnd;
pub use session::{RunReach, Session, SessionTable};
pub use storage::{SavedRows, SavedRowsFile, TableRows};
pub use waiting::Look;
