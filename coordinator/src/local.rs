//! The core with a clock and a lock: a coordinator for callers in the same process.

use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::time::{Duration, timeout};
use tracing::{error, info, warn};
use zagros_coordinator_client::ControlPlane;
use zagros_coordinator_client::control_plane::ControlAnswer;
use zagros_coordinator_core::{Core, CoreConfig, CoreInput, RunEvent, RunOutcome, SplitOrder};
use zagros_job::{Job, Mode};
use zagros_protocol::control::barrier_response::State as BarrierState;
use zagros_protocol::control::*;
use zagros_protocol::{Refusal, RunId};

use crate::CoordinatorError;
use crate::journaled::{JournalFailure, JournalUse, JournaledCore};
use crate::metrics::CoordinatorMetrics;

const METRICS_AGE: Duration = Duration::from_secs(1);
/// How long a vote at a barrier waits here for the other workers. The worker asks again after that.
const BARRIER_HOLD: Duration = Duration::from_millis(200);

/// The coordinator of a run, without sockets. Each call lets leases expire. Heartbeats are such calls.
pub struct LocalCoordinator {
    run: RunId,
    state: Mutex<LockedCore>,
    /// Counts decisions and failures of barriers. Votes that wait here look again.
    closed_barriers: watch::Sender<u64>,
    pub(crate) metrics: CoordinatorMetrics,
}

struct LockedCore {
    core: JournaledCore,
    /// When the gauges were last set.
    shown: Option<Duration>,
}

impl LocalCoordinator {
    /// A coordinator for this job's run, which no process has joined.
    pub fn new(job: &Job, registry: &Registry) -> Arc<Self> {
        Self::leading(job, JournaledCore::without_journal(config_of(job)), registry)
    }

    /// The coordinator of the run that the journal has, as the process before left it. If the journal has no run, or no member
    /// can be left of it, the coordinator of a run that no process has joined; for a journal of one run, of that run as it ended.
    pub fn open(job: &Job, journal: &JournalUse, registry: &Registry) -> Result<Arc<Self>, CoordinatorError> {
        let coordinator = Self::leading(job, JournaledCore::open(config_of(job), journal)?, registry);
        // What happened at the start is logged now.
        coordinator.tick();
        Ok(coordinator)
    }

