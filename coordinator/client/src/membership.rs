//! A member's slot in the run: a join takes it, heartbeats keep it, leaving gives it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, warn};
use zagros_plumbing::{Backoff, Deadline, Shutdown};
use zagros_protocol::control::{
    Disk, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, Outcome, Progress, ServerLoad,
    ServerWait,
};
use zagros_protocol::{PROTOCOL_VERSION, Refusal, RefusalKind, RunId};

use crate::control_plane::answer;
use crate::lease::{LeaseMoment, LeaseProof};
use crate::waits::Waits;
use crate::{ControlPlane, MemberError};

/// Heartbeats per lease: two may be lost before the third counts.
const HEARTBEATS_PER_LEASE: u32 = 3;
/// The longest time between heartbeats, whatever the lease. A member learns of a new placement, or of the end of the run,
/// within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The coordinator's last answer to a member, and whether it still answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberView {
    /// Generation of the placement; when it rises, fetch the placement again.
    pub generation: u64,
    /// Why this member must stop: the run ended or failed.
    pub stop: Option<String>,
    /// It must stop because all work of the run is done.
    pub finished: bool,
    /// Why this process is no longer a member: a newer process took its slot, or its lease expired. Final.
    pub fenced: Option<String>,
    /// Set once no heartbeat was answered for a whole lease: who does not answer, and for how long. `None` again after the
    /// next answer. The owner of the membership decides what to do: the data path works without a coordinator.
    pub lost: Option<String>,
    /// Generation of the newest process group; 0 before the first.
    pub group: u64,
    /// The newest barrier of asynchronous workers.
    pub barrier: Option<AnnouncedBarrier>,
    /// Why the run is drained: a worker finishes its step, saves and leaves, while servers and coordinator still serve.
    pub draining: Option<String>,
    /// Generation of the newest process group that lost a worker; 0 before the first.
    pub broken_group: u64,
    /// Number of the move of buckets that is under way; 0 for none. An embedding server fetches the placement when it changes.
    pub bucket_move: u64,
}

/// A barrier of asynchronous workers, between two steps of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedBarrier {
    pub number: u64,
    /// The time of the barrier: every worker learns of the barrier before it.
    pub at: Instant,
}

/// Membership in a run, kept alive by a background task until it is left or dropped.
pub struct Membership {
    control: Arc<dyn ControlPlane>,
    joined: JoinResponse,
    report: watch::Sender<HeartbeatReport>,
    view: watch::Receiver<MemberView>,
    proof: LeaseProof,
    newest_batch: Arc<AtomicU64>,
    /// This worker leaves, and the run goes on without it.
    may_leave: Arc<AtomicBool>,
    heartbeats: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct HeartbeatReport {
    /// All but the long waits.
    request: HeartbeatRequest,
    long_waits: Waits,
}

impl Membership {
    /// Joins the run in the name of this release, and starts the heartbeats. Tries again while the coordinator is away, or while a process that is gone
    /// still holds the slot.
    /// A retry that cannot help is not made.
    pub async fn join(
        control: Arc<dyn ControlPlane>,
        request: JoinRequest,
        timeout: Duration,
        shutdown: &Shutdown,
    ) -> Result<Self, MemberError> {
        const WHAT: &str = "join the run";
        let release = env!("CARGO_PKG_VERSION").to_owned();
        let request = JoinRequest { protocol_version: PROTOCOL_VERSION, release, ..request };
        let deadline = Deadline::from_now(timeout);
        let backoff = Backoff::default();
        let joined = tokio::select! {
            joined = backoff.retry(deadline, is_retryable, || answer(deadline, control.join(request.clone()))) => joined,
            () = shutdown.requested() => {
                return Err(MemberError::Stopped { coordinator: control.name().to_owned(), what: WHAT });
            }
        };
        match joined {
            Ok(joined) if joined.over => Err(MemberError::Over { coordinator: control.name().to_owned() }),
            Ok(joined) if joined.discard => Err(MemberError::ForeignRows { coordinator: control.name().to_owned() }),
            Ok(joined) => Ok(Self::start(control, joined)),
            Err(refusal) => Err(MemberError::from_refusal(control.name(), WHAT, deadline.time_waited(), refusal)),
        }
    }

