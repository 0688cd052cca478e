//! The gRPC service: decodes, checks the run, calls, encodes.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::grpc::MAX_CONTROL_BYTES;
use zagros_protocol::control::{
    AssignRequest, AssignResponse, BarrierRequest, BarrierResponse, CompleteRequest, CompleteResponse, GroupRequest,
    GroupResponse, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse,
    PlacementRequest, PlacementResponse, PositionRequest, PositionResponse, ReportEvaluationRequest,
    ReportEvaluationResponse, StatusRequest, StatusResponse, TransformsRequest, TransformsResponse,
};
use zagros_transport::control::coordinator_server::{Coordinator, CoordinatorServer};
use zagros_transport::{check_run, status_of};

use crate::LocalCoordinator;

/// Passes each call on to the coordinator.
pub(crate) struct CoordinatorService(Arc<LocalCoordinator>);

impl CoordinatorService {
    pub(crate) fn serving(coordinator: Arc<LocalCoordinator>) -> CoordinatorServer<Self> {
        let server = CoordinatorServer::new(Self(coordinator));
        server.max_decoding_message_size(MAX_CONTROL_BYTES).max_encoding_message_size(MAX_CONTROL_BYTES)
    }

    /// Refuses a request of a process of another run (invariant MB-2).
    fn check_member<T>(&self, request: &Request<T>) -> Result<(), Status> {
        check_run(self.0.run(), request.metadata().as_ref(), "this coordinator").map_err(status_of)
    }
}

/// One method of the generated trait per call of [`ControlPlane`], each with who may call it.
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
    (@check members, $this:ident, $request:ident) => {
        $this.check_member(&$request)?;
    };
}

calls! {
    anyone: join(JoinRequest) -> JoinResponse,
    members: heartbeat(HeartbeatRequest) -> HeartbeatResponse,
    members: leave(LeaveRequest) -> LeaveResponse,
    members: placement(PlacementRequest) -> PlacementResponse,
    members: group(GroupRequest) -> GroupResponse,
    members: barrier(BarrierRequest) -> BarrierResponse,
    members: assign(AssignRequest) -> AssignResponse,
    members: complete(CompleteRequest) -> CompleteResponse,
    members: position(PositionRequest) -> PositionResponse,
    members: transforms(TransformsRequest) -> TransformsResponse,
    members: report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
    anyone: status(StatusRequest) -> StatusResponse,
}
