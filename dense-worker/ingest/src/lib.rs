//! From files to batches: sources, parsers, transforms, splits, and the synthetic generator.

pub mod batch;

pub use batch::{Batch, Ids};