    fn start(control: Arc<dyn ControlPlane>, joined: JoinResponse) -> Self {
        let JoinResponse { member, incarnation, .. } = joined;
        let request = HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() };
        let (report, reports) = watch::channel(HeartbeatReport { request, long_waits: Waits::default() });
        let first = MemberView { generation: joined.generation, ..MemberView::default() };
        let (publish, view) = watch::channel(first);
        let (newest_batch, may_leave) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (renewals, proof) = LeaseProof::starting_now(lease(&joined) - heartbeat_interval(&joined));
        let task = HeartbeatTask {
            control: Arc::clone(&control),
            joined,
            reports,
            view: publish,
            newest_batch: Arc::clone(&newest_batch),
            renewals,
            may_leave: Arc::clone(&may_leave),
        };
        Self { control, joined, report, view, proof, newest_batch, may_leave, heartbeats: tokio::spawn(task.run()) }
    }

    /// Member id; a worker's is its writer id on the data path.
    pub fn member_id(&self) -> u64 {
        self.joined.member
    }

    pub fn run_id(&self) -> RunId {
        RunId(self.joined.run)
    }

    /// The largest step or batch number that a worker has reported, as last heard.
    pub fn newest_batch(&self) -> u64 {
        self.newest_batch.load(Ordering::Acquire)
    }

    /// How many processes have held this slot, this one included.
    pub fn incarnation(&self) -> u32 {
        self.joined.incarnation
    }

    pub fn lease(&self) -> Duration {
        lease(&self.joined)
    }

    pub fn lease_proof(&self) -> LeaseProof {
        self.proof.clone()
    }

    /// Generation of the newest process group, as last heard; 0 before the first.
    pub fn group_generation(&self) -> u64 {
        self.view.borrow().group
    }

    pub fn subscribe(&self) -> watch::Receiver<MemberView> {
        self.view.clone()
    }

    pub fn update_progress(&self, change: impl FnOnce(&mut Progress)) {
        self.report.send_modify(|report| change(report.request.progress.get_or_insert_default()));
    }

    pub fn set_load(&self, load: ServerLoad) {
        self.report.send_modify(|report| report.request.load = Some(load));
    }

    /// Sets the servers that this worker waits for. Heartbeats carry them from now on.
    pub fn set_waits(&self, waits: Vec<ServerWait>) {
        self.report.send_modify(|report| report.request.waits = waits);
    }

    /// Heartbeats carry the long waits of this process from now on.
    pub fn report_waits(&self, waits: Waits) {
        self.report.send_modify(|report| report.long_waits = waits);
    }

    /// Sets the free space of the disk that this member writes to. Heartbeats carry it from now on.
    pub fn set_disk(&self, disk: Disk) {
        self.report.send_modify(|report| report.request.disk = Some(disk));
    }

    /// Requests a barrier of the workers by its number, which is one more than the number of the newest barrier.
    pub fn ask_for_barrier(&self, number: u64) {
        self.report.send_if_modified(|report| std::mem::replace(&mut report.request.barrier, number) != number);
    }

    /// Reports from now on that this process was asked to end. The coordinator then drains the run.
    pub fn set_leaving(&self) {
        self.report.send_modify(|report| report.request.leaving = true);
    }

    /// Reports that this worker was asked to end. Returns whether the run goes on without it; else the coordinator drains the
    /// run. A coordinator that does not answer within a lease lets no worker go.
    pub async fn ask_to_leave(&self) -> bool {
        self.set_leaving();
        let deadline = Deadline::from_now(self.lease());
        let request = self.report.borrow().request();
        let ask = || answer(deadline, self.control.heartbeat(request.clone()));
        let answered = Backoff::default().retry(deadline, is_retryable, ask).await;
        let may_leave = answered.is_ok_and(|answer| answer.draining.is_empty() && !answer.stop);
        self.may_leave.fetch_or(may_leave, Ordering::AcqRel);
        may_leave
    }

    /// Whether this worker leaves, and the run goes on without it: its process was asked to end, or fewer workers are wanted.
    pub fn may_leave(&self) -> bool {
        self.may_leave.load(Ordering::Acquire)
    }

    /// Stops the heartbeats, reports the last progress and leaves. Tries for one lease at most: after that the coordinator
    /// counts this member as lost.
    /// After an error the member is gone all the same.
    pub async fn leave(&self, outcome: Outcome, reason: &str) -> Result<(), MemberError> {
        const WHAT: &str = "leave the run";
        self.heartbeats.abort();
        let deadline = Deadline::from_now(self.lease());
        let last_report = self.report.borrow().request();
        // When this call fails, only the status page misses a number.
        let _ = answer(Deadline::from_now(heartbeat_interval(&self.joined)), self.control.heartbeat(last_report)).await;
        let request = LeaveRequest {
            member: self.member_id(),
            incarnation: self.incarnation(),
            outcome: outcome as i32,
            reason: reason.to_owned(),
        };
        let leave = || answer(deadline, self.control.leave(request.clone()));
        let left = Backoff::default().retry(deadline, is_retryable, leave).await;
        let refused = |refusal| MemberError::from_refusal(self.control.name(), WHAT, deadline.time_waited(), refusal);
        left.map(|_| ()).map_err(refused)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.heartbeats.abort();
    }
}

