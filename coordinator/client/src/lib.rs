//! How a role joins a run, keeps its lease and gets its work.

pub mod control_plane;
mod errors;
mod grpc;
mod lease;
mod membership;
mod placement;
mod waits;

pub use control_plane::ControlPlane;
pub use errors::MemberError;
pub use grpc::GrpcControlPlane;
pub use lease::LeaseProof;
pub use membership::{AnnouncedBarrier, MemberView, Membership};
pub use placement::{wait_for_group, wait_for_placement};
pub use waits::{WaitGuard, Waiting, Waits};
