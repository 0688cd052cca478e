//! The weights of a network: in one piece of memory, as files, and taken over from other networks.

mod held;
mod saved;
mod start;
mod state;

pub(super) use held::HeldWeights;
pub use held::first_values;
pub use start::SameInputs;
