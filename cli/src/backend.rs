//! What of this program needs libtorch, and what it does in its place.

#[cfg(not(feature = "torch"))]
mod plain;
#[cfg(feature = "torch")]
mod torch;

#[cfg(not(feature = "torch"))]
pub(crate) use plain::{backend, check, rendezvous};
#[cfg(feature = "torch")]
pub(crate) use torch::{backend, check, rendezvous};
