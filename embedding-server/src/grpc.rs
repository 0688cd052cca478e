//! The adapters to gRPC: they decode a message, call the shard and encode its answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;
use zagros_embedding_client::Shard;
use zagros_plumbing::grpc::MAX_CONTROL_BYTES;
use zagros_plumbing::grpc::unary::{self, OutgoingMessage};
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_transport::control::storage_server::{Storage, StorageServer};
use zagros_transport::datapath::embedding_server::SERVICE_NAME;
use zagros_transport::paths::{LOOKUP, PUSH};
use zagros_transport::status_of;

use crate::control::{RunCheck, StorageFolders};

/// A shard behind both gRPC services.
#[derive(Clone)]
pub(crate) struct Adapter {
    shard: Arc<dyn Shard>,
    guard: Arc<RunCheck>,
    roots: Arc<StorageFolders>,
}

/// The data path. It speaks the protocol of a generated service, but copies less.
#[derive(Clone)]
pub(crate) struct Embedding(Adapter);

impl Adapter {
    /// Serves requests that `guard` accepts. Saves and loads use the folders `roots` only.
    pub(crate) fn new(shard: Arc<dyn Shard>, guard: Arc<RunCheck>, roots: StorageFolders) -> Self {
        Self { shard, guard, roots: Arc::new(roots) }
    }

    pub(crate) fn embedding(&self) -> Embedding {
        Embedding(self.clone())
    }

    pub(crate) fn storage(&self) -> StorageServer<Self> {
        let server = StorageServer::new(self.clone());
        server.max_decoding_message_size(MAX_CONTROL_BYTES).max_encoding_message_size(MAX_CONTROL_BYTES)
    }

    fn admitted<T>(&self, request: tonic::Request<T>) -> Result<T, Status> {
        self.guard.check(request.metadata().as_ref()).map_err(status_of)?;
        Ok(request.into_inner())
    }
}

impl NamedService for Embedding {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<Request<Body>> for Embedding {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Adapter { shard, guard, .. } = self.0.clone();
        let answered = async move {
            if let Err(refusal) = guard.check(request.headers()) {
                return status_of(refusal).into_http();
            }
            match request.uri().path() {
                LOOKUP => unary::answer(request, |message| lookup(shard, message)).await,
                PUSH => unary::answer(request, |message| push(shard, message)).await,
                other => Status::unimplemented(format!("this server has no call {other}")).into_http(),
            }
        };
        answered.map(Ok).boxed()
    }
}

async fn lookup(shard: Arc<dyn Shard>, request: LookupRequest) -> Result<OutgoingMessage<LookupResponse>, Status> {
    let mut answer = shard.lookup(request).await.map_err(status_of)?;
    let payloads = answer.take_payloads();
    Ok(OutgoingMessage::new(answer, payloads))
}

async fn push(shard: Arc<dyn Shard>, request: PushRequest) -> Result<OutgoingMessage<PushResponse>, Status> {
    Ok(OutgoingMessage::new(shard.push(request).await.map_err(status_of)?, []))
}

#[tonic::async_trait]
impl Storage for Adapter {
    async fn describe(
        &self,
        request: tonic::Request<DescribeRequest>,
    ) -> Result<tonic::Response<DescribeResponse>, Status> {
        Ok(tonic::Response::new(self.shard.describe(self.admitted(request)?).await.map_err(status_of)?))
    }

    async fn save(&self, request: tonic::Request<SaveRequest>) -> Result<tonic::Response<SaveResponse>, Status> {
        let request = self.admitted(request)?;
        self.roots.check(&request.folder).map_err(status_of)?;
        Ok(tonic::Response::new(self.shard.save(request).await.map_err(status_of)?))
    }

    async fn load(&self, request: tonic::Request<LoadRequest>) -> Result<tonic::Response<LoadResponse>, Status> {
        let request = self.admitted(request)?;
        self.roots.check(&request.folder).map_err(status_of)?;
        Ok(tonic::Response::new(self.shard.load(request).await.map_err(status_of)?))
    }
}
