//! How a role joins a run, keeps its lease and gets its work.

pub mod control_plane;

pub use control_plane::ControlPlane;
