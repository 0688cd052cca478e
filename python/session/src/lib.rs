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
mod error;
mod link;
mod session;
mod storage;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Runtime;
use zagros_job::{Job, Overrides};
use zagros_plumbing::Deadline;

pub use batch::{BatchAccess, LookupBatch};
pub use error::SessionError;
pub use session::{RunReach, Session, SessionTable};
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

/// How often the caller is asked whether it still wants to wait.
const SLICE: Duration = Duration::from_millis(100);

/// Asked ten times a second during a wait: an error ends the wait.
pub type Look<'a> = &'a (dyn Fn() -> Result<(), SessionError> + Sync);

/// Waits for at most `limit` (invariant WT-1).
pub(crate) fn wait_for_work<T>(
    runtime: &Runtime,
    what: &'static str,
    limit: Duration,
    look: Look<'_>,
    work: impl Future<Output = T>,
) -> Result<T, SessionError> {
    runtime.block_on(async {
        let deadline = Deadline::from_now(limit);
        let mut work = pin!(work);
        loop {
            if let Ok(done) = tokio::time::timeout(SLICE.min(deadline.time_left()), &mut work).await {
                return Ok(done);
            }
            look()?;
            if deadline.is_past() {
                return Err(SessionError::Timeout { what, waited: deadline.time_waited() });
            }
        }
    })
}

#[cfg(test)]
mod waiting_tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_wait_ends_with_its_work_its_deadline_or_its_caller() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let long = || std::future::pending::<()>();
        let patient: Look<'_> = &|| Ok(());
        assert_eq!(wait_for_work(&runtime, "for nothing", Duration::from_secs(9), patient, async { 7 }).unwrap(), 7);
        let late =
            wait_for_work(&runtime, "for rows", Duration::from_millis(1), patient, long()).unwrap_err().to_string();
        assert!(late.contains("of waiting for rows"), "{late}");
        let asked = AtomicU32::new(0);
        let tired: Look<'_> = &|| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(SessionError::Interrupted("Ctrl-C".into())),
        };
        let interrupted = wait_for_work(&runtime, "for rows", Duration::from_secs(3600), tired, long()).unwrap_err();
        assert_eq!((interrupted.to_string().as_str(), asked.into_inner()), ("the wait was interrupted: Ctrl-C", 2));
    }
}
