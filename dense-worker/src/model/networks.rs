//! The kinds of dense networks, the shape of what they read, and their construction from a job.

mod bst;
mod dcnv2;
mod deepfm;
mod din;
mod dlrm;
mod finalmlp;
mod network;
mod sequence_head;
mod shape;
mod tasks;
mod torchscript;
mod wide_deep;
mod wukong;

pub(super) use network::{BuiltNetwork, DenseNetwork};
pub use shape::{AttentionShape, InputShape, SequenceShape};
