//! A coordinator whose every answer is scripted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use zagros_coordinator_client::ControlPlane;
use zagros_coordinator_client::control_plane::ControlAnswer;
use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{
    AssignRequest, AssignResponse, BarrierRequest, BarrierResponse, CompleteRequest, CompleteResponse, EpochDone,
    GroupRequest, GroupResponse, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest,
    LeaveResponse, PlacementRequest, PlacementResponse, PositionRequest, PositionResponse, ReportEvaluationRequest,
    ReportEvaluationResponse, ReportMoveRequest, ReportMoveResponse, ScaleRequest, ScaleResponse, ServerEntry,
    StatusRequest, StatusResponse, TransformsRequest, TransformsResponse,
};
use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind};

/// The lease of members that join the default fake.
pub const LEASE: Duration = Duration::from_millis(2_400);
pub(crate) const BUCKETS: u32 = 16;

/// The calls of a coordinator with their first scripts.
macro_rules! scripted {
    ($($call:ident($request:ident) -> $response:ident: $script:expr;)*) => {
        /// By default everyone may join, one embedding server owns all buckets, every epoch is done, and every report is taken.
        pub struct FakeControlPlane {
            $(pub $call: AnswerScript<$request, $response>,)*
            hanging_calls: AtomicU32,
        }

        impl FakeControlPlane {
            fn scripted() -> Self {
                Self { $($call: $script,)* hanging_calls: AtomicU32::new(0) }
            }
        }

        impl ControlPlane for FakeControlPlane {
            fn name(&self) -> &str {
                "coordinator (fake)"
            }

            $(fn $call(&self, request: $request) -> ControlAnswer<'_, $response> {
                self.answer(&self.$call, request)
            })*
        }
    };
}

scripted! {
    join(JoinRequest) -> JoinResponse: AnswerScript::unexpected("join");
    heartbeat(HeartbeatRequest) -> HeartbeatResponse: AnswerScript::new(|_| Ok(heard()));
    leave(LeaveRequest) -> LeaveResponse: AnswerScript::new(|_| Ok(LeaveResponse {}));
    placement(PlacementRequest) -> PlacementResponse: AnswerScript::new(|_| Ok(one_server()));
    group(GroupRequest) -> GroupResponse: AnswerScript::unexpected("group");
    barrier(BarrierRequest) -> BarrierResponse: AnswerScript::unexpected("barrier");
    assign(AssignRequest) -> AssignResponse:
        AnswerScript::new(|_| Ok(AssignResponse { work: Some(Work::EpochDone(EpochDone::default())) }));
    position(PositionRequest) -> PositionResponse: AnswerScript::unexpected("position");
    transforms(TransformsRequest) -> TransformsResponse: AnswerScript::new(|_| Ok(TransformsResponse::default()));
    complete(CompleteRequest) -> CompleteResponse: AnswerScript::new(|_| Ok(CompleteResponse::default()));
    report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse:
        AnswerScript::new(|_| Ok(ReportEvaluationResponse {}));
    status(StatusRequest) -> StatusResponse: AnswerScript::new(|_| Ok(StatusResponse::default()));
    scale(ScaleRequest) -> ScaleResponse: AnswerScript::unexpected("scale");
    report_move(ReportMoveRequest) -> ReportMoveResponse: AnswerScript::unexpected("report_move");
}

impl Default for FakeControlPlane {
    fn default() -> Self {
        Self::with_lease(LEASE)
    }
}

impl FakeControlPlane {
    pub fn with_lease(lease: Duration) -> Self {
        let lease_ms = u32::try_from(lease.as_millis()).expect("a lease of a test fits into 32 bits");
        let joined =
            JoinResponse { member: 7, incarnation: 1, lease_ms, generation: 1, over: false, run: 1, discard: false };
        let fake = Self::scripted();
        fake.join.respond(joined);
        fake
    }

    /// The next `calls` calls, of whatever kind, are never answered.
    pub fn hang(&self, calls: u32) {
        self.hanging_calls.store(calls, Ordering::Relaxed);
    }

