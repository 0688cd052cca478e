//! Why rows could not be looked up or gradients not pushed.

use std::time::Duration;

use zagros_protocol::{PackError, Refusal};

/// Why rows could not be looked up or gradients not pushed. Every variant names who was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// A server did not serve within the client's timeout.
    #[error(
        "could not {what} {server} for {waited:.1?}: {last}; see whether it still runs and what its log says \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Unreachable {
        /// Name and address.
        server: String,
        /// `look up rows at`, `push gradients to`.
        what: &'static str,
        /// How long it was tried.
        waited: Duration,
        /// The last answer.
        last: Refusal,
    },
    /// A server said no, and will say no again.
    #[error("could not {what} {server}: {refusal}")]
    Refused {
        /// Name and address.
        server: String,
        /// What was asked.
        what: &'static str,
        /// Its answer.
        refusal: Refusal,
    },
    /// A server answered something that does not fit the request.
    #[error("{server} answered a lookup with a payload of the wrong shape: {source}; are both ends the same release?")]
    Malformed {
        /// Name and address.
        server: String,
        /// What is wrong.
        source: PackError,
    },
    /// A server process was replaced; what it had learned is gone.
    #[error(
        "embedding server {index} ({address}) was restarted and the rows it held are lost; start the run again, and it goes \
         on from its newest checkpoint"
    )]
    ServerRestarted {
        /// Its index.
        index: u32,
        /// Where the new process listens.
        address: String,
    },
    /// The map changed under the client's feet.
    #[error(
        "the bucket map of generation {generation} gives rows to other servers than before, which this release cannot follow; start the run again"
    )]
    OwnersChanged {
        /// Generation of the new map.
        generation: u64,
    },
    /// No placement was there within the client's timeout.
    #[error("no placement from {coordinator} after {waited:.1?}: {reason}")]
    NoPlacement {
        /// Who was asked.
        coordinator: String,
        /// How long it was tried.
        waited: Duration,
        /// What the coordinator waits for, or why it did not answer.
        reason: String,
    },
    /// The placement does not fit together.
    #[error("{coordinator} sent a placement that cannot be used: {reason}; are both ends the same release?")]
    BadPlacement {
        /// Who sent it.
        coordinator: String,
        /// What is wrong.
        reason: String,
    },
    /// The client was made with a wire encoding that is none.
    #[error("gradients cannot be written as configured: {0}")]
    Wire(#[from] PackError),
    /// The caller's gradients do not match its ids.
    #[error("gradients of table {table}: expected {expected} values, found {found}")]
    GradientShape {
        /// Table id, or the number of tables when that differs.
        table: String,
        /// Wanted rows × dim.
        expected: usize,
        /// Values that came.
        found: usize,
    },
}
