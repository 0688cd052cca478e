//! The adapters to gRPC: they decode a message, call the shard and encode its answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tower_service::Service;
use zagros_embedding_client::Shard;
use zagros_plumbing::Deadline;
use zagros_plumbing::grpc::unary::{self, OutgoingMessage};
use zagros_plumbing::grpc::{MAX_CONTROL_BYTES, stated_timeout};
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse,
};
use zagros_transport::control::storage_server::{Storage, StorageServer};
use zagros_transport::datapath::embedding_server::SERVICE_NAME;
use zagros_transport::headers::{HINT, LOOKUP, PUSH};
use zagros_transport::status_of;

use crate::control::{RunCheck, StorageFolders};

/// A shard behind both gRPC services.
#[derive(Clone)]
pub(crate) struct GrpcAdapter {
    shard: Arc<dyn Shard>,
    guard: Arc<RunCheck>,
    roots: Arc<StorageFolders>,
    /// The longest that a lookup or push may wait, and how long one waits that states nothing.
    timeout: Duration,
}

/// The data path. It speaks the protocol of a generated service, but copies less.
#[derive(Clone)]
pub(crate) struct EmbeddingEndpoint(GrpcAdapter);

impl GrpcAdapter {
    /// Serves requests that `guard` accepts. Saves and loads use the folders `roots` only. A lookup or push waits for
    /// `timeout` at most, or until the earlier deadline of its sender.
    pub(crate) fn new(shard: Arc<dyn Shard>, guard: Arc<RunCheck>, roots: StorageFolders, timeout: Duration) -> Self {
        Self { shard, guard, roots: Arc::new(roots), timeout }
    }

    pub(crate) fn routes(&self) -> Routes {
        Routes::new(self.embedding_service()).add_service(self.storage_service())
    }

    pub(crate) fn embedding_service(&self) -> EmbeddingEndpoint {
        EmbeddingEndpoint(self.clone())
    }

    pub(crate) fn storage_service(&self) -> StorageServer<Self> {
        let server = StorageServer::new(self.clone());
        server.max_decoding_message_size(MAX_CONTROL_BYTES).max_encoding_message_size(MAX_CONTROL_BYTES)
    }

    fn admit_request<T>(&self, request: tonic::Request<T>) -> Result<T, Status> {
        self.guard.check_request(request.metadata().as_ref()).map_err(status_of)?;
        Ok(request.into_inner())
    }
}

impl NamedService for EmbeddingEndpoint {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<Request<Body>> for EmbeddingEndpoint {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let GrpcAdapter { shard, guard, timeout, .. } = self.0.clone();
        // From here on, so that the time in which the message arrives counts.
        let stated = stated_timeout(request.headers()).unwrap_or(timeout);
        let deadline = Deadline::from_now(stated.min(timeout));
        let answered = async move {
            if let Err(refusal) = guard.check_request(request.headers()) {
                return status_of(refusal).into_http();
            }
            match request.uri().path() {
                LOOKUP => {
                    let work = |message| async move {
                        let mut answer = shard.lookup(message, deadline).await.map_err(status_of)?;
                        let payloads = answer.take_payloads();
                        Ok::<_, Status>(OutgoingMessage::new(answer, payloads))
                    };
                    unary::answer_call(request, work).await
                }
                PUSH => {
                    let work = |message| async move {
                        let answer = shard.push(message, deadline).await.map_err(status_of)?;
                        Ok::<_, Status>(OutgoingMessage::new(answer, []))
                    };
                    unary::answer_call(request, work).await
                }
                HINT => {
                    let work = |message| async move {
                        let answer = shard.hint(message, deadline).await.map_err(status_of)?;
                        Ok::<_, Status>(OutgoingMessage::new(answer, []))
                    };
                    unary::answer_call(request, work).await
                }
                other => Status::unimplemented(format!("this server has no call {other}")).into_http(),
            }
        };
        answered.map(Ok).boxed()
    }
}

#[tonic::async_trait]
impl Storage for GrpcAdapter {
    async fn describe(
        &self,
        request: tonic::Request<DescribeRequest>,
    ) -> Result<tonic::Response<DescribeResponse>, Status> {
        Ok(tonic::Response::new(self.shard.describe(self.admit_request(request)?).await.map_err(status_of)?))
    }

    async fn save(&self, request: tonic::Request<SaveRequest>) -> Result<tonic::Response<SaveResponse>, Status> {
        let request = self.admit_request(request)?;
        self.roots.check_folder(&request.folder).map_err(status_of)?;
        Ok(tonic::Response::new(self.shard.save(request).await.map_err(status_of)?))
    }

    async fn load(&self, request: tonic::Request<LoadRequest>) -> Result<tonic::Response<LoadResponse>, Status> {
        let request = self.admit_request(request)?;
        // A request that removes all rows names no folder.
        if !request.clear {
            self.roots.check_folder(&request.folder).map_err(status_of)?;
        }
        let names = request.files.iter().map(|file| file.name.as_str());
        self.roots.check_files(&request.folder, names).map_err(status_of)?;
        Ok(tonic::Response::new(self.shard.load(request).await.map_err(status_of)?))
    }

    async fn forget(&self, request: tonic::Request<ForgetRequest>) -> Result<tonic::Response<ForgetResponse>, Status> {
        Ok(tonic::Response::new(self.shard.forget(self.admit_request(request)?).await.map_err(status_of)?))
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::server::TcpIncoming;
    use zagros_embedding_client::GrpcShard;
    use zagros_plumbing::grpc;
    use zagros_protocol::control::ServerEntry;
    use zagros_protocol::{RefusalKind, RunId, ServerIndex};

    use super::*;
    use crate::LocalShard;
    use crate::testing::{HeldGate, job, later, placed, push_of, read};

    /// Of [`WAITS`] the server leaves half a second for its refusal.
    const WAITS: Duration = Duration::from_secs(4);

    /// The deadline crosses the wire: the server gives the request up before its sender does, and the sender hears why.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_sender_hears_what_its_request_waited_for() {
        let (service, run, instance) = (placed(1, 0), RunId(7), 8);
        let check = Arc::new(RunCheck::new(ServerIndex(0)));
        check.note_joined(run, instance);
        let roots = StorageFolders::new(&job(1), &[]).unwrap();
        let shard = Arc::new(LocalShard::new(Arc::clone(&service)));
        let adapter = GrpcAdapter::new(shard, check, roots, 10 * WAITS);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = grpc::server_builder().add_service(adapter.embedding_service());
        let serving = tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
        let entry = ServerEntry { index: 0, address, instance, run: run.0, ..ServerEntry::default() };
        let shard = GrpcShard::connect(&entry, WAITS, &zagros_transport::Credentials::Open).unwrap();

        let (first, request) = (read(&service, &[(1, &[5])]), push_of(&[(1, &[5])], 1, 0.5));
        let held = HeldGate::new(&service);
        let refusal = shard.push(request.clone(), Deadline::from_now(WAITS)).await.unwrap_err();
        drop(held);
        assert_eq!(refusal.kind, RefusalKind::Deadline);
        assert!(refusal.message.starts_with("embedding server 0: the request waited for a snapshot"), "{refusal}");
        assert_eq!(read(&service, &[(1, &[5])]), first);
        assert!(!shard.push(request, later()).await.unwrap().duplicate);
        assert_ne!(read(&service, &[(1, &[5])]), first);
        serving.abort();
    }
}
