//! The coordinator as its caller sees it: over gRPC, or as a function call in the same process.

use futures::future::BoxFuture;
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::*;

pub type ControlAnswer<'a, T> = BoxFuture<'a, Result<T, Refusal>>;

/// The coordinator's calls, one for one as in `control/v1/coordinator.proto`.
pub trait ControlPlane: Send + Sync {
    /// For messages: `coordinator (127.0.0.1:7700)`.
    fn name(&self) -> &str;
    fn join(&self, request: JoinRequest) -> ControlAnswer<'_, JoinResponse>;
    fn heartbeat(&self, request: HeartbeatRequest) -> ControlAnswer<'_, HeartbeatResponse>;
    fn leave(&self, request: LeaveRequest) -> ControlAnswer<'_, LeaveResponse>;
    fn placement(&self, request: PlacementRequest) -> ControlAnswer<'_, PlacementResponse>;
    fn group(&self, request: GroupRequest) -> ControlAnswer<'_, GroupResponse>;
    fn barrier(&self, request: BarrierRequest) -> ControlAnswer<'_, BarrierResponse>;
    fn assign(&self, request: AssignRequest) -> ControlAnswer<'_, AssignResponse>;
    fn position(&self, request: PositionRequest) -> ControlAnswer<'_, PositionResponse>;
    /// Reports the transforms of numeric columns, or gets them.
    fn transforms(&self, request: TransformsRequest) -> ControlAnswer<'_, TransformsResponse>;
    /// Reports splits whose gradients are all acknowledged.
    fn complete(&self, request: CompleteRequest) -> ControlAnswer<'_, CompleteResponse>;
    fn report_evaluation(&self, request: ReportEvaluationRequest) -> ControlAnswer<'_, ReportEvaluationResponse>;
    /// Changes the number of embedding servers while the run trains. A coordinator in the process of its members cannot.
    fn scale(&self, _: ScaleRequest) -> ControlAnswer<'_, ScaleResponse> {
        let fixed = Refusal::invalid("this coordinator cannot change its members");
        Box::pin(std::future::ready(Err(fixed)))
    }
    fn report_move(&self, _: ReportMoveRequest) -> ControlAnswer<'_, ReportMoveResponse> {
        let none = Refusal::invalid("this coordinator moves no buckets");
        Box::pin(std::future::ready(Err(none)))
    }
    fn status(&self, request: StatusRequest) -> ControlAnswer<'_, StatusResponse>;
}

/// Waits for the answer to a call. Refuses once the deadline has passed.
pub(crate) async fn answer<T>(deadline: Deadline, call: ControlAnswer<'_, T>) -> Result<T, Refusal> {
    deadline.bound(call).await.unwrap_or_else(|within| Err(Refusal::no_answer(within)))
}
