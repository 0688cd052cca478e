//! A coordinator for tests: answers are functions, calls are counted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::FutureExt;
use zagros_protocol::control::{
    AssignRequest, AssignResponse, CompleteRequest, CompleteResponse, HeartbeatRequest, HeartbeatResponse, JoinRequest,
    JoinResponse, LeaveRequest, LeaveResponse, PlacementRequest, PlacementResponse, ReportEvaluationRequest,
    ReportEvaluationResponse, StatusRequest, StatusResponse,
};
use zagros_protocol::{Refusal, RefusalKind};

use crate::control_plane::{Answer, ControlPlane};

type Script<Request, Response> = Mutex<Box<dyn FnMut(Request) -> Result<Response, Refusal> + Send>>;

/// Joins and heartbeats succeed until a script says otherwise.
pub(crate) struct FakeCoordinator {
    pub(crate) join: Script<JoinRequest, JoinResponse>,
    pub(crate) heartbeat: Script<HeartbeatRequest, HeartbeatResponse>,
    pub(crate) leave: Script<LeaveRequest, LeaveResponse>,
    pub(crate) placement: Script<PlacementRequest, PlacementResponse>,
    /// How many of the next calls are never answered.
    pub(crate) hangs: AtomicU32,
}

/// Lease handed out by the fake, milliseconds.
pub(crate) const LEASE_MS: u32 = 2_400;

impl Default for FakeCoordinator {
    fn default() -> Self {
        let joined = JoinResponse { member: 7, incarnation: 2, lease_ms: LEASE_MS, generation: 1, over: false, run: 5 };
        Self {
            join: script(move |_| Ok(joined)),
            heartbeat: script(|_| Ok(HeartbeatResponse { generation: 1, ..HeartbeatResponse::default() })),
            leave: script(|_| Ok(LeaveResponse {})),
            placement: script(|_| Ok(PlacementResponse { generation: 1, ..PlacementResponse::default() })),
            hangs: AtomicU32::new(0),
        }
    }
}

pub(crate) fn script<Q, R>(answer: impl FnMut(Q) -> Result<R, Refusal> + Send + 'static) -> Script<Q, R> {
    Mutex::new(Box::new(answer))
}

pub(crate) fn away() -> Refusal {
    Refusal::new(RefusalKind::Unavailable, "connection refused")
}

impl FakeCoordinator {
    fn play<Q, R: Send + 'static>(&self, script: &Script<Q, R>, request: Q) -> Answer<'static, R> {
        let one_less = |hangs: u32| hangs.checked_sub(1);
        if self.hangs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return std::future::pending().boxed();
        }
        let answer = script.lock().unwrap()(request);
        std::future::ready(answer).boxed()
    }
}

fn unscripted<R: Send + 'static>() -> Answer<'static, R> {
    std::future::ready(Err(Refusal::invalid("no script for this call"))).boxed()
}

impl ControlPlane for FakeCoordinator {
    fn name(&self) -> &str {
        "coordinator (fake)"
    }

    fn join(&self, request: JoinRequest) -> Answer<'_, JoinResponse> {
        self.play(&self.join, request)
    }

    fn heartbeat(&self, request: HeartbeatRequest) -> Answer<'_, HeartbeatResponse> {
        self.play(&self.heartbeat, request)
    }

    fn leave(&self, request: LeaveRequest) -> Answer<'_, LeaveResponse> {
        self.play(&self.leave, request)
    }

    fn placement(&self, request: PlacementRequest) -> Answer<'_, PlacementResponse> {
        self.play(&self.placement, request)
    }

    fn assign(&self, _: AssignRequest) -> Answer<'_, AssignResponse> {
        unscripted()
    }

    fn complete(&self, _: CompleteRequest) -> Answer<'_, CompleteResponse> {
        unscripted()
    }

    fn report_evaluation(&self, _: ReportEvaluationRequest) -> Answer<'_, ReportEvaluationResponse> {
        unscripted()
    }

    fn status(&self, _: StatusRequest) -> Answer<'_, StatusResponse> {
        unscripted()
    }
}
