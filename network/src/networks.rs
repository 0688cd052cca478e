//! Networks: how the blocks of each are wired.
//!
//! A new network is a function here and a variant of the job's `Model` (`job/src/settings/model.rs`); the compiler then names the places that
//! ask which network it is. Its tensors, sizes, µP, memory, streamed layers, libtorch's forward and the step without autograd follow from
//! the wiring. A block that does not exist yet is a variant of [`crate::wiring::Block`], its tensors there, its step in
//! `network/src/step`, and its forward for autograd in `dense-worker/torch/src/networks`.

mod features;
mod finalmlp;
mod sequences;
mod tasks;
mod wukong;

pub use features::{dcnv2, deepfm, dlrm, ffnn, wide_deep};
pub use finalmlp::{GateForm, finalmlp};
pub use sequences::{bst, din};
pub use tasks::{mmoe, ple, shared_bottom};
pub use wukong::{WukongForm, wukong};
