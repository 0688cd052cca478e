//! tonic adapters: take a decoded message, call the shard, hand back the answer.

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
use zagros_plumbing::grpc::unary::{self, Outgoing};
use zagros_protocol::control::storage_server::{Storage, StorageServer};
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::embedding_server::SERVICE_NAME;
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::payloads::{LOOKUP, PUSH};

/// A shard behind both services.
#[derive(Clone)]
pub(crate) struct Adapter(pub(crate) Arc<dyn Shard>);

/// The data path: as a generated service, without the copies that one makes.
#[derive(Clone)]
pub(crate) struct Embedding(Arc<dyn Shard>);

impl Adapter {
    pub(crate) fn embedding(&self) -> Embedding {
        Embedding(Arc::clone(&self.0))
    }

    pub(crate) fn storage(&self) -> StorageServer<Self> {
        StorageServer::new(self.clone())
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
        let shard = Arc::clone(&self.0);
        let answered = async move {
            match request.uri().path() {
                LOOKUP => unary::answer(request, |message| lookup(shard, message)).await,
                PUSH => unary::answer(request, |message| push(shard, message)).await,
                other => Status::unimplemented(format!("{other} is not a call of this server")).into_http(),
            }
        };
        answered.map(Ok).boxed()
    }
}

async fn lookup(shard: Arc<dyn Shard>, request: LookupRequest) -> Result<Outgoing<LookupResponse>, Status> {
    let mut answer = shard.lookup(request).await?;
    let payloads = answer.take_payloads();
    Ok(Outgoing::new(answer, payloads))
}

async fn push(shard: Arc<dyn Shard>, request: PushRequest) -> Result<Outgoing<PushResponse>, Status> {
    Ok(Outgoing::new(shard.push(request).await?, []))
}

#[tonic::async_trait]
impl Storage for Adapter {
    async fn describe(
        &self,
        request: tonic::Request<DescribeRequest>,
    ) -> Result<tonic::Response<DescribeResponse>, Status> {
        Ok(tonic::Response::new(self.0.describe(request.into_inner()).await?))
    }

    async fn save(&self, request: tonic::Request<SaveRequest>) -> Result<tonic::Response<SaveResponse>, Status> {
        Ok(tonic::Response::new(self.0.save(request.into_inner()).await?))
    }

    async fn load(&self, request: tonic::Request<LoadRequest>) -> Result<tonic::Response<LoadResponse>, Status> {
        Ok(tonic::Response::new(self.0.load(request.into_inner()).await?))
    }
}
