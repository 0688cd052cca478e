//! A server's part in moves, as a member of the run: it starts the copy that it is the target of, and reports it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tracing::warn;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    FreezeMoveResponse, MoveRowsRequest, MoveRowsResponse, MoveStage, PlacementResponse, ReportMoveRequest,
    ReportMoveResponse, ServerEntry,
};
use zagros_protocol::{PackError, Refusal};
use zagros_transport::Credentials;

use super::incoming::CopyProgress;
use super::incoming_rows::{put_chunk, put_windows};
use super::wire::GrpcMoveSource;
use super::{
    AdoptedPlacement, CopyEnd, MoveReports, PlannedMove, adopt_placement, copy_buckets, next_rows, purge_strays,
};
use crate::EmbeddingService;

/// Starts what an adopted placement asks for. Dropping this value ends the copy, as the process does next.
pub(crate) struct MoveRunner {
    service: Arc<EmbeddingService>,
    control: Arc<dyn ControlPlane>,
    credentials: Credentials,
    member: u64,
    incarnation: u32,
    copying: Option<(u64, JoinHandle<CopyEnd>)>,
}

impl MoveRunner {
    pub(crate) fn new(
        service: Arc<EmbeddingService>,
        control: Arc<dyn ControlPlane>,
        credentials: Credentials,
        (member, incarnation): (u64, u32),
    ) -> Self {
        Self { service, control, credentials, member, incarnation, copying: None }
    }

    /// Starts a copy that is announced, once the one before has ended. Removes stray rows in the background.
    pub(crate) fn start_announced(&mut self, adopted: &AdoptedPlacement) {
        if adopted.has_strays {
            let service = Arc::clone(&self.service);
            drop(tokio::task::spawn_blocking(move || purge_strays(&service)));
        }
        if let Some((plan, source)) = &adopted.incoming {
            self.start_copy(plan, source);
        }
    }

    fn start_copy(&mut self, plan: &Arc<PlannedMove>, source: &ServerEntry) {
        if self.copying.as_ref().is_some_and(|(id, _)| *id == plan.id) {
            return;
        }
        let timeout = self.service.timeout;
        let source = match GrpcMoveSource::connect(source, plan.id, timeout, &self.credentials) {
            Ok(source) => Arc::new(source),
            Err(refusal) => return warn!(%plan, %refusal, "the source of a move cannot be called"),
        };
        let reports = Arc::new(CoordinatorReports {
            control: Arc::clone(&self.control),
            id: plan.id,
            member: self.member,
            incarnation: self.incarnation,
            timeout,
        });
        let (service, plan, id) = (Arc::clone(&self.service), Arc::clone(plan), plan.id);
        // A copy that is over may not know it yet: it puts no row in after the next has begun.
        let previous = self.copying.take();
        let copying = async move {
            if let Some((_, previous)) = previous {
                let _ = previous.await;
            }
            copy_buckets(service, plan, source, reports).await
        };
        self.copying = Some((id, tokio::spawn(copying)));
    }
}

impl Drop for MoveRunner {
    fn drop(&mut self) {
        if let Some((_, copying)) = &self.copying {
            copying.abort();
        }
    }
}

struct CoordinatorReports {
    control: Arc<dyn ControlPlane>,
    id: u64,
    member: u64,
    incarnation: u32,
    timeout: Duration,
}

impl MoveReports for CoordinatorReports {
    fn report(
        &self,
        stage: MoveStage,
        progress: CopyProgress,
        reason: String,
    ) -> BoxFuture<'_, Result<ReportMoveResponse, Refusal>> {
        let CopyProgress { rows, bytes, frozen } = progress;
        let request = ReportMoveRequest {
            member: self.member,
            incarnation: self.incarnation,
            bucket_move: self.id,
            stage: stage.into(),
            reason,
            rows,
            bytes,
            frozen_us: u64::try_from(frozen.as_micros()).unwrap_or(u64::MAX),
        };
        Box::pin(async move {
            let answer = Deadline::from_now(self.timeout).bound(self.control.report_move(request)).await;
            answer.map_err(Refusal::no_answer)?
        })
    }
}

/// The parts of a server in a move, called without gRPC.
///
/// A server and the move that a placement announces to it.
pub struct LocalMove {
    service: Arc<EmbeddingService>,
    incoming: Option<Arc<PlannedMove>>,
}

impl LocalMove {
    pub fn from_placement(service: Arc<EmbeddingService>, placement: &PlacementResponse) -> Result<Self, PackError> {
        let incoming = adopt_placement(&service, placement)?.and_then(|adopted| adopted.incoming).map(|(plan, _)| plan);
        Ok(Self { service, incoming })
    }

    /// The next rows, at the source.
    pub fn next_rows(&self, request: &MoveRowsRequest) -> Result<MoveRowsResponse, Refusal> {
        next_rows(&self.service, request.bucket_move, request.number)
    }

    /// Puts in what the source sent, at the target.
    pub fn put_rows(&self, sent: &MoveRowsResponse) -> Result<(), Refusal> {
        put_chunk(&self.service, self.incoming_move()?, sent)
    }

    /// Puts in the pushes that the source has applied, at the target.
    pub fn put_windows(&self, sent: &FreezeMoveResponse) -> Result<(), Refusal> {
        put_windows(&self.service, self.incoming_move()?, &sent.groups)
    }

    fn incoming_move(&self) -> Result<&Arc<PlannedMove>, Refusal> {
        self.incoming.as_ref().ok_or_else(|| Refusal::invalid("no rows come to this server"))
    }
}
