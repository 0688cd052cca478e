//! A coordinator that answers as a test wants.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures::FutureExt;
use futures::future::ready;
use zagros_coordinator_client::ControlPlane;
use zagros_coordinator_client::control_plane::Answer;
use zagros_protocol::control::{
    AssignRequest, AssignResponse, CompleteRequest, CompleteResponse, EpochDone, HeartbeatRequest, HeartbeatResponse,
    JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, PlacementRequest, PlacementResponse,
    ReportEvaluationRequest, ReportEvaluationResponse, ServerEntry, StatusRequest, StatusResponse, TransformsRequest,
    TransformsResponse, assign_response::Work,
};
use zagros_protocol::{BucketMap, Generation, Refusal};

/// One embedding server, no splits unless scripted, takes everything.
#[derive(Default)]
pub(crate) struct FakeControl {
    /// Answers to `assign`, first to last; then the epoch is done.
    pub(crate) assign: Mutex<VecDeque<Result<AssignResponse, Refusal>>>,
    /// Answer to `complete`, while there is one.
    pub(crate) refuse_complete: Mutex<Option<Refusal>>,
    /// Answers to `transforms`, first to last; then the last again.
    pub(crate) transforms: Mutex<VecDeque<TransformsResponse>>,
    /// Splits told to be complete.
    pub(crate) completed: Mutex<Vec<u64>>,
    /// What heartbeats answer: stop, for this reason.
    pub(crate) stop: Mutex<Option<String>>,
    /// What heartbeats answer: the run is drained, for this reason.
    pub(crate) draining: Mutex<Option<String>>,
    /// Answer to heartbeats, while there is one.
    pub(crate) refuse_heartbeat: Mutex<Option<Refusal>>,
    /// How workers left.
    pub(crate) left: Mutex<Vec<LeaveRequest>>,
}

fn answer<T: Send + 'static>(answer: Result<T, Refusal>) -> Answer<'static, T> {
    ready(answer).boxed()
}

impl ControlPlane for FakeControl {
    fn name(&self) -> &str {
        "fake coordinator"
    }

    fn join(&self, _: JoinRequest) -> Answer<'_, JoinResponse> {
        answer(Ok(JoinResponse { member: 7, incarnation: 1, lease_ms: 60, generation: 1, over: false, run: 1 }))
    }

    fn heartbeat(&self, _: HeartbeatRequest) -> Answer<'_, HeartbeatResponse> {
        if let Some(refusal) = &*self.refuse_heartbeat.lock().unwrap() {
            return answer(Err(refusal.clone()));
        }
        let reason = self.stop.lock().unwrap().clone();
        let draining = self.draining.lock().unwrap().clone().unwrap_or_default();
        let stop = reason.is_some();
        answer(Ok(HeartbeatResponse {
            generation: 1,
            stop,
            reason: reason.unwrap_or_default(),
            draining,
            ..HeartbeatResponse::default()
        }))
    }

    fn leave(&self, request: LeaveRequest) -> Answer<'_, LeaveResponse> {
        self.left.lock().unwrap().push(request);
        answer(Ok(LeaveResponse {}))
    }

    fn placement(&self, _: PlacementRequest) -> Answer<'_, PlacementResponse> {
        let owners = BucketMap::even(Generation(1), 16, 1).pack_owners().into();
        let server = ServerEntry { index: 0, address: "fake:0".to_owned(), instance: 1, alive: true, run: 1 };
        answer(Ok(PlacementResponse { generation: 1, owners, servers: vec![server], ..PlacementResponse::default() }))
    }

    fn assign(&self, _: AssignRequest) -> Answer<'_, AssignResponse> {
        let done = || Ok(AssignResponse { work: Some(Work::EpochDone(EpochDone {})) });
        answer(self.assign.lock().unwrap().pop_front().unwrap_or_else(done))
    }

    fn transforms(&self, _: TransformsRequest) -> Answer<'_, TransformsResponse> {
        let mut answers = self.transforms.lock().unwrap();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        answer(Ok(next.unwrap_or_default()))
    }

    fn complete(&self, request: CompleteRequest) -> Answer<'_, CompleteResponse> {
        if let Some(refusal) = &*self.refuse_complete.lock().unwrap() {
            return answer(Err(refusal.clone()));
        }
        self.completed.lock().unwrap().extend(request.splits);
        answer(Ok(CompleteResponse { bad_rows: 0 }))
    }

    fn report_evaluation(&self, _: ReportEvaluationRequest) -> Answer<'_, ReportEvaluationResponse> {
        answer(Ok(ReportEvaluationResponse {}))
    }

    fn status(&self, _: StatusRequest) -> Answer<'_, StatusResponse> {
        answer(Ok(StatusResponse::default()))
    }
}