struct HeartbeatTask {
    control: Arc<dyn ControlPlane>,
    joined: JoinResponse,
    reports: watch::Receiver<HeartbeatReport>,
    view: watch::Sender<MemberView>,
    /// When the last answered heartbeat was sent.
    renewals: watch::Sender<LeaseMoment>,
    newest_batch: Arc<AtomicU64>,
    may_leave: Arc<AtomicBool>,
}

impl HeartbeatTask {
    async fn run(self) {
        let mut ticks = tokio::time::interval(heartbeat_interval(&self.joined).min(LONGEST_PAUSE));
        // After a stall one heartbeat is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answered = Instant::now();
        loop {
            ticks.tick().await;
            let sent = LeaseMoment::now();
            match self.beat().await {
                Ok(response) => {
                    answered = Instant::now();
                    self.renewals.send_replace(sent);
                    self.note_answer(response);
                }
                Err(refusal) if refusal.kind == RefusalKind::Fenced => return self.note_fence(refusal),
                Err(refusal) => self.note_silence(answered.elapsed(), &refusal),
            }
        }
    }

    /// Sends one heartbeat. Gives it up when the next one is due, so that a heartbeat that hangs does not cost the lease.
    async fn beat(&self) -> Result<HeartbeatResponse, Refusal> {
        let request = self.reports.borrow().request();
        answer(Deadline::from_now(heartbeat_interval(&self.joined)), self.control.heartbeat(request)).await
    }

    fn note_answer(&self, response: HeartbeatResponse) {
        self.newest_batch.store(response.batch, Ordering::Release);
        if response.leave && !self.may_leave.swap(true, Ordering::AcqRel) {
            tracing::info!("this worker trains on what it has read and leaves; the run goes on");
        }
        let barrier = self.barrier(&response);
        let view = MemberView {
            generation: response.generation,
            stop: response.stop.then_some(response.reason),
            finished: response.finished,
            group: response.group,
            barrier,
            draining: Some(response.draining).filter(|reason| !reason.is_empty()),
            broken_group: response.broken_group,
            bucket_move: response.bucket_move,
            ..MemberView::default()
        };
        self.publish(view);
    }

    /// The barrier of an answer. A known barrier keeps its time, because each answer is delayed differently.
    fn barrier(&self, response: &HeartbeatResponse) -> Option<AnnouncedBarrier> {
        let number = response.barrier;
        let known = self.view.borrow().barrier.filter(|known| known.number == number);
        let announced = || AnnouncedBarrier {
            number,
            at: Instant::now() + Duration::from_millis(u64::from(response.barrier_in_ms)),
        };
        (number > 0).then(|| known.unwrap_or_else(announced))
    }

    fn note_fence(&self, refusal: Refusal) {
        warn!(coordinator = self.control.name(), reason = %refusal, "no longer a member");
        let view = MemberView { fenced: Some(refusal.message), ..self.view.borrow().clone() };
        self.publish(view);
    }

    fn note_silence(&self, silence: Duration, refusal: &Refusal) {
        debug!(coordinator = self.control.name(), ?silence, %refusal, "heartbeat failed");
        if silence < lease(&self.joined) {
            return;
        }
        let known = self.view.borrow().clone();
        if known.lost.is_none() {
            warn!(coordinator = self.control.name(), ?silence, %refusal, "lease lost: no heartbeat was answered");
        }
        let lost = format!("{} has not answered for {silence:.1?}: {refusal}", self.control.name());
        self.publish(MemberView { lost: Some(lost), ..known });
    }

    /// Wakes the subscribers only when something changed.
    fn publish(&self, view: MemberView) {
        self.view.send_if_modified(|known| {
            let changed = *known != view;
            *known = view;
            changed
        });
    }
}

fn is_retryable(refusal: &Refusal) -> bool {
    refusal.kind.is_retryable()
}

fn lease(joined: &JoinResponse) -> Duration {
    // A zero would make the heartbeat interval panic.
    Duration::from_millis(u64::from(joined.lease_ms.max(HEARTBEATS_PER_LEASE)))
}

/// The time between two heartbeats, as a share of the lease.
fn heartbeat_interval(joined: &JoinResponse) -> Duration {
    lease(joined) / HEARTBEATS_PER_LEASE
}

impl HeartbeatReport {
    fn request(&self) -> HeartbeatRequest {
        HeartbeatRequest { long_waits: self.long_waits.long_waits(), ..self.request.clone() }
    }
}
