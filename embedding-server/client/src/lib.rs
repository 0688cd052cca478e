//! What a worker links to reach the embedding servers: deduplicate, route, look up, push, window.
//!
//! Performance-critical: `dedup`, `route` and `client` run once per batch over every id of it. No I/O besides the
//! calls themselves, no info log, no allocation per row.

mod client;
mod dedup;
mod directory;
mod errors;
mod flat;
mod grpc_shard;
mod metrics;
mod placement;
mod route;
pub mod shard;
#[cfg(test)]
mod testing;
mod window;

pub use client::{ClientConfig, EmbeddingClient, PushReport, Rows};
pub use dedup::{Deduplicator, FeatureIds, TableIds, UniqueIds};
pub use errors::ClientError;
pub use grpc_shard::GrpcShard;
pub use placement::Connect;
pub use shard::Shard;
pub use window::{Permit, Window};
