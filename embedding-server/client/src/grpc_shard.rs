//! An embedding server in another process, called over gRPC.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderMap;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use zagros_plumbing::Deadline;
use zagros_plumbing::grpc::unary::{self, OutgoingMessage};
use zagros_plumbing::grpc::{self, InvalidAddress, MAX_CONTROL_BYTES};
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse, ServerEntry,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::{Refusal, RunId};
use zagros_transport::control::storage_client::StorageClient;
use zagros_transport::headers::{HINT, LOOKUP, PUSH};
use zagros_transport::{Credentials, PeerRole, open_channel, refusal_of, stamp_run, stamp_server};

use crate::Shard;

/// A save or load writes or reads every row of a server, which takes minutes for a large table on a slow disk.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Tonic ends a call as well, after the time in the header. The call's own deadline comes first: its error says what was
/// waited for, and for how long.
const OWN_FIRST: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub struct GrpcShard {
    name: String,
    call_timeout: Duration,
    /// The headers of every request: the run (invariant MB-2), and the instance of the server process.
    headers: HeaderMap,
    embedding: Channel,
    storage: StorageClient<Channel>,
}

impl GrpcShard {
    /// Prepares calls to the server at `entry.address`, for the run that the server belongs to. A lookup or push ends at
    /// its deadline, which the request carries. A save or load ends after an hour, any other call after `call_timeout`.
    /// A call connects if there is no working connection. Each connection proves what `credentials` says.
    pub fn connect(
        entry: &ServerEntry,
        call_timeout: Duration,
        credentials: &Credentials,
    ) -> Result<Arc<dyn Shard>, Refusal> {
        let name = format!("embedding server {} ({})", entry.index, entry.address);
        let bad = |error: InvalidAddress| Refusal::invalid(format!("embedding server {}: {error}", entry.index));
        // A connection of their own: a long save does not use the data path's flow-control window.
        let embedding = open_channel(&entry.address, credentials, PeerRole::EmbeddingServer).map_err(bad)?;
        let storage = open_channel(&entry.address, credentials, PeerRole::EmbeddingServer).map_err(bad)?;
        let storage = StorageClient::new(storage);
        let storage = storage.max_decoding_message_size(MAX_CONTROL_BYTES).max_encoding_message_size(MAX_CONTROL_BYTES);
        let mut headers = HeaderMap::new();
        stamp_run(RunId(entry.run), &mut headers);
        stamp_server(entry.instance, &mut headers);
        Ok(Arc::new(Self { name, call_timeout, headers, embedding, storage }))
    }

    fn call_storage<'a, Q, A: 'a, F: Future<Output = Result<Response<A>, Status>> + Send + 'a>(
        &self,
        timeout: Duration,
        message: Q,
        call: impl FnOnce(StorageClient<Channel>, Request<Q>) -> F,
    ) -> BoxFuture<'a, Result<A, Refusal>> {
        let mut request = Request::new(message);
        request.metadata_mut().as_mut().extend(self.headers.clone());
        let answer = call(self.storage.clone(), request);
        bound_call(Deadline::from_now(timeout), async { answer.await.map(Response::into_inner) })
    }

    /// A call of the data path, whose long fields are not copied.
    fn call_unary<'a, Q: Message + 'a, A: Message + Default + 'a>(
        &self,
        path: &'static str,
        message: OutgoingMessage<Q>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<A, Refusal>> {
        // A clone shares the connection. A call needs `&mut self`.
        let (mut channel, mut headers) = (self.embedding.clone(), self.headers.clone());
        grpc::state_timeout(&mut headers, deadline.time_left().saturating_add(OWN_FIRST));
        bound_call(deadline, async move {
            unary::call(&mut channel, PathAndQuery::from_static(path), headers, message).await
        })
    }
}

fn bound_call<'a, T: 'a>(
    deadline: Deadline,
    call: impl Future<Output = Result<T, Status>> + Send + 'a,
) -> BoxFuture<'a, Result<T, Refusal>> {
    async move {
        let answer = deadline.bound(call).await.map_err(Refusal::no_answer)?;
        answer.map_err(refusal_of)
    }
    .boxed()
}

impl Shard for GrpcShard {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup(&self, mut request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        let payloads = request.take_payloads();
        self.call_unary(LOOKUP, OutgoingMessage::new(request, payloads), deadline)
    }

    fn push(&self, mut request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        let payloads = request.take_payloads();
        self.call_unary(PUSH, OutgoingMessage::new(request, payloads), deadline)
    }