    fn leading(job: &Job, core: JournaledCore, registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            run: core.core.config().run,
            state: Mutex::new(LockedCore { core, shown: None }),
            closed_barriers: watch::Sender::new(0),
            metrics: CoordinatorMetrics::new(registry, job.cluster.servers, job.cluster.workers),
        })
    }

    /// Every request from another process must name it.
    pub fn run_id(&self) -> RunId {
        self.run
    }

    pub fn tick(&self) {
        self.ask(|_, _| ());
    }

    /// Drains the run: its workers save and leave, and then the run is over. `reason` says which process was asked to end.
    /// A second call changes nothing.
    pub fn drain_run(&self, reason: &str) -> Result<(), Refusal> {
        let drain = || CoreInput::Drain(reason.to_owned());
        self.with_core(|core| core.call_core(drain, |core, now| core.drain_run(now, reason)))
    }

    /// The workers that a drain waits for, in words; empty when there is none.
    pub fn drain_waits_for(&self) -> String {
        self.state.lock().core.core.drain_waits_for()
    }

    /// Ends the run, unless it has ended. The answer to a member's next heartbeat says so.
    pub fn end_run(&self, outcome: RunOutcome) -> Result<(), Refusal> {
        let end = outcome.clone();
        self.with_core(|core| core.call_core(|| CoreInput::End(end), |core, now| core.end_run(now, outcome)))
    }

    pub(crate) fn journal_failure(&self) -> Option<JournalFailure> {
        self.state.lock().core.failing.clone()
    }

    pub fn outcome(&self) -> Option<RunOutcome> {
        self.state.lock().core.core.outcome().cloned()
    }

    pub fn is_deserted(&self) -> bool {
        self.state.lock().core.core.is_deserted()
    }

    /// Whether there is a placement, so that workers can train. The error names the missing members.
    pub fn check_ready(&self) -> Result<(), String> {
        let placement = self.ask(|core, _| core.view_placement());
        if placement.generation == 0 { Err(format!("waiting: {}", placement.waiting_for)) } else { Ok(()) }
    }

    pub(crate) fn read_status(&self) -> StatusResponse {
        self.ask(Core::view_status)
    }

    /// The run is over, and its members know. The next coordinator with this journal begins another run.
    pub(crate) fn forget_run(&self) {
        self.state.lock().core.forget_run();
    }

    /// This process ends, and the next one goes on with the run, maybe on another machine.
    pub(crate) fn hand_over(&self) {
        self.state.lock().core.hand_over();
    }

    fn ask<R>(&self, question: impl FnOnce(&Core, Duration) -> R) -> R {
        self.with_core(|core| core.ask_core(question))
    }

    /// Uses the core. Logs and counts its events after the lock is released.
    fn with_core<R>(&self, work: impl FnOnce(&mut JournaledCore) -> R) -> R {
        let mut state = self.state.lock();
        let answer = work(&mut state.core);
        let now = state.core.core_time();
        let events = state.core.core.take_events();
        let is_old = state.shown.is_none_or(|shown| now.saturating_sub(shown) >= METRICS_AGE);
        let status = (is_old || !events.is_empty()).then(|| state.core.core.view_status(now));
        state.shown = status.as_ref().map(|_| now).or(state.shown);
        drop(state);

        if let Some(status) = &status {
            self.metrics.set_gauges(status);
        }
        for event in &events {
            self.metrics.count_event(event);
            log(event);
        }
        answer
    }

    /// Takes a vote, and wakes the votes that wait where it is the last one.
    fn take_vote(&self, request: &BarrierRequest) -> Result<BarrierResponse, Refusal> {
        let input = || CoreInput::Barrier(request.clone());
        let answer = self.with_core(|core| core.call_core(input, |core, now| core.barrier(now, request))).flatten()?;
        if !matches!(answer.state, Some(BarrierState::Wait(_))) {
            self.closed_barriers.send_modify(|closed| *closed += 1);
        }
        Ok(answer)
    }

    fn answer<T: Send + 'static>(
        &self,
        input: impl FnOnce() -> CoreInput,
        call: impl FnOnce(&mut Core, Duration) -> Result<T, Refusal>,
    ) -> ControlAnswer<'_, T> {
        std::future::ready(self.with_core(|core| core.call_core(input, call)).flatten()).boxed()
    }
}

/// Calls that are inputs of the core, each with its input.
macro_rules! inputs {
    ($($input:ident: $method:ident($request:ident) -> $response:ident),* $(,)?) => {$(
        fn $method(&self, request: $request) -> ControlAnswer<'_, $response> {
            self.answer(|| CoreInput::$input(request.clone()), |core, now| core.$method(now, &request))
        }
    )*};
}

impl ControlPlane for LocalCoordinator {
    fn name(&self) -> &str {
        "coordinator (in this process)"
    }

    inputs! {
        Join: join(JoinRequest) -> JoinResponse,
        Leave: leave(LeaveRequest) -> LeaveResponse,
        Group: group(GroupRequest) -> GroupResponse,
        Assign: assign(AssignRequest) -> AssignResponse,
        Transforms: transforms(TransformsRequest) -> TransformsResponse,
        Complete: complete(CompleteRequest) -> CompleteResponse,
        ReportEvaluation: report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
        Scale: scale(ScaleRequest) -> ScaleResponse,
        ReportMove: report_move(ReportMoveRequest) -> ReportMoveResponse,
    }

