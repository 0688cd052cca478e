//! The client of the embedding servers, for workers: deduplicate, route, look up, push, staleness window.

mod datapath;
mod errors;
mod grpc_shard;
mod metrics;
mod placement;
pub mod push_record;
mod storage;
#[cfg(test)]
mod testing;

use futures::future::BoxFuture;
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};

pub use datapath::{
    AfterPushes, BatchRows, ClientConfig, Deduplicator, EmbeddingClient, FeatureIds, LookupAnswers,
    PushAcknowledgement, PushedBatch, RequestReach, RoutedIds, StalenessWindow, TableBags, TableIds,
    UnansweredRequests, UniqueIds, WindowPermit, bag_bytes,
};
pub use errors::ClientError;
pub use grpc_shard::GrpcShard;
pub use metrics::LookaheadCounts;
pub use placement::Connect;

/// An embedding server as its caller sees it: over gRPC, or in the same process without a socket. A lookup, push or hint
/// ends at its deadline: the caller gives up, and the server stops waiting for the request. Every other call ends within a timeout that the constructor sets.
pub trait Shard: Send + Sync {
    /// Name for messages, such as `embedding server 1 (127.0.0.1:7701)`.
    fn name(&self) -> &str;
    fn lookup(&self, request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>>;
    fn push(&self, request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>>;
    /// Pages in rows that a later batch needs.
    fn hint(&self, request: HintRequest, deadline: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>>;
    /// Reports rows and bytes per table.
    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>>;
    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>>;
    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>>;
    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>>;
}
