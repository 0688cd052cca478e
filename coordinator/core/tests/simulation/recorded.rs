//! A core whose inputs are kept, as a journal keeps them: it can be killed and replayed.

use std::time::Duration;

use zagros_coordinator_core::{Core, CoreConfig, CoreInput, RunEvent, RunOutcome};
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    AssignRequest, AssignResponse, BarrierRequest, BarrierResponse, CompleteRequest, CompleteResponse, GroupRequest,
    GroupResponse, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse,
    ReportEvaluationRequest, ReportEvaluationResponse, ScaleRequest, ScaleResponse, StatusResponse, TransformsRequest,
    TransformsResponse,
};

pub(crate) struct RecordedCore {
    core: Core,
    /// The state before the inputs.
    snapshot: Vec<u8>,
    inputs: Vec<(Duration, CoreInput)>,
}

macro_rules! calls {
    ($($method:ident($request:ident) -> $answer:ident as $input:ident),* $(,)?) => {
        impl RecordedCore {
            $(pub(crate) fn $method(&mut self, now: Duration, request: &$request) -> Result<$answer, Refusal> {
                self.inputs.push((now, CoreInput::$input(request.clone())));
                self.core.$method(now, request)
            })*
        }
    };
}

calls! {
    join(JoinRequest) -> JoinResponse as Join,
    heartbeat(HeartbeatRequest) -> HeartbeatResponse as Heartbeat,
    leave(LeaveRequest) -> LeaveResponse as Leave,
    group(GroupRequest) -> GroupResponse as Group,
    barrier(BarrierRequest) -> BarrierResponse as Barrier,
    assign(AssignRequest) -> AssignResponse as Assign,
    complete(CompleteRequest) -> CompleteResponse as Complete,
    scale(ScaleRequest) -> ScaleResponse as Scale,
    transforms(TransformsRequest) -> TransformsResponse as Transforms,
    report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse as ReportEvaluation,
}

impl RecordedCore {
    pub(crate) fn new(config: CoreConfig) -> Self {
        let core = Core::new(config);
        Self { snapshot: bytes(&core), core, inputs: Vec::new() }
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.inputs.push((now, CoreInput::Tick));
        self.core.tick(now);
    }

    pub(crate) fn drain(&mut self, now: Duration, reason: &str) {
        self.inputs.push((now, CoreInput::Drain(reason.to_owned())));
        self.core.drain_run(now, reason);
    }

    pub(crate) fn end(&mut self, now: Duration, outcome: RunOutcome) {
        self.inputs.push((now, CoreInput::End(outcome.clone())));
        self.core.end_run(now, outcome);
    }

    pub(crate) fn status(&mut self, now: Duration) -> StatusResponse {
        self.tick(now);
        self.core.status(now)
    }

    pub(crate) fn config(&self) -> &CoreConfig {
        self.core.config()
    }

    pub(crate) fn outcome(&self) -> Option<&RunOutcome> {
        self.core.outcome()
    }

    pub(crate) fn take_events(&mut self) -> Vec<RunEvent> {
        self.core.take_events()
    }

    pub(crate) fn take_snapshot(&mut self) {
        self.snapshot = bytes(&self.core);
        self.inputs.clear();
    }

    /// The process is killed, and another one replays the inputs. Its state is that of the process before, bit for bit
    /// (invariant MB-5).
    pub(crate) fn restart(&mut self, now: Duration) {
        let events = self.core.take_events();
        let mut replayed: Core = postcard::from_bytes(&self.snapshot).expect("a snapshot of this program");
        for (at, input) in &self.inputs {
            input.replay(&mut replayed, *at);
        }
        assert!(bytes(&replayed) == bytes(&self.core), "replayed: {replayed:?}\nbefore: {:?}", self.core);
        assert!(events.is_empty(), "events that were not read: {events:?}");
        self.core = replayed;
        self.inputs.push((now, CoreInput::Recover));
        self.core.recover(now);
    }
}

fn bytes(core: &Core) -> Vec<u8> {
    postcard::to_allocvec(core).expect("every state has bytes")
}
