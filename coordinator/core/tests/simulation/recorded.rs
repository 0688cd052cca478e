//! A simulated run, and its core, whose inputs are kept, as a journal keeps them: it can be killed and replayed. The simulation of the
//! whole run (`dense-worker/core/tests/main/run.rs`) uses it too.

use std::time::Duration;

use zagros_coordinator_core::{Core, CoreConfig, CoreInput, MemberSlot, Role, RunEvent, RunOutcome, SplitOrder};
use zagros_protocol::control::{
    AssignRequest, AssignResponse, BarrierRequest, BarrierResponse, CompleteRequest, CompleteResponse, DataFile,
    GroupRequest, GroupResponse, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest,
    LeaveResponse, ReportEvaluationRequest, ReportEvaluationResponse, ReportMoveRequest, ReportMoveResponse,
    ScaleRequest, ScaleResponse, StatusResponse, TransformsRequest, TransformsResponse,
};
use zagros_protocol::{PROTOCOL_VERSION, Refusal, RunId};

pub(crate) const LEASE: Duration = Duration::from_secs(8);
pub(crate) const EPOCHS: u32 = 2;
pub(crate) const ORDER: SplitOrder = SplitOrder::Shuffled { seed: 3, window_rows: 1 << 20 };

/// A run of so many servers and workers that all must come.
pub(crate) fn core_config(servers: u32, workers: u32) -> CoreConfig {
    CoreConfig {
        run: RunId(1),
        job: "simulation".to_owned(),
        servers,
        workers,
        min_workers: workers,
        max_workers: workers,
        buckets: 16,
        epochs: EPOCHS,
        order: ORDER,
        staleness: 4,
        lease: LEASE,
        // Longer than any run: a killed process is started again.
        timeout: LEASE * 1000,
        fingerprint: 1,
        ..CoreConfig::default()
    }
}

/// A process joins by its instance; workers say which files there are.
pub(crate) fn join_request(slot: MemberSlot, instance: u64, files: Vec<DataFile>) -> JoinRequest {
    JoinRequest {
        role: slot.role.to_wire(),
        index: slot.index,
        address: format!("host:{instance}"),
        instance,
        job_fingerprint: 1,
        protocol_version: PROTOCOL_VERSION,
        files: if slot.role == Role::DenseWorker { files } else { Vec::new() },
        ..JoinRequest::default()
    }
}

/// A request that is an input of the core.
pub(crate) trait CoreCall: Clone {
    type Answer;

    fn to_input(&self) -> CoreInput;

    fn make(&self, core: &mut Core, now: Duration) -> Result<Self::Answer, Refusal>;
}

macro_rules! calls {
    ($($input:ident: $method:ident($request:ident) -> $answer:ident),* $(,)?) => {$(
        impl CoreCall for $request {
            type Answer = $answer;

            fn to_input(&self) -> CoreInput {
                CoreInput::$input(self.clone())
            }

            fn make(&self, core: &mut Core, now: Duration) -> Result<$answer, Refusal> {
                core.$method(now, self)
            }
        }
    )*};
}

calls! {
    Join: join(JoinRequest) -> JoinResponse,
    Heartbeat: heartbeat(HeartbeatRequest) -> HeartbeatResponse,
    Leave: leave(LeaveRequest) -> LeaveResponse,
    Group: group(GroupRequest) -> GroupResponse,
    Barrier: barrier(BarrierRequest) -> BarrierResponse,
    Assign: assign(AssignRequest) -> AssignResponse,
    Complete: complete(CompleteRequest) -> CompleteResponse,
    Scale: scale(ScaleRequest) -> ScaleResponse,
    ReportMove: report_move(ReportMoveRequest) -> ReportMoveResponse,
    Transforms: transforms(TransformsRequest) -> TransformsResponse,
    ReportEvaluation: report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
}

pub(crate) struct RecordedCore {
    core: Core,
    /// The state before the inputs.
    snapshot: Vec<u8>,
    inputs: Vec<(Duration, CoreInput)>,
}

impl RecordedCore {
    pub(crate) fn new(config: CoreConfig) -> Self {
        let core = Core::new(config);
        Self { snapshot: bytes(&core), core, inputs: Vec::new() }
    }

    pub(crate) fn call<R: CoreCall>(&mut self, now: Duration, request: &R) -> Result<R::Answer, Refusal> {
        self.inputs.push((now, request.to_input()));
        request.make(&mut self.core, now)
    }

    /// Takes an input whose answer no caller waits for.
    pub(crate) fn take(&mut self, now: Duration, input: CoreInput) {
        input.replay(&mut self.core, now);
        self.inputs.push((now, input));
    }

    /// Asks without a change of anything but the time.
    pub(crate) fn ask<A>(&mut self, now: Duration, question: impl FnOnce(&mut Core) -> A) -> A {
        self.tick(now);
        question(&mut self.core)
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.inputs.push((now, CoreInput::Tick));
        self.core.tick(now);
    }

    pub(crate) fn status(&mut self, now: Duration) -> StatusResponse {
        self.ask(now, |core| core.status(now))
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
