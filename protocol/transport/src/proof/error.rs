//! Why a connection was not proven.

use std::error::Error;
use std::io;

use super::PeerRole;

/// Why one end of a connection does not accept the other.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The connection could not be made, or broke before the proof. Another try may succeed.
    #[error("the connection could not be made, or broke at once: {0}")]
    Broken(#[source] io::Error),
    #[error(
        "the process that listens there has another run secret than this process: it belongs to another run, or one of \
         both was started with an old secret; give all processes of a run the same secret (docs/security.md)"
    )]
    OtherSecret,
    #[error(
        "the process that listens there has no run secret, but this process has one; start it with the run's secret \
         (ZAGROS_RUN_SECRET_FILE), or check the address"
    )]
    NoSecretThere,
    #[error(
        "the process that listens there cannot check the role {role}, because its own key is of a lower role; start it \
         with the key of its own role (docs/security.md)"
    )]
    RoleAbove { role: PeerRole },
    /// The client is refused, as the server sees it.
    #[error("{0}")]
    Refused(&'static str),
    #[error("what listens there is no process of this release of Zagros: it does not know how to prove its membership")]
    NotZagros,
}

impl ProofError {
    /// Whether another try may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    /// The proof error that a gRPC status was made from.
    pub fn find_in_status(status: &tonic::Status) -> Option<&Self> {
        let mut error: Option<&(dyn Error + 'static)> = status.source();
        while let Some(found) = error {
            if let Some(proof) = found.downcast_ref::<Self>() {
                return Some(proof);
            }
            error = found.source();
        }
        None
    }
}
