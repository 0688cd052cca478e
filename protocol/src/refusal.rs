//! Why a request was refused, the same in process and across gRPC.

use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};

use crate::PackError;

/// Header that carries the kind across gRPC; codes alone are too coarse.
const HEADER: &str = "zagros-refusal";

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
    const ALL: [(Self, Code, &'static str); 8] = [
        (Self::Moved, Code::FailedPrecondition, "moved"),
        (Self::Invalid, Code::InvalidArgument, "invalid"),
        (Self::Fenced, Code::Aborted, "fenced"),
        (Self::Mismatch, Code::FailedPrecondition, "mismatch"),
        (Self::Unavailable, Code::Unavailable, "unavailable"),
        (Self::Deadline, Code::DeadlineExceeded, "deadline"),
        (Self::Storage, Code::ResourceExhausted, "storage"),
        (Self::Internal, Code::Internal, "internal"),
    ];

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Deadline)
    }

    /// Every kind there is.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|entry| entry.0)
    }

    /// The kind in one word, as the wire and the metrics have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    fn entry(self) -> (Self, Code, &'static str) {
        *Self::ALL.iter().find(|entry| entry.0 == self).unwrap_or(&Self::ALL[7])
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

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let (_, code, name) = refusal.kind.entry();
        let mut status = Self::new(code, refusal.message);
        status.metadata_mut().insert(HEADER, tonic::metadata::MetadataValue::from_static(name));
        status
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let named = status.metadata().get(HEADER).and_then(|value| value.to_str().ok());
        let by_name = RefusalKind::ALL.iter().find(|entry| Some(entry.2) == named);
        let kind = by_name.map_or_else(|| kind_of_foreign(status.code()), |entry| entry.0);
        Self::new(kind, status.message())
    }
}

/// Statuses that the transport made itself carry no header of ours.
fn kind_of_foreign(code: Code) -> RefusalKind {
    match code {
        Code::Unavailable | Code::Cancelled | Code::Unknown => RefusalKind::Unavailable,
        Code::DeadlineExceeded => RefusalKind::Deadline,
        Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => RefusalKind::Invalid,
        Code::Unimplemented => RefusalKind::Mismatch,
        _ => RefusalKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for (kind, ..) in RefusalKind::ALL {
            let refusal = Refusal::new(kind, "table 3 has dim 16, not 8");
            assert_eq!(Refusal::from(Status::from(refusal.clone())), refusal);
        }
    }

    #[test]
    fn a_broken_connection_is_retryable_and_an_old_peer_is_not() {
        assert!(Refusal::from(Status::unavailable("connection refused")).kind.is_retryable());
        assert!(!Refusal::from(Status::unimplemented("no such method")).kind.is_retryable());
    }
}
