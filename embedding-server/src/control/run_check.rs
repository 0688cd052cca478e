//! Checks that a request over a socket belongs to the run that the server has joined.

use std::sync::OnceLock;

use http::HeaderMap;
use zagros_protocol::{Refusal, RefusalKind, RunId, ServerIndex};
use zagros_transport::{check_run, check_server};

/// Accepts requests of one run. A server that is called inside its process needs no check.
#[derive(Debug)]
pub(crate) struct RunCheck {
    name: String,
    /// The run, and the instance of this process.
    joined: OnceLock<(RunId, u64)>,
}

impl RunCheck {
    pub(crate) fn new(server: ServerIndex) -> Self {
        Self { name: format!("embedding server {server}"), joined: OnceLock::new() }
    }

    /// Records the run and the instance. A server joins one run only.
    pub(crate) fn note_joined(&self, run: RunId, instance: u64) {
        let _ = self.joined.set((run, instance));
    }

    /// Refuses a request of another run or for another process, before its message is read (invariant MB-2).
    /// Before the server has joined, the refusal is `Unavailable`.
    pub(crate) fn check_request(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match self.joined.get() {
            Some((run, instance)) => {
                check_run(*run, headers, &self.name)?;
                check_server(*instance, headers, &self.name)
            }
            None => {
                let message = format!("{} has not joined a run yet; it waits for the coordinator", self.name);
                Err(Refusal::new(RefusalKind::Unavailable, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zagros_transport::stamp_run;

    use super::*;

    /// Invariant MB-2.
    #[test]
    fn a_server_serves_the_run_that_it_joined_and_no_other() {
        let guard = RunCheck::new(ServerIndex(3));
        let [mut ours, mut theirs] = [HeaderMap::new(), HeaderMap::new()];
        stamp_run(RunId(7), &mut ours);
        stamp_run(RunId(8), &mut theirs);
        assert!(guard.check_request(&ours).unwrap_err().kind.is_retryable());
        guard.note_joined(RunId(7), 1);
        assert_eq!(guard.check_request(&ours), Ok(()));
        let refused = guard.check_request(&theirs).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Fenced);
        let both =
            "embedding server 3 belongs to run 0000000000000007, but this request belongs to run 0000000000000008";
        assert!(refused.message.starts_with(both), "{refused}");
    }
}
