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

pub(super) use dcnv2::{CrossMatrix, Dcnv2};
pub(super) use deepfm::DeepFm;
pub(super) use dlrm::Dlrm;
pub(super) use finalmlp::{BilinearFusion, FinalMlp, StreamGate};
pub(super) use network::{BuiltNetwork, DenseNetwork, Ffnn};
pub use shape::{AttentionShape, InputShape, SequenceShape};
pub(super) use tasks::{ExpertGate, PleLevel, SharedLayers, TasksNetwork};
pub(super) use wide_deep::WideDeep;