    pub fn stop(&self, reason: &str) {
        self.heartbeat.respond(HeartbeatResponse { stop: true, reason: reason.to_owned(), ..heard() });
    }

    pub fn drain(&self, reason: &str) {
        self.heartbeat.respond(HeartbeatResponse { draining: reason.to_owned(), ..heard() });
    }

    pub fn reconnect(&self) {
        self.heartbeat.respond(heard());
    }

    pub fn completed_splits(&self) -> Vec<u64> {
        self.complete.accepted().into_iter().flat_map(|request| request.splits).collect()
    }

    fn answer<Request, Response>(
        &self,
        script: &AnswerScript<Request, Response>,
        request: Request,
    ) -> ControlAnswer<'static, Response>
    where
        Request: Clone,
        Response: Send + 'static,
    {
        let one_less = |calls: u32| calls.checked_sub(1);
        if self.hanging_calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return std::future::pending().boxed();
        }
        std::future::ready(script.call(request)).boxed()
    }
}

fn heard() -> HeartbeatResponse {
    HeartbeatResponse { generation: 1, ..HeartbeatResponse::default() }
}

fn one_server() -> PlacementResponse {
    let owners = BucketMap::split_evenly(Generation(1), BUCKETS, 1).pack_owners().into();
    let server = ServerEntry { index: 0, address: "fake:0".to_owned(), instance: 1, alive: true, run: 1, lineage: 0 };
    PlacementResponse { generation: 1, owners, servers: vec![server], ..PlacementResponse::default() }
}

type AnswerFn<Request, Response> = Box<dyn FnMut(Request) -> Result<Response, Refusal> + Send>;

/// One call of a fake: how it is answered, and what it was asked.
pub struct AnswerScript<Request, Response> {
    answer: Mutex<AnswerFn<Request, Response>>,
    /// Each request, and whether it was answered with a response.
    calls: Mutex<Vec<(Request, bool)>>,
}

impl<Request: Clone, Response> AnswerScript<Request, Response> {
    pub fn new(answer: impl FnMut(Request) -> Result<Response, Refusal> + Send + 'static) -> Self {
        Self { answer: Mutex::new(Box::new(answer)), calls: Mutex::default() }
    }

    /// Refuses every call: the test expects none.
    pub fn unexpected(call: &'static str) -> Self {
        Self::new(move |_| Err(Refusal::invalid(format!("the fake has no script for {call}"))))
    }

    pub fn set(&self, answer: impl FnMut(Request) -> Result<Response, Refusal> + Send + 'static) {
        *self.answer.lock() = Box::new(answer);
    }

    pub fn respond(&self, response: Response)
    where
        Response: Clone + Send + 'static,
    {
        self.set(move |_| Ok(response.clone()));
    }

    pub fn refuse(&self, kind: RefusalKind, message: &'static str) {
        self.set(move |_| Err(Refusal::new(kind, message)));
    }

    /// From now on each call is refused as if no process listened.
    pub fn disconnect(&self) {
        self.refuse(RefusalKind::Unavailable, "connection refused");
    }

    /// From now on calls are answered in this order. The last answer stays.
    pub fn respond_in_order(&self, answers: impl IntoIterator<Item = Result<Response, Refusal>>)
    where
        Response: Clone + Send + 'static,
    {
        let mut answers: VecDeque<_> = answers.into_iter().collect();
        self.set(move |_| {
            let answer = answers.pop_front().expect("a script has an answer");
            if answers.is_empty() {
                answers.push_back(answer.clone());
            }
            answer
        });
    }

    pub fn requests(&self) -> Vec<Request> {
        self.calls.lock().iter().map(|(request, _)| request.clone()).collect()
    }

    pub fn accepted(&self) -> Vec<Request> {
        self.calls.lock().iter().filter(|(_, accepted)| *accepted).map(|(request, _)| request.clone()).collect()
    }

    pub(crate) fn call(&self, request: Request) -> Result<Response, Refusal> {
        let answer = self.answer.lock()(request.clone());
        self.calls.lock().push((request, answer.is_ok()));
        answer
    }
}
