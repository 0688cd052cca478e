//! Errors of a lookup or a push.

use std::time::Duration;

use zagros_protocol::{PackError, Refusal};

/// Why a lookup or a push failed. Every message names the process that was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "could not {what} {server} for {waited:.1?}: {last}; check that the server runs, and read its log \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Unreachable {
        server: String,
        /// `look up rows at` or `push gradients to`.
        what: &'static str,
        waited: Duration,
        last: Refusal,
    },
    /// A server refused the request, and would refuse a retry.
    #[error("could not {what} {server}: {refusal}")]
    Refused {
        server: String,
        /// `look up rows at`, `push gradients to` or `connect to`.
        what: &'static str,
        refusal: Refusal,
    },
    #[error(
        "{server} answered a lookup with a payload of the wrong shape: {source}; run the same release in all roles"
    )]
    Malformed { server: String, source: PackError },
    #[error(
        "embedding server {index} ({address}) was restarted, and its rows are lost; start the run again: it resumes from \
         the newest checkpoint"
    )]
    ServerRestarted {
        index: u32,
        /// Address of the new process.
        address: String,
    },
    #[error(
        "no placement from {coordinator} after {waited:.1?}: {reason}; check that the coordinator and all embedding servers run"
    )]
    NoPlacement {
        coordinator: String,
        waited: Duration,
        /// What the coordinator waits for, or why it did not answer.
        reason: String,
    },
    #[error("{coordinator} sent a placement that cannot be used: {reason}; run the same release in all roles")]
    BadPlacement { coordinator: String, reason: String },
    /// The client's wire encoding is not one that the protocol knows.
    #[error("gradients cannot be encoded for the wire: {0}; this is a bug, report it")]
    Wire(#[from] PackError),
    #[error("gradients of table {table}: expected {expected} values, found {found}")]
    GradientShape {
        /// Number of the table, or `number of tables` if this number differs.
        table: String,
        /// Rows of the result × dim.
        expected: usize,
        found: usize,
    },
}
