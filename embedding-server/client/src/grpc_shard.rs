//! An embedding server across gRPC.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tonic::transport::Channel;
use tonic::{Response, Status};
use zagros_plumbing::Deadline;
use zagros_plumbing::grpc::{self, BadAddress, MAX_MESSAGE_BYTES};
use zagros_protocol::Refusal;
use zagros_protocol::control::storage_client::StorageClient;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse, ServerEntry,
};
use zagros_protocol::datapath::embedding_client::EmbeddingClient;
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};

use crate::Shard;

/// Saving or loading writes or reads every row a server holds: minutes for a large table on a slow disk.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(3600);

/// An embedding server in another process.
#[derive(Clone, Debug)]
pub struct GrpcShard {
    name: String,
    call_timeout: Duration,
    embedding: EmbeddingClient<Channel>,
    storage: StorageClient<Channel>,
}

impl GrpcShard {
    /// Prepares calls to the server at `entry.address`. A lookup or push ends after `call_timeout`, a save or load
    /// after an hour. Connections are made by the first call and made again when they break.
    ///
    /// # Errors
    /// [`zagros_protocol::RefusalKind::Invalid`] when the address does not parse.
    pub fn connect(entry: &ServerEntry, call_timeout: Duration) -> Result<Arc<dyn Shard>, Refusal> {
        let name = format!("embedding server {} ({})", entry.index, entry.address);
        let bad = |error: BadAddress| Refusal::invalid(format!("embedding server {}: {error}", entry.index));
        // Two connections, so that a long save does not share the data path's flow-control window.
        let embedding = grpc::channel(&entry.address).map_err(bad)?;
        let storage = grpc::channel(&entry.address).map_err(bad)?;
        Ok(Arc::new(Self {
            name,
            call_timeout,
            embedding: EmbeddingClient::new(embedding)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            storage: StorageClient::new(storage),
        }))
    }

    fn bounded<'a, T: 'a>(
        &'a self,
        within: Duration,
        call: impl Future<Output = Result<Response<T>, Status>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Refusal>> {
        async move {
            let answer = Deadline::after(within).bound(call).await.map_err(Refusal::no_answer)?;
            answer.map(Response::into_inner).map_err(Refusal::from)
        }
        .boxed()
    }
}

impl Shard for GrpcShard {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup(&self, request: LookupRequest) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        // A clone shares the connection; the generated methods want `&mut self`.
        let mut client = self.embedding.clone();
        self.bounded(self.call_timeout, async move { client.lookup(request).await })
    }

    fn push(&self, request: PushRequest) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        let mut client = self.embedding.clone();
        self.bounded(self.call_timeout, async move { client.push(request).await })
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        let mut client = self.storage.clone();
        self.bounded(self.call_timeout, async move { client.describe(request).await })
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        let mut client = self.storage.clone();
        self.bounded(STORAGE_TIMEOUT, async move { client.save(request).await })
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        let mut client = self.storage.clone();
        self.bounded(STORAGE_TIMEOUT, async move { client.load(request).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_gone_may_come_back() {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let entry = ServerEntry { index: 3, address: address.clone(), incarnation: 1, alive: true };
        let shard = GrpcShard::connect(&entry, Duration::from_secs(5)).unwrap();
        assert_eq!(shard.name(), format!("embedding server 3 ({address})"));
        let refusal = shard.describe(DescribeRequest {}).await.unwrap_err();
        assert!(refusal.kind.is_retryable(), "{refusal:?}");
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up_after_the_time_it_had() {
        // Accepts connections into its backlog and never answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let entry = ServerEntry { index: 3, address, incarnation: 1, alive: true };
        let within = Duration::from_millis(50);
        let shard = GrpcShard::connect(&entry, within).unwrap();
        let refusal = shard.lookup(LookupRequest::default()).await.unwrap_err();
        assert_eq!(refusal, Refusal::no_answer(within));
    }

    #[test]
    fn text_that_is_no_address_is_refused_with_the_servers_index() {
        let entry = ServerEntry { index: 3, address: "no address".to_owned(), ..ServerEntry::default() };
        let refused = GrpcShard::connect(&entry, Duration::from_secs(1)).err().unwrap();
        assert_eq!(refused.kind, zagros_protocol::RefusalKind::Invalid);
        assert!(refused.message.contains("embedding server 3") && refused.message.contains("no address"), "{refused}");
    }
}
