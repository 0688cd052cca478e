//! Weights that are elsewhere: a window of layers that are here, and the exchange of their gradients.

mod exchange;
mod layer_values;
mod window;

pub(super) use exchange::StreamedExchange;
pub use layer_values::LayerValues;
pub use window::{GradientLimit, LayerStore, LayerWindow, PendingLayer, UseNumber};
pub use zagros_network::TraversalPurpose;
