//! Errors of a lookup or a push.

use std::time::Duration;

use zagros_protocol::{PackError, Refusal};

/// Why a lookup or a push failed. Every message names the process that was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// A server did not serve the request within the client's timeout.
    #[error(
        "could not {what} {server} for {waited:.1?}: {last}; check that the server runs, and read its log \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Unreachable {
        /// Name and address.
        server: String,
        /// `look up rows at` or `push gradients to`.
        what: &'static str,
        /// How long the client tried.
        waited: Duration,
        /// The server's last refusal.
        last: Refusal,
    },
    /// A server refused the request, and would refuse a retry.
    #[error("could not {what} {server}: {refusal}")]
    Refused {
        /// Name and address.
        server: String,
        /// `look up rows at`, `push gradients to` or `connect to`.
        what: &'static str,
        /// The server's refusal.
        refusal: Refusal,
    },
    /// A server's answer does not fit the request.
    #[error(
        "{server} answered a lookup with a payload of the wrong shape: {source}; run the same release in all roles"
    )]
    Malformed {
        /// Name and address.
        server: String,
        source: PackError,
    },
    /// A server process was replaced. The rows in its memory are lost.
    #[error(
        "embedding server {index} ({address}) was restarted, and its rows are lost; start the run again: it resumes from \
         the newest checkpoint"
    )]
    ServerRestarted {
        /// Index of the server.
        index: u32,
        /// Address of the new process.
        address: String,
    },
    /// There was no placement within the client's timeout.
    #[error(
        "no placement from {coordinator} after {waited:.1?}: {reason}; check that the coordinator and all embedding servers run"
    )]
    NoPlacement {
        /// The coordinator's name.
        coordinator: String,
        /// How long the client tried.
        waited: Duration,
        /// What the coordinator waits for, or why it did not answer.
        reason: String,
    },
    /// The parts of the placement contradict each other.
    #[error("{coordinator} sent a placement that cannot be used: {reason}; run the same release in all roles")]
    BadPlacement {
        /// The coordinator's name.
        coordinator: String,
        reason: String,
    },
    /// The client's wire encoding is not one that the protocol knows.
    #[error("gradients cannot be encoded for the wire: {0}; this is a bug, report it")]
    Wire(#[from] PackError),
    /// The gradients do not match the ids.
    #[error("gradients of table {table}: expected {expected} values, found {found}")]
    GradientShape {
        /// Number of the table, or `number of tables` if this number differs.
        table: String,
        /// Rows of the result × dim.
        expected: usize,
        /// Values in the call.
        found: usize,
    },
}
