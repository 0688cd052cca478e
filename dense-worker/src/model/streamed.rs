//! Weights that are elsewhere: a window of layers that are here, and the exchange of their gradients.

mod exchange;
mod layer_values;
mod variables;
mod window;

pub(super) use exchange::StreamedExchange;
pub use layer_values::LayerValues;
pub(super) use variables::StreamedVariables;
pub use window::{GradientLimit, LayerStore, PendingLayer};
pub(super) use window::{LayerWindow, UseNumber};
pub use zagros_network::TraversalPurpose;
