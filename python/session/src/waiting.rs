//! Waits of a plain thread for background work.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Runtime;
use zagros_plumbing::Deadline;

use crate::SessionError;

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
mod tests {
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
