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
        let Some((run, instance)) = self.joined.get() else {
            let message = format!("{} has not joined a run yet; it waits for the coordinator", self.name);
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        };
        check_run(*run, headers, &self.name)?;
        check_server(*instance, headers, &self.name)
    }
}
