//! The gRPC face: decode, call, encode.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use zagros_coordinator_client::ControlPlane;
use zagros_protocol::control::coordinator_server::{Coordinator, CoordinatorServer};
use zagros_protocol::control::{
    AssignRequest, AssignResponse, CompleteRequest, CompleteResponse, GroupRequest, GroupResponse, HeartbeatRequest,
    HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, PlacementRequest, PlacementResponse,
    PositionRequest, PositionResponse, ReportEvaluationRequest, ReportEvaluationResponse, StatusRequest,
    StatusResponse,
};

use crate::LocalCoordinator;

/// Passes each call on.
pub(crate) struct Service(Arc<LocalCoordinator>);

impl Service {
    pub(crate) fn serving(coordinator: Arc<LocalCoordinator>) -> CoordinatorServer<Self> {
        CoordinatorServer::new(Self(coordinator))
    }
}

/// One method of the generated trait per call of [`ControlPlane`].
macro_rules! calls {
    ($($method:ident($request:ident) -> $response:ident),* $(,)?) => {
        #[tonic::async_trait]
        impl Coordinator for Service {
            $(async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                Ok(Response::new(self.0.$method(request.into_inner()).await?))
            })*
        }
    };
}

calls! {
    join(JoinRequest) -> JoinResponse,
    heartbeat(HeartbeatRequest) -> HeartbeatResponse,
    leave(LeaveRequest) -> LeaveResponse,
    placement(PlacementRequest) -> PlacementResponse,
    group(GroupRequest) -> GroupResponse,
    assign(AssignRequest) -> AssignResponse,
    complete(CompleteRequest) -> CompleteResponse,
    position(PositionRequest) -> PositionResponse,
    report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
    status(StatusRequest) -> StatusResponse,
}
