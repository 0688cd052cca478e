//! Moves over gRPC: what a source serves, and how a target calls it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderMap;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use zagros_plumbing::Deadline;
use zagros_plumbing::grpc::MAX_CONTROL_BYTES;
use zagros_protocol::control::{
    BeginMoveRequest, BeginMoveResponse, FreezeMoveRequest, FreezeMoveResponse, MoveRowsRequest, MoveRowsResponse,
    ServerEntry,
};
use zagros_protocol::{Refusal, RunId};
use zagros_transport::control::migration_client::MigrationClient;
use zagros_transport::control::migration_server::{Migration, MigrationServer};
use zagros_transport::{Credentials, PeerRole, open_channel, refusal_of, stamp_run, stamp_server, status_of};

use super::incoming::MoveSource;
use super::{begin_copy, freeze_source, next_rows};
use crate::EmbeddingService;
use crate::control::RunCheck;

pub(crate) struct MigrationAdapter {
    service: Arc<EmbeddingService>,
    guard: Arc<RunCheck>,
}

/// Serves targets of the run that `guard` accepts.
pub(crate) fn migration_service(
    service: Arc<EmbeddingService>,
    guard: Arc<RunCheck>,
) -> MigrationServer<MigrationAdapter> {
    let server = MigrationServer::new(MigrationAdapter { service, guard });
    server.max_decoding_message_size(MAX_CONTROL_BYTES).max_encoding_message_size(MAX_CONTROL_BYTES)
}

impl MigrationAdapter {
    async fn run_blocking<Q: Send + 'static, T: Send + 'static>(
        &self,
        request: Request<Q>,
        work: impl FnOnce(&EmbeddingService, Q) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        self.guard.check_request(request.metadata().as_ref()).map_err(status_of)?;
        let request = request.into_inner();
        let done = self.service.run_blocking("a part of a move ended", move |service| work(service, request)).await;
        done.map(Response::new).map_err(status_of)
    }
}

#[tonic::async_trait]
impl Migration for MigrationAdapter {
    async fn begin_move(&self, request: Request<BeginMoveRequest>) -> Result<Response<BeginMoveResponse>, Status> {
        self.run_blocking(request, |service, request| begin_copy(service, request.bucket_move)).await
    }

    async fn move_rows(&self, request: Request<MoveRowsRequest>) -> Result<Response<MoveRowsResponse>, Status> {
        self.run_blocking(request, |service, request| next_rows(service, request.bucket_move, request.number)).await
    }

    async fn freeze_move(&self, request: Request<FreezeMoveRequest>) -> Result<Response<FreezeMoveResponse>, Status> {
        self.run_blocking(request, |service, request| freeze_source(service, request.bucket_move)).await
    }
}

pub(crate) struct GrpcMoveSource {
    bucket_move: u64,
    headers: HeaderMap,
    client: MigrationClient<Channel>,
    timeout: Duration,
}

impl GrpcMoveSource {
    /// Prepares calls to the server at `entry.address`. Each ends after `timeout`.
    pub(crate) fn connect(
        entry: &ServerEntry,
        bucket_move: u64,
        timeout: Duration,
        credentials: &Credentials,
    ) -> Result<Self, Refusal> {
        let channel = open_channel(&entry.address, credentials, PeerRole::EmbeddingServer);
        let channel =
            channel.map_err(|error| Refusal::invalid(format!("embedding server {}: {error}", entry.index)))?;
        let client = MigrationClient::new(channel).max_decoding_message_size(MAX_CONTROL_BYTES);
        let mut headers = HeaderMap::new();
        stamp_run(RunId(entry.run), &mut headers);
        stamp_server(entry.instance, &mut headers);
        Ok(Self { bucket_move, headers, client, timeout })
    }

    fn stamped_request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().as_mut().extend(self.headers.clone());
        request
    }

    async fn bound_call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>> + Send,
    ) -> Result<T, Refusal> {
        let answer = Deadline::from_now(self.timeout).bound(call).await.map_err(Refusal::no_answer)?;
        answer.map(Response::into_inner).map_err(refusal_of)
    }
}

impl MoveSource for GrpcMoveSource {
    fn begin_copy(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        let (mut client, request) =
            (self.client.clone(), self.stamped_request(BeginMoveRequest { bucket_move: self.bucket_move }));
        async move { self.bound_call(client.begin_move(request)).await.map(|_| ()) }.boxed()
    }

    fn next_rows(&self, number: u64) -> BoxFuture<'_, Result<MoveRowsResponse, Refusal>> {
        let request = self.stamped_request(MoveRowsRequest { bucket_move: self.bucket_move, number });
        let mut client = self.client.clone();
        async move { self.bound_call(client.move_rows(request)).await }.boxed()
    }

    fn freeze(&self) -> BoxFuture<'_, Result<FreezeMoveResponse, Refusal>> {
        let request = self.stamped_request(FreezeMoveRequest { bucket_move: self.bucket_move });
        let mut client = self.client.clone();
        async move { self.bound_call(client.freeze_move(request)).await }.boxed()
    }
}
