//! Why a process is not part of a run, or no longer part of it.

use std::time::Duration;

use zagros_protocol::Refusal;

#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The coordinator did not answer, or did not admit the caller, before the timeout.
    #[error(
        "could not {what} within {waited:.1?}: {last}; check that {coordinator} runs at this address \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Unreachable {
        coordinator: String,
        /// What was asked: `join the run`.
        what: &'static str,
        waited: Duration,
        last: Refusal,
    },
    /// The coordinator refused. A retry would be refused too.
    #[error("{coordinator} refused to {what}: {refusal}")]
    Refused { coordinator: String, what: &'static str, refusal: Refusal },
    /// Training is over, so the caller has nothing to do.
    #[error("{coordinator} says that training is over: nothing is left to do")]
    Over { coordinator: String },
    /// The rows that an embedding server has recovered are of another run: it starts empty and joins again.
    #[error(
        "{coordinator} says that the rows in the log of this server are of another run; it must start with empty tables"
    )]
    ForeignRows { coordinator: String },
    /// The run did not become ready before the timeout.
    #[error(
        "{coordinator} has no {what} after {waited:.1?}: {waiting_for}; start the missing process, or read its log"
    )]
    NotReady {
        coordinator: String,
        /// `placement`, or the group of workers.
        what: &'static str,
        waited: Duration,
        /// What the coordinator waits for, in its words.
        waiting_for: String,
    },
    #[error("stopped while waiting to {what} ({coordinator})")]
    Stopped { coordinator: String, what: &'static str },
}

impl MemberError {
    /// Turns the last refusal, after `waited`, into an error.
    pub(crate) fn from_refusal(coordinator: &str, what: &'static str, waited: Duration, refusal: Refusal) -> Self {
        let coordinator = coordinator.to_owned();
        if refusal.kind.is_retryable() {
            return Self::Unreachable { coordinator, what, waited, last: refusal };
        }
        Self::Refused { coordinator, what, refusal }
    }

    /// The coordinator's refusal, if it is the cause.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Unreachable { last: refusal, .. } | Self::Refused { refusal, .. } => Some(refusal),
            Self::Over { .. } | Self::ForeignRows { .. } | Self::NotReady { .. } | Self::Stopped { .. } => None,
        }
    }
}
