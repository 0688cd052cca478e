//! The other side of a crate under test. Each kind of fake exists once, here.
//!
//! A crate that this one depends on uses it from its `tests/` folder: in its unit tests the traits would be those of
//! another build of the crate.

mod cold_store;
mod control_plane;
mod in_process;
pub mod jobs;
pub mod s3;
mod shard;
#[cfg(test)]
#[path = "../../../dense-worker/collective/src/testing.rs"]
mod testing;

pub use cold_store::MemoryColdStore;
pub use control_plane::{AnswerScript, FakeControlPlane, LEASE};
pub use in_process::InProcess;
pub use shard::{FakeShard, ScriptedFault, added, row_value};
