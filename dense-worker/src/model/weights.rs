//! The weights of a network: in one piece of memory, as files, and taken over from other networks.

mod encoding;
mod flat;
mod matrix;
mod start;
mod state;

pub(super) use flat::FlatParameters;
pub(super) use matrix::{LINE, Matrix, values, values_mut};
pub use start::SameInputs;