    fn heartbeat(&self, request: HeartbeatRequest) -> ControlAnswer<'_, HeartbeatResponse> {
        self.metrics.heartbeats.inc();
        self.answer(|| CoreInput::Heartbeat(request.clone()), |core, now| core.heartbeat(now, &request))
    }

    fn placement(&self, _: PlacementRequest) -> ControlAnswer<'_, PlacementResponse> {
        std::future::ready(Ok(self.ask(|core, _| core.view_placement()))).boxed()
    }

    fn barrier(&self, request: BarrierRequest) -> ControlAnswer<'_, BarrierResponse> {
        async move {
            // Subscribed before the vote: whatever closes the barrier from now on is seen.
            let mut closed = self.closed_barriers.subscribe();
            let answer = self.take_vote(&request)?;
            let waits = request.vote.is_some() && matches!(answer.state, Some(BarrierState::Wait(_)));
            if !waits {
                return Ok(answer);
            }
            // Woken or not, the answer is asked for again.
            let _ = timeout(BARRIER_HOLD, closed.changed()).await;
            self.take_vote(&request)
        }
        .boxed()
    }

    fn position(&self, request: PositionRequest) -> ControlAnswer<'_, PositionResponse> {
        std::future::ready(self.ask(|core, _| core.view_position(&request))).boxed()
    }

    fn status(&self, _: StatusRequest) -> ControlAnswer<'_, StatusResponse> {
        std::future::ready(Ok(self.read_status())).boxed()
    }
}

/// What the core knows of a job before anyone joins.
fn config_of(job: &Job) -> CoreConfig {
    CoreConfig {
        run: RunId(rand::random()),
        job: job.name.clone(),
        servers: job.cluster.servers,
        workers: job.cluster.workers,
        min_workers: job.cluster.least_workers(),
        max_workers: job.cluster.most_workers(),
        fixed_workers: fixed_workers(job),
        buckets: job.cluster.buckets,
        epochs: job.train.epochs,
        fixed_splits: job.train.mode == Mode::Sync,
        order: match job.data.shuffle_rows {
            0 => SplitOrder::AsInFiles,
            rows => SplitOrder::Shuffled { seed: job.train.seed, window_rows: rows as u64 },
        },
        asynchronous: job.train.mode == Mode::Async && job.cluster.has_groups(),
        staleness: u32::try_from(job.train.staleness).unwrap_or(u32::MAX),
        checkpoint_every: job.checkpoint.every.filter(|_| job.checkpoint.keep > 0),
        lease: job.cluster.lease,
        timeout: job.cluster.timeout,
        fingerprint: job.fingerprint(),
    }
}

/// Why the number of dense workers of a job cannot change while it trains.
fn fixed_workers(job: &Job) -> Option<String> {
    let cluster = &job.cluster;
    match job.train.mode {
        Mode::Hybrid | Mode::Async if cluster.least_workers() == cluster.most_workers() => {
            let why = "set `cluster.max_workers` above `cluster.workers`, or `cluster.min_workers` below it";
            Some(format!("the job allows no other number ({why}, and start the run again)"))
        }
        Mode::Hybrid | Mode::Async => None,
        Mode::Sync => {
            Some("a run of mode \"sync\" is equal bit for bit to the next one, with the same workers".to_owned())
        }
    }
}

