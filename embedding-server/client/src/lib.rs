//! What a worker links to reach the embedding servers: deduplicate, route, look up, push, window.

mod datapath;
mod directory;
mod errors;
mod grpc_shard;
mod metrics;
mod placement;
pub mod shard;
mod storage;
#[cfg(test)]
mod testing;

pub use datapath::{
    Bags, Batch, ClientConfig, Deduplicator, EmbeddingClient, FeatureIds, Permit, PushReport, RoutedIds, Rows,
    TableIds, UniqueIds, Waiting, Window, bag_bytes,
};
pub use errors::ClientError;
pub use grpc_shard::GrpcShard;
pub use placement::Connect;
pub use shard::Shard;
