//! The weights of a network: in one piece of memory, as files, and taken over from other networks.

mod encoding;
mod flat;
mod slices;
mod start;
mod state;

pub(super) use flat::FlatParameters;
pub use start::SameInputs;