fn log(event: &RunEvent) {
    match event {
        RunEvent::RunEnded(RunOutcome::Failed(_)) => error!("{event}"),
        RunEvent::MemberLost { .. }
        | RunEvent::ServerAway { .. }
        | RunEvent::WorkerGivenUp { .. }
        | RunEvent::CoordinatorStalled { .. }
        | RunEvent::CoordinatorRecovered { .. }
        | RunEvent::DrainStarted { .. }
        | RunEvent::UnevenShares { .. }
        | RunEvent::MoveAbandoned { .. }
        | RunEvent::RunEnded(RunOutcome::Interrupted(_)) => warn!("{event}"),
        _ => info!("{event}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::time::Instant;
    use zagros_coordinator_core::MemberSlot;
    use zagros_job::Overrides;
    use zagros_plumbing::metrics::render_text;
    use zagros_protocol::PROTOCOL_VERSION;
    use zagros_protocol::control::{BarrierReason, BarrierVote, DataFile};

    use super::*;
    use crate::JournalRuns;

    fn job(cluster: &str) -> Job {
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a.txt'\n[cluster]\n{cluster}\n");
        Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    fn request(job: &Job, slot: MemberSlot) -> JoinRequest {
        JoinRequest {
            role: slot.role.to_wire(),
            index: slot.index,
            address: format!("embedded:{}", slot.index),
            instance: 1,
            job_fingerprint: job.fingerprint(),
            protocol_version: PROTOCOL_VERSION,
            ..JoinRequest::default()
        }
    }

    /// A coordinator for two servers under a lease of ten seconds.
    fn coordinator() -> (Arc<LocalCoordinator>, JoinRequest, Registry) {
        let (job, registry) = (job("servers = 2\nlease_seconds = 10"), Registry::new());
        (LocalCoordinator::new(&job, &registry), request(&job, MemberSlot::server(0)), registry)
    }

    #[tokio::test(start_paused = true)]
    async fn any_members_call_lets_the_leases_of_others_expire() {
        let (coordinator, request, registry) = coordinator();
        coordinator.join(request.clone()).await.unwrap();
        assert_eq!(coordinator.check_ready(), Err("waiting: embedding server 1 has not joined".to_owned()));
        let other = coordinator.join(JoinRequest { index: 1, ..request }).await.unwrap();
        assert_eq!(coordinator.check_ready(), Ok(()));
        let beat =
            HeartbeatRequest { member: other.member, incarnation: other.incarnation, ..HeartbeatRequest::default() };
        for _ in 0..11 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(coordinator.heartbeat(beat.clone()).await.unwrap().generation, 1);
        }
        let status = coordinator.status(StatusRequest {}).await.unwrap();
        assert_eq!(status.members.iter().map(|member| member.state.as_str()).collect::<Vec<_>>(), ["lost", "alive"]);
        let metrics = render_text(&registry);
        for line in [
            "zagros_coordinator_heartbeats_total 11",
            "zagros_coordinator_expired_leases_total 1",
            "zagros_coordinator_members{member_role=\"embedding server\",state=\"lost\"} 1",
            "zagros_coordinator_members_expected{member_role=\"embedding server\"} 2",
            "zagros_coordinator_auc NaN",
        ] {
            assert!(metrics.contains(line), "{line} is missing in {metrics}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_vote_is_answered_as_soon_as_the_last_worker_has_voted() {
        let job = job("workers = 2");
        let coordinator = LocalCoordinator::new(&job, &Registry::new());
        let mut votes = Vec::new();
        for index in 0..2 {
            let files = vec![DataFile { path: "a.txt".to_owned(), bytes: 9, splittable: true, fingerprint: 0 }];
            let request = JoinRequest { files, ..request(&job, MemberSlot::worker(index)) };
            let JoinResponse { member, incarnation, .. } = coordinator.join(request).await.unwrap();
            let vote = BarrierVote { reason: BarrierReason::Ready.into(), ..BarrierVote::default() };
            votes.push(BarrierRequest { member, incarnation, group: 1, ballot: 1, vote: Some(vote) });
        }
        let BarrierRequest { member, incarnation, .. } = votes[0];
        coordinator.group(GroupRequest { member, incarnation, after: 0 }).await.unwrap();
        let started = Instant::now();
        let alone = coordinator.barrier(votes[0].clone()).await.unwrap();
        assert!(matches!(alone.state, Some(BarrierState::Wait(_))), "{alone:?}");
        assert_eq!(started.elapsed(), BARRIER_HOLD);
        let last = async {
            tokio::time::sleep(BARRIER_HOLD / 4).await;
            coordinator.barrier(votes[1].clone()).await
        };
        let both = tokio::join!(coordinator.barrier(votes[0].clone()), last);
        let (first, last) = (both.0.unwrap(), both.1.unwrap());
        assert!(matches!(first.state, Some(BarrierState::Result(_))) && first == last, "{first:?} {last:?}");
        assert_eq!(started.elapsed(), BARRIER_HOLD * 5 / 4);
    }

    /// A frozen server asks every few milliseconds.
    #[tokio::test(start_paused = true)]
    async fn questions_write_little_to_the_journal_and_change_nothing() {
        let job = job("");
        let folder = tempfile::tempdir().unwrap();
        let journal = JournalUse { folder: folder.path().join("journal"), runs: JournalRuns::Many };
        let coordinator = LocalCoordinator::open(&job, &journal, &Registry::new()).unwrap();
        for _ in 0..200 {
            coordinator.placement(PlacementRequest {}).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let live = format!("{:?}", coordinator.state.lock().core.core);
        drop(coordinator);
        let recovered = crate::journal::InputJournal::open(&journal.folder).unwrap().1.unwrap();
        // One in 50 ms.
        assert_eq!((recovered.inputs, format!("{:?}", recovered.core)), (19, live));
    }
}
