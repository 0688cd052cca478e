//! Dense networks: blocks that are wired together ([`wiring`]), each with its tensors ([`layout`]) and its forward and backward
//! ([`step`]). A network is a function of [`networks`] that wires blocks.
//!
//! The crate holds no weights ([`LayerAccess`]). The products of training are a library's ([`ProductKernel`], [`GemmKernel`]), those of
//! scoring its own ([`DotsKernel`]).

mod dropout;
mod error;
mod kernel;
pub mod layout;
mod matrix;
pub mod networks;
mod read_inputs;
pub mod settings;
mod step;
pub mod wiring;

pub use dropout::{UnitDropout, apply_mask};
pub use error::{StepError, StepResult};
pub use kernel::{DotsKernel, GemmKernel, ProductKernel, RoundedCopies, RoundedProducts};
pub use matrix::{AlignedValues, LINE, Matrix, View, ViewMut};
pub use read_inputs::ReadInputs;
pub use step::{
    BatchShare, CHUNK, FlatLayers, HeldLayer, LayerAccess, OutputLoss, Step, StepForm, Traversal, TraversalPurpose,
};
