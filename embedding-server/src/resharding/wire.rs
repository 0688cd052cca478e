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

    fn call<'a, Q, A: 'a, F: Future<Output = Result<Response<A>, Status>> + Send + 'a>(
        &self,
        message: Q,
        call: impl FnOnce(MigrationClient<Channel>, Request<Q>) -> F,
    ) -> BoxFuture<'a, Result<A, Refusal>> {
        let mut request = Request::new(message);
        request.metadata_mut().as_mut().extend(self.headers.clone());
        let (deadline, answer) = (Deadline::from_now(self.timeout), call(self.client.clone(), request));
        async move {
            let answer = deadline.bound(answer).await.map_err(Refusal::no_answer)?;
            answer.map(Response::into_inner).map_err(refusal_of)
        }
        .boxed()
    }
}

impl MoveSource for GrpcMoveSource {
    fn begin_copy(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        let begin = BeginMoveRequest { bucket_move: self.bucket_move };
        self.call(begin, |mut client, request| async move {
            client.begin_move(request).await.map(|answer| answer.map(|_| ()))
        })
    }

    fn next_rows(&self, number: u64) -> BoxFuture<'_, Result<MoveRowsResponse, Refusal>> {
        let rows = MoveRowsRequest { bucket_move: self.bucket_move, number };
        self.call(rows, |mut client, request| async move { client.move_rows(request).await })
    }

    fn freeze(&self) -> BoxFuture<'_, Result<FreezeMoveResponse, Refusal>> {
        let freeze = FreezeMoveRequest { bucket_move: self.bucket_move };
        self.call(freeze, |mut client, request| async move { client.freeze_move(request).await })
    }
}
