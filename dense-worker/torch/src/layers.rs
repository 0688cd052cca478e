//! The layers that networks are made of, and what lends them their weights and buffers.

mod buffers;
mod hidden;
mod layer_calls;
mod mlp;
mod numeric_embedding;

pub(super) use buffers::{ModuleBuffers, is_number};
pub(super) use hidden::{Dice, LayerNorm, LentBuffers};
pub(super) use layer_calls::{LayerCalls, LayerNumber};
pub(super) use mlp::{BlockTensors, LinearLayer, Mlp, ValuesPlace, WeightBuilder};
pub(super) use numeric_embedding::NumericEmbeddings;
