//! A job's network by libtorch: its blocks, and their forward for autograd and scoring.

mod block;
mod cross;
mod factor_layer;
mod factors;
mod fusion;
mod network;
mod sequences;
mod torchscript;

pub(super) use network::{BuiltNetwork, DenseNetwork};
