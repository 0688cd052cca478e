//! How a role joins a run, keeps its lease and gets its work.

pub mod control_plane;
mod errors;
mod grpc;
mod membership;
mod placement;
#[cfg(test)]
mod testing;

pub use control_plane::ControlPlane;
pub use errors::MemberError;
pub use grpc::GrpcControlPlane;
pub use membership::{MemberView, Membership};
pub use placement::wait_for_placement;
