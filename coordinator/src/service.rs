//! The gRPC service: decodes, checks the run and what the peer may say, calls, encodes.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use zagros_coordinator_client::ControlPlane;
use zagros_coordinator_core::{MemberSlot, Role};
use zagros_plumbing::grpc::MAX_CONTROL_BYTES;
use zagros_protocol::control::*;
use zagros_transport::control::coordinator_server::{Coordinator, CoordinatorServer};
use zagros_transport::{Peer, PeerRole, check_run, names_run, status_of};

use crate::LocalCoordinator;

pub(crate) struct CoordinatorService(Arc<LocalCoordinator>);

impl CoordinatorService {
    pub(crate) fn new_server(coordinator: Arc<LocalCoordinator>) -> CoordinatorServer<Self> {
        let server = CoordinatorServer::new(Self(coordinator));
        server.max_decoding_message_size(MAX_CONTROL_BYTES).max_encoding_message_size(MAX_CONTROL_BYTES)
    }

    /// As [`Self::check_member`]. A person's command is no member and knows no number of a run: it proves the run's secret.
    fn check_reader<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let whole_run = Peer::from_extensions(request.extensions())
            .require_role(PeerRole::Coordinator, "to read the bucket map without a run");
        if names_run(request.metadata().as_ref()) || whole_run.is_err() { self.check_member(request) } else { Ok(()) }
    }

    /// Refuses a request of a process of another run (invariant MB-2).
    fn check_member<T>(&self, request: &Request<T>) -> Result<(), Status> {
        check_run(self.0.run_id(), request.metadata().as_ref(), "this coordinator").map_err(status_of)
    }
}

/// Refuses a sender that speaks for a member of a role that it has not proven (invariant MB-7). The gate has checked that the
/// sender may make the call at all.
fn check_sender<T>(request: &Request<T>, role: Option<Role>, what: &'static str) -> Result<(), Status> {
    let proof = match role {
        Some(Role::EmbeddingServer) => PeerRole::EmbeddingServer,
        Some(Role::DenseWorker) | None => PeerRole::DenseWorker,
    };
    Peer::from_extensions(request.extensions()).require_role(proof, what).map_err(status_of)
}

fn role_of(member: u64) -> Option<Role> {
    MemberSlot::from_member(member).map(|slot| slot.role)
}

/// One method of the generated trait per call of [`ControlPlane`], each with what is checked of its sender.
macro_rules! calls {
    ($($who:ident: $method:ident($request:ident) -> $response:ident),* $(,)?) => {
        #[tonic::async_trait]
        impl Coordinator for CoordinatorService {
            $(async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                calls!(@check $who, self, request);
                Ok(Response::new(self.0.$method(request.into_inner()).await.map_err(status_of)?))
            })*
        }
    };
    (@check anyone, $this:ident, $request:ident) => {};
    (@check newcomers, $this:ident, $request:ident) => {
        check_sender(&$request, Role::from_wire($request.get_ref().role), "to join as an embedding server")?;
    };
    (@check speakers, $this:ident, $request:ident) => {
        check_sender(&$request, role_of($request.get_ref().member), "to speak for an embedding server")?;
        $this.check_member(&$request)?;
    };
    (@check readers, $this:ident, $request:ident) => {
        $this.check_reader(&$request)?;
    };
    (@check members, $this:ident, $request:ident) => {
        $this.check_member(&$request)?;
    };
}

calls! {
    newcomers: join(JoinRequest) -> JoinResponse,
    speakers: heartbeat(HeartbeatRequest) -> HeartbeatResponse,
    speakers: leave(LeaveRequest) -> LeaveResponse,
    readers: placement(PlacementRequest) -> PlacementResponse,
    members: group(GroupRequest) -> GroupResponse,
    members: barrier(BarrierRequest) -> BarrierResponse,
    members: assign(AssignRequest) -> AssignResponse,
    members: complete(CompleteRequest) -> CompleteResponse,
    members: position(PositionRequest) -> PositionResponse,
    members: transforms(TransformsRequest) -> TransformsResponse,
    members: report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
    anyone: status(StatusRequest) -> StatusResponse,
    anyone: scale(ScaleRequest) -> ScaleResponse,
    members: report_move(ReportMoveRequest) -> ReportMoveResponse,
}
