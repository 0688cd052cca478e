//! Each network in a file of its own: how its blocks are wired.
//!
//! A new network is a file here and a variant of the job's `Model` (`job/src/settings/model.rs`); the compiler then names the places that
//! ask which network it is. Its tensors, sizes, µP, memory, streamed layers, libtorch's forward and the step without autograd follow from
//! the wiring. A block that does not exist yet is a variant of [`crate::wiring::Block`], its tensors there, its step in
//! `network/src/step`, and its forward for autograd in `dense-worker/torch/src/networks`.

mod bst;
mod dcnv2;
mod deepfm;
mod din;
mod dlrm;
mod ffnn;
mod finalmlp;
mod tasks;
mod wide_deep;
mod wukong;

pub use bst::{BstForm, bst};
pub use dcnv2::dcnv2;
pub use deepfm::deepfm;
pub use din::{DinForm, din};
pub use dlrm::dlrm;
pub use ffnn::ffnn;
pub use finalmlp::{GateForm, finalmlp};
pub use tasks::{PleForm, mmoe, ple, shared_bottom};
pub use wide_deep::wide_deep;
pub use wukong::{WukongForm, wukong};
