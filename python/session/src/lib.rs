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
mod link;
mod session;
mod storage;
#[cfg(test)]
mod tests;
mod waiting;

use std::path::Path;

use serde_json::Value;
use zagros_job::{Job, Overrides};

pub use batch::{BatchAccess, LookupBatch};
pub use error::SessionError;
pub use link::SessionEnd;
pub use session::{RunReach, Session, SessionTable};
pub use storage::{SavedRows, TableRows};
pub use waiting::Look;
pub use zagros_protocol::control::FileDigest;

/// It is not checked beyond its form: [`parse_job`] does that. Fails for a value that TOML has not, such as null.
pub fn job_toml(json: &str) -> Result<String, SessionError> {
    let wrong = |error: &dyn std::fmt::Display| SessionError::JobText(error.to_string());
    let job: Value = serde_json::from_str(json).map_err(|error| wrong(&error))?;
    if !job.is_object() {
        return Err(wrong(&"it is no table"));
    }
    toml::to_string(&job).map_err(|error| wrong(&error))
}

/// Fails with all problems of the job.
pub fn parse_job(text: &str, name: &str) -> Result<Job, SessionError> {
    Ok(Job::parse(text, Path::new(name), &Overrides::none())?)
}
