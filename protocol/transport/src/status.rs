//! Conversion between refusals and gRPC statuses.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use zagros_protocol::{Refusal, RefusalKind};

use crate::proof::ProofError;

/// The header with the kind. Several kinds share one gRPC code.
const HEADER: &str = "zagros-refusal";

pub fn status_of(refusal: Refusal) -> Status {
    let mut status = Status::new(code_of(refusal.kind), refusal.message);
    if let Some((_, name)) = RefusalKind::NAMED.into_iter().find(|(kind, _)| *kind == refusal.kind) {
        status.metadata_mut().insert(HEADER, MetadataValue::from_static(name));
    }
    status
}

/// The refusal that a status carries. A status from the transport itself becomes the nearest kind.
pub fn refusal_of(status: Status) -> Refusal {
    // The channel reports a connection that could not be proven like one that could not be made.
    if let Some(proof) = ProofError::find_in_status(&status).filter(|proof| !proof.is_retryable()) {
        return Refusal::new(RefusalKind::Unauthenticated, proof);
    }
    let named = status.metadata().get(HEADER).and_then(|value| value.to_str().ok());
    let by_name = RefusalKind::NAMED.into_iter().find(|(_, name)| Some(*name) == named);
    Refusal::new(by_name.map_or_else(|| kind_of_transport(status.code()), |(kind, _)| kind), status.message())
}

fn code_of(kind: RefusalKind) -> Code {
    match kind {
        RefusalKind::Moved | RefusalKind::Mismatch => Code::FailedPrecondition,
        RefusalKind::Invalid => Code::InvalidArgument,
        RefusalKind::Fenced => Code::Aborted,
        RefusalKind::Unavailable | RefusalKind::Disk => Code::Unavailable,
        RefusalKind::Deadline => Code::DeadlineExceeded,
        RefusalKind::Storage => Code::ResourceExhausted,
        RefusalKind::Internal => Code::Internal,
        RefusalKind::Unauthenticated => Code::Unauthenticated,
        RefusalKind::Forbidden => Code::PermissionDenied,
    }
}

/// The kind of a status without the header.
fn kind_of_transport(code: Code) -> RefusalKind {
    match code {
        Code::Unavailable | Code::Cancelled | Code::Unknown => RefusalKind::Unavailable,
        Code::DeadlineExceeded => RefusalKind::Deadline,
        Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => RefusalKind::Invalid,
        Code::Unimplemented => RefusalKind::Mismatch,
        Code::Unauthenticated => RefusalKind::Unauthenticated,
        Code::PermissionDenied => RefusalKind::Forbidden,
        _ => RefusalKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for (kind, _) in RefusalKind::NAMED {
            let refusal = Refusal::new(kind, "table 3 has dim 16, not 8");
            assert_eq!(refusal_of(status_of(refusal.clone())), refusal);
        }
    }

    #[test]
    fn a_broken_connection_is_retryable_and_an_old_peer_is_not() {
        assert!(refusal_of(Status::unavailable("connection refused")).kind.is_retryable());
        assert!(!refusal_of(Status::unimplemented("no such method")).kind.is_retryable());
    }
}
