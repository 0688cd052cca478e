//! Who may ask a server for anything across a socket: members of the run that it has joined.

use std::sync::OnceLock;

use http::HeaderMap;
use zagros_protocol::run::check_server;
use zagros_protocol::{Refusal, RefusalKind, RunId, ServerIndex};

/// Lets the requests of one run pass. A server that is called within its process has none: its caller made it.
#[derive(Debug)]
pub(crate) struct RunGuard {
    name: String,
    /// The run, and what the coordinator knows this process by.
    joined: OnceLock<(RunId, u64)>,
}

impl RunGuard {
    /// Of a server that has joined no run.
    pub(crate) fn new(server: ServerIndex) -> Self {
        Self { name: format!("embedding server {server}"), joined: OnceLock::new() }
    }

    /// The server has joined this run as this instance, and joins no other.
    pub(crate) fn joined(&self, run: RunId, instance: u64) {
        let _ = self.joined.set((run, instance));
    }

    /// Refuses what a process of another run sends, or what is meant for another process of this server, before anything of
    /// it is read (invariant MB-2).
    ///
    /// # Errors
    /// As [`RunId::check`] and [`check_server`]; `Unavailable` before the server has joined.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match self.joined.get() {
            Some((run, instance)) => {
                run.check(headers, &self.name)?;
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
    use super::*;

    /// Invariant MB-2.
    #[test]
    fn a_server_serves_the_run_that_it_joined_and_no_other() {
        let guard = RunGuard::new(ServerIndex(3));
        let [mut ours, mut theirs] = [HeaderMap::new(), HeaderMap::new()];
        RunId(7).stamp(&mut ours);
        RunId(8).stamp(&mut theirs);
        assert!(guard.check(&ours).unwrap_err().kind.is_retryable());
        guard.joined(RunId(7), 1);
        assert_eq!(guard.check(&ours), Ok(()));
        let refused = guard.check(&theirs).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Fenced);
        let both = "embedding server 3 belongs to run 0000000000000007, and this request to run 0000000000000008";
        assert!(refused.message.starts_with(both), "{refused}");
    }
}
