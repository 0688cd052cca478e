//! The client of the embedding servers, for workers: deduplicate, route, look up, push, staleness window.

mod datapath;
mod errors;
mod grpc_shard;
mod metrics;
mod placement;
mod placement_cache;
pub mod push_record;
pub mod shard;
mod storage;
#[cfg(test)]
mod testing;

pub use datapath::{
    AfterPushes, BatchRows, ClientConfig, Deduplicator, EmbeddingClient, FeatureIds, LookupAnswers,
    PushAcknowledgement, PushedBatch, RequestReach, RoutedIds, StalenessWindow, TableBags, TableIds,
    UnansweredRequests, UniqueIds, WindowPermit, bag_bytes,
};
pub use errors::ClientError;
pub use grpc_shard::GrpcShard;
pub use metrics::LookAheadCounts;
pub use placement::Connect;
pub use shard::Shard;