    fn hint(&self, mut request: HintRequest, deadline: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        let payloads = request.take_payloads();
        self.call_unary(HINT, OutgoingMessage::new(request, payloads), deadline)
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.call_storage(
            self.call_timeout,
            request,
            |mut client, request| async move { client.describe(request).await },
        )
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.call_storage(STORAGE_TIMEOUT, request, |mut client, request| async move { client.save(request).await })
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.call_storage(STORAGE_TIMEOUT, request, |mut client, request| async move { client.load(request).await })
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        self.call_storage(self.call_timeout, request, |mut client, request| async move { client.forget(request).await })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tonic::transport::server::TcpIncoming;
    use zagros_protocol::RefusalKind;
    use zagros_transport::datapath::embedding_server::{Embedding, EmbeddingServer};
    use zagros_transport::status_of;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// A server of generated code. It answers a lookup with its ids, and refuses every push.
    struct Generated;

    #[tonic::async_trait]
    impl Embedding for Generated {
        async fn lookup(&self, request: Request<LookupRequest>) -> Result<Response<LookupResponse>, Status> {
            let LookupRequest { ids, encoding, .. } = request.into_inner();
            Ok(Response::new(LookupResponse { rows: ids, encoding, created: 7, late: 2 }))
        }

        async fn push(&self, _: Request<PushRequest>) -> Result<Response<PushResponse>, Status> {
            Err(status_of(Refusal::new(RefusalKind::Moved, "not mine")))
        }

        async fn hint(&self, request: Request<HintRequest>) -> Result<Response<HintResponse>, Status> {
            Ok(Response::new(HintResponse { ready: request.into_inner().ids.len() as u64 }))
        }
    }

    #[tokio::test]
    async fn calls_are_those_of_a_generated_service() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = grpc::server_builder().add_service(EmbeddingServer::new(Generated));
        let serving = tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
        let entry = ServerEntry { index: 3, address, ..ServerEntry::default() };
        let shard = GrpcShard::connect(&entry, TIMEOUT, &Credentials::Open).unwrap();
        // Sizes from zero to nearly the largest message that a generated server reads.
        for ids in [0, 8, 80_000, 2_000_000] {
            let ids = Bytes::from_iter((0..ids).map(|byte| byte as u8));
            let request = LookupRequest { generation: 5, ids: ids.clone(), encoding: 3, ..Default::default() };
            let answer = shard.lookup(request, Deadline::from_now(TIMEOUT)).await.unwrap();
            assert_eq!(answer, LookupResponse { rows: ids.clone(), encoding: 3, created: 7, late: 2 });
            let hint = HintRequest { generation: 5, ids: ids.clone(), ..Default::default() };
            let answer = shard.hint(hint, Deadline::from_now(TIMEOUT)).await.unwrap();
            assert_eq!(answer.ready, ids.len() as u64);
            let push = PushRequest { seq: 1, gradients: ids.clone(), ids, ..Default::default() };
            let refusal = shard.push(push, Deadline::from_now(TIMEOUT)).await.unwrap_err();
            assert_eq!(refusal, Refusal::new(RefusalKind::Moved, "not mine"));
        }
        serving.abort();
    }

    #[tokio::test]
    async fn a_server_that_was_away_is_reached_again() {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let entry = ServerEntry { index: 3, address: address.clone(), ..ServerEntry::default() };
        let shard = GrpcShard::connect(&entry, Duration::from_secs(5), &Credentials::Open).unwrap();
        assert_eq!(shard.name(), format!("embedding server 3 ({address})"));
        let refusal = shard.describe(DescribeRequest {}).await.unwrap_err();
        assert!(refusal.kind.is_retryable(), "{refusal:?}");
    }

    #[tokio::test]
    async fn a_call_of_a_silent_server_ends_at_its_deadline() {
        // The listener accepts connections into its backlog and never answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let entry = ServerEntry { index: 3, address, ..ServerEntry::default() };
        let timeout = Duration::from_millis(50);
        let shard = GrpcShard::connect(&entry, TIMEOUT, &Credentials::Open).unwrap();
        let refusal = shard.lookup(LookupRequest::default(), Deadline::from_now(timeout)).await.unwrap_err();
        // On a busy machine the time that is left when the call begins is less.
        assert_eq!(refusal.kind, RefusalKind::Deadline, "{refusal}");
    }

    #[test]
    fn a_malformed_address_is_refused_with_the_servers_index() {
        let entry = ServerEntry { index: 3, address: "no address".to_owned(), ..ServerEntry::default() };
        let refused = GrpcShard::connect(&entry, Duration::from_secs(1), &Credentials::Open).err().unwrap();
        assert_eq!(refused.kind, zagros_protocol::RefusalKind::Invalid);
        assert!(refused.message.contains("embedding server 3") && refused.message.contains("no address"), "{refused}");
    }
}
