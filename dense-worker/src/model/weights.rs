//! The weights of a network: in one piece of memory, as files, and taken over from other networks.

mod encoding;
mod flat;
mod flat_weights;
mod matrix;
mod saved_weights;
mod start;
mod state;

pub(super) use flat::FlatParameters;
pub(super) use matrix::{LINE, Matrix, values, values_mut};
pub use start::SameInputs;
