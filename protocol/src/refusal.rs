//! Refusals: why a request was not served. They are the same in a process and over gRPC.

use std::fmt;
use std::time::Duration;

use crate::PackError;

/// The class of a refusal. It tells the caller what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The request has another generation, or another server owns its buckets. Fetch the placement again.
    Moved,
    /// The request is malformed or names unknown tables. A retry never succeeds.
    Invalid,
    /// A newer incarnation of this member has joined. Stop.
    Fenced,
    /// Versions or job files differ. Stop.
    Mismatch,
    /// The server cannot serve the request at the moment. Retry after a pause.
    Unavailable,
    /// There was no answer within the deadline. Retry while the caller's own deadline lasts.
    Deadline,
    /// A disk of the server takes or gives nothing at the moment. Retry after a pause: a full disk may have room again.
    Disk,
    /// On the server a disk is full, or a folder or file cannot be written or read.
    Storage,
    /// The server failed. Its log has the cause.
    Internal,
    /// The sender has not proven that it belongs to the run. A retry never succeeds.
    Unauthenticated,
    /// The sender's role may not make this call. A retry never succeeds.
    Forbidden,
}

impl RefusalKind {
    /// Every kind with its one word, for a header and for metrics.
    pub const NAMED: [(Self, &str); 11] = [
        (Self::Moved, "moved"),
        (Self::Invalid, "invalid"),
        (Self::Fenced, "fenced"),
        (Self::Mismatch, "mismatch"),
        (Self::Unavailable, "unavailable"),
        (Self::Deadline, "deadline"),
        (Self::Disk, "disk"),
        (Self::Storage, "storage"),
        (Self::Internal, "internal"),
        (Self::Unauthenticated, "unauthenticated"),
        (Self::Forbidden, "forbidden"),
    ];

    /// Whether a retry of the same request may succeed.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Deadline | Self::Disk)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    pub message: String,
}

impl Refusal {
    pub fn new(kind: RefusalKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// The refusal of a server that did not answer within this time (invariant WT-1).
    pub fn no_answer(within: Duration) -> Self {
        Self::new(RefusalKind::Deadline, format!("no answer within {within:.1?}"))
    }

    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(RefusalKind::Invalid, message)
    }
}

impl From<PackError> for Refusal {
    fn from(error: PackError) -> Self {
        Self::invalid(error)
    }
}
