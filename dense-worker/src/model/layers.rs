//! The layers that networks are made of, and what lends them their weights and buffers.

mod batch_norm;
mod buffers;
mod dice;
mod dropout;
mod hidden;
mod layer_calls;
mod mlp;
mod numeric_embedding;

pub(super) use batch_norm::LentBuffers;
pub(super) use buffers::{ModuleBuffers, is_number};
pub(super) use dice::Dice;
pub(super) use dropout::UnitDropout;
pub(super) use hidden::LayerNorm;
pub(super) use layer_calls::{LayerCalls, LayerNumber};
pub(super) use mlp::{LinearLayer, MadeBeside, Mlp, ValuesPlace, WeightBuilder, parse_widths};
pub(super) use numeric_embedding::NumericEmbeddings;
