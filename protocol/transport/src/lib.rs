//! The transport of `zagros-protocol`'s messages over gRPC: generated clients and services, refusals as statuses, the
//! headers that name a run and a server, and the proof that a peer belongs to the run.
//!
//! `zagros-protocol` contains the messages only. A state machine can therefore use them without a runtime in its
//! dependencies.

pub mod headers;
pub mod proof;
pub mod status;

/// Generated from the services of `proto/zagros/datapath/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod datapath {
    include!("../generated/zagros.datapath.v1.rs");
}

/// Generated from the services of `proto/zagros/control/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod control {
    include!("../generated/zagros.control.v1.rs");
}

pub use headers::{check_run, check_server, names_run, stamp_run, stamp_server};
pub use proof::{Credentials, Peer, PeerRole, RoleKey, open_channel, serve};
pub use status::{refusal_of, status_of};
