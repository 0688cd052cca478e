//! Each network in a file of its own: how its blocks are wired.

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
