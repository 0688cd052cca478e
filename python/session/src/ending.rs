//! How a worker leaves its run.

use std::time::Duration;

use zagros_protocol::control::{MemberStatus, Outcome, Role, StatusRequest};

use crate::link::SessionEnd;
use crate::waiting::{Look, wait_for_work};
use crate::{Session, SessionError};

const PAUSE: Duration = Duration::from_millis(20);

impl Session {
    /// It ends well once all its workers have left with their work done, and fails if one has failed. A second call
    /// does nothing.
    ///
    /// On an error, this process has left either way.
    pub fn close(&self, ending: SessionEnd<'_>, look: Look<'_>) -> Result<(), SessionError> {
        if !self.is_owner() {
            return Ok(());
        }
        let flushed = if ending == SessionEnd::Done { self.flush(look) } else { self.check_usable() };
        if !self.link.close(ending) {
            return Ok(());
        }
        let (outcome, reason) = match (ending, &flushed) {
            (SessionEnd::Done, Ok(())) => (Outcome::Finished, String::new()),
            (SessionEnd::Done, Err(error)) => (Outcome::Failed, error.to_string()),
            (SessionEnd::Failed(reason), _) => (Outcome::Failed, reason.to_owned()),
        };
        let left = self.link.membership.leave(outcome, &reason);
        let left = wait_for_work(&self.runtime, "to leave the run", 2 * self.timeout, look, left)?;
        if ending == SessionEnd::Done { flushed.and_then(|()| left.map_err(SessionError::from)) } else { Ok(()) }
    }

    /// Each other worker has left, or was silent for its lease. Who has started the servers calls this before they end.
    pub fn wait_for_other_workers(&self, look: Look<'_>) -> Result<(), SessionError> {
        let is_other = |member: &MemberStatus| {
            member.role == i32::from(Role::DenseWorker) && member.index != self.rank && member.state == "alive"
        };
        let gone = async {
            // A coordinator that does not answer has ended.
            while let Ok(status) = self.link.control.status(StatusRequest {}).await {
                if status.state != "training" || !status.members.iter().any(is_other) {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        wait_for_work(&self.runtime, "for the other workers to leave the run", self.timeout, look, gone)
    }
}
