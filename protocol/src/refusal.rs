//! Why a request was refused, the same in process and across gRPC.

use std::fmt;
use std::time::Duration;

use crate::PackError;

/// What class of refusal, and so what the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The request's generation or bucket owner is not the server's: refetch the map.
    Moved,
    /// The request is malformed or names unknown tables; the same request never succeeds.
    Invalid,
    /// A newer incarnation of this member has joined: stop.
    Fenced,
    /// Versions or job files differ: stop.
    Mismatch,
    /// Not yet, or not for the moment: try again after a pause.
    Unavailable,
    /// No answer within the deadline: try again while the caller's own deadline lasts.
    Deadline,
    /// A disk is full, or a folder or file cannot be written or read where the server is.
    Storage,
    /// The server failed; its log has the cause.
    Internal,
}

impl RefusalKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Moved,
        Self::Invalid,
        Self::Fenced,
        Self::Mismatch,
        Self::Unavailable,
        Self::Deadline,
        Self::Storage,
        Self::Internal,
    ];

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Deadline)
    }

    /// The kind in one word, as a header and the metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Invalid => "invalid",
            Self::Fenced => "fenced",
            Self::Mismatch => "mismatch",
            Self::Unavailable => "unavailable",
            Self::Deadline => "deadline",
            Self::Storage => "storage",
            Self::Internal => "internal",
        }
    }
}

/// A request that was not served, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The class.
    pub kind: RefusalKind,
    /// What, where and why, for a person.
    pub message: String,
}

impl Refusal {
    /// A refusal of this kind.
    pub fn new(kind: RefusalKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// The other end did not answer within this time (invariant WT-1).
    #[must_use]
    pub fn no_answer(within: Duration) -> Self {
        Self::new(RefusalKind::Deadline, format!("no answer within {within:.1?}"))
    }

    /// A malformed request.
    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(RefusalKind::Invalid, message)
    }
}

impl From<PackError> for Refusal {
    fn from(error: PackError) -> Self {
        Self::invalid(error)
    }
}
