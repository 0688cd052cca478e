//! One embedding server as its caller sees it: across gRPC, or in the same process with no socket.

use futures::future::BoxFuture;
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};

/// An embedding server. A lookup or push ends by its deadline: the caller gives up then, and the server stops waiting for
/// whatever the request waits for. Every other call ends within the time that its maker was given.
pub trait Shard: Send + Sync {
    /// For messages: `embedding server 1 (127.0.0.1:7701)`.
    fn name(&self) -> &str;
    /// Rows for ids.
    fn lookup(&self, request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>>;
    /// Gradients for ids.
    fn push(&self, request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>>;
    /// Rows and bytes per table.
    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>>;
    /// Write all rows.
    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>>;
    /// Take rows from a saved model.
    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>>;
}
