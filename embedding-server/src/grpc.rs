//! tonic adapters: take a decoded message, call the shard, hand back the answer.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use zagros_embedding_client::Shard;
use zagros_plumbing::grpc::MAX_MESSAGE_BYTES;
use zagros_protocol::control::storage_server::{Storage, StorageServer};
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::embedding_server::{Embedding, EmbeddingServer};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};

/// A shard behind both services.
#[derive(Clone)]
pub(crate) struct Adapter(pub(crate) Arc<dyn Shard>);

impl Adapter {
    pub(crate) fn embedding(&self) -> EmbeddingServer<Self> {
        EmbeddingServer::new(self.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    pub(crate) fn storage(&self) -> StorageServer<Self> {
        StorageServer::new(self.clone())
    }
}

#[tonic::async_trait]
impl Embedding for Adapter {
    async fn lookup(&self, request: Request<LookupRequest>) -> Result<Response<LookupResponse>, Status> {
        Ok(Response::new(self.0.lookup(request.into_inner()).await?))
    }

    async fn push(&self, request: Request<PushRequest>) -> Result<Response<PushResponse>, Status> {
        Ok(Response::new(self.0.push(request.into_inner()).await?))
    }
}

#[tonic::async_trait]
impl Storage for Adapter {
    async fn describe(&self, request: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        Ok(Response::new(self.0.describe(request.into_inner()).await?))
    }

    async fn save(&self, request: Request<SaveRequest>) -> Result<Response<SaveResponse>, Status> {
        Ok(Response::new(self.0.save(request.into_inner()).await?))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        Ok(Response::new(self.0.load(request.into_inner()).await?))
    }
}
