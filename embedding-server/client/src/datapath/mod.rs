//! What runs once per batch over every id of it. No I/O besides the calls themselves, no info log, no allocation
//! per row.

mod client;
mod dedup;
mod route;
mod window;

pub use client::{ClientConfig, EmbeddingClient, PushReport, Rows};
pub use dedup::{Deduplicator, FeatureIds, TableIds, UniqueIds};
pub use window::{Permit, Window};
