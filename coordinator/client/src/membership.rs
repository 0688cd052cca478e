//! A member's place in the run: joined with patience, kept by heartbeats, given back by leaving.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, warn};
use zagros_plumbing::{Backoff, Deadline, Shutdown};
use zagros_protocol::control::{
    HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, Outcome, Progress, ServerLoad,
};
use zagros_protocol::{Refusal, RefusalKind};

use crate::{ControlPlane, MemberError};

/// Heartbeats per lease: two may be lost before the third counts.
const HEARTBEATS_PER_LEASE: u32 = 3;
/// However long the lease: a member hears that the run is over, or of a new placement, within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the coordinator last told a member, and whether it still answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberView {
    /// Generation of the placement; when it rises, fetch the placement again.
    pub generation: u64,
    /// Why the coordinator wants this member to stop: the run ended or failed.
    pub stop: Option<String>,
    /// Why this member is no longer one: a newer process took its place, or its lease expired. Final.
    pub fenced: Option<String>,
    /// No heartbeat was answered for a whole lease, by whom and for how long; `None` again once one is. The
    /// holder decides what to do: the data path works without a coordinator.
    pub lost: Option<String>,
}

/// Membership in a run, kept alive by a background task until it is left or dropped.
pub struct Membership {
    control: Arc<dyn ControlPlane>,
    joined: JoinResponse,
    report: watch::Sender<Report>,
    view: watch::Receiver<MemberView>,
    heartbeats: JoinHandle<()>,
}

/// What the next heartbeat carries.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    progress: Option<Progress>,
    load: Option<ServerLoad>,
}

impl Membership {
    /// Joins the run, trying again while the coordinator is away or this place is still held by a process that is
    /// gone, and starts the heartbeats.
    ///
    /// # Errors
    /// [`MemberError::Unreachable`] after `patience`, [`MemberError::Refused`] at once when a retry cannot help,
    /// [`MemberError::Stopped`] when shutdown is requested first.
    pub async fn join(
        control: Arc<dyn ControlPlane>,
        request: JoinRequest,
        patience: Duration,
        shutdown: &Shutdown,
    ) -> Result<Self, MemberError> {
        const WHAT: &str = "join the run";
        let deadline = Deadline::after(patience);
        let backoff = Backoff::default();
        let joined = tokio::select! {
            joined = backoff.retry(deadline, is_retryable, || control.join(request.clone())) => joined,
            () = shutdown.requested() => {
                return Err(MemberError::Stopped { coordinator: control.name().to_owned(), what: WHAT });
            }
        };
        match joined {
            Ok(joined) => Ok(Self::start(control, joined)),
            Err(refusal) => Err(MemberError::from_refusal(control.name(), WHAT, deadline.waited(), refusal)),
        }
    }

    fn start(control: Arc<dyn ControlPlane>, joined: JoinResponse) -> Self {
        let (report, reports) = watch::channel(Report::default());
        let first = MemberView { generation: joined.generation, ..MemberView::default() };
        let (publish, view) = watch::channel(first);
        let task = Heartbeats { control: Arc::clone(&control), joined, reports, view: publish };
        Self { control, joined, report, view, heartbeats: tokio::spawn(task.run()) }
    }

    /// Member id; a worker's is its writer id on the data path.
    #[must_use]
    pub fn member(&self) -> u64 {
        self.joined.member
    }

    /// Counts up each time a process takes this place.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.joined.epoch
    }

    /// How long this member may be silent.
    #[must_use]
    pub fn lease(&self) -> Duration {
        lease(&self.joined)
    }

    /// Generation of the placement, as last heard.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.view.borrow().generation
    }

    /// Changes in what the coordinator tells.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<MemberView> {
        self.view.clone()
    }

    /// Training progress that the next heartbeat carries.
    pub fn set_progress(&self, progress: Progress) {
        self.report.send_modify(|report| report.progress = Some(progress));
    }

    /// Server load that the next heartbeat carries.
    pub fn set_load(&self, load: ServerLoad) {
        self.report.send_modify(|report| report.load = Some(load));
    }

    /// Stops the heartbeats, tells the last progress and leaves; tried for at most one lease, after which the
    /// coordinator counts this member as lost anyway.
    ///
    /// # Errors
    /// When the coordinator does not answer or no longer knows this member; the member is gone either way.
    pub async fn leave(&self, outcome: Outcome, reason: &str) -> Result<(), MemberError> {
        const WHAT: &str = "leave the run";
        self.heartbeats.abort();
        let deadline = Deadline::after(self.lease());
        let last_words = heartbeat_request(&self.joined, *self.report.borrow());
        // Only the status page misses a number when this one fails.
        let brief = self.lease() / HEARTBEATS_PER_LEASE;
        let _ = tokio::time::timeout(brief, self.control.heartbeat(last_words)).await;
        let request = LeaveRequest {
            member: self.member(),
            epoch: self.epoch(),
            outcome: outcome as i32,
            reason: reason.to_owned(),
        };
        let left = Backoff::default().retry(deadline, is_retryable, || self.control.leave(request.clone())).await;
        let refused = |refusal| MemberError::from_refusal(self.control.name(), WHAT, deadline.waited(), refusal);
        left.map(|_| ()).map_err(refused)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.heartbeats.abort();
    }
}

/// The background task.
struct Heartbeats {
    control: Arc<dyn ControlPlane>,
    joined: JoinResponse,
    reports: watch::Receiver<Report>,
    view: watch::Sender<MemberView>,
}

impl Heartbeats {
    async fn run(self) {
        let mut ticks = tokio::time::interval((lease(&self.joined) / HEARTBEATS_PER_LEASE).min(LONGEST_PAUSE));
        // After a stall one heartbeat is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answered = Instant::now();
        loop {
            ticks.tick().await;
            match self.beat().await {
                Ok(response) => {
                    answered = Instant::now();
                    self.heard(response);
                }
                Err(refusal) if refusal.kind == RefusalKind::Fenced => return self.fenced(refusal),
                Err(refusal) => self.unheard(answered.elapsed(), &refusal),
            }
        }
    }

    /// One heartbeat, given up after a lease: by then its answer no longer matters.
    async fn beat(&self) -> Result<HeartbeatResponse, Refusal> {
        let request = heartbeat_request(&self.joined, *self.reports.borrow());
        let beat = tokio::time::timeout(lease(&self.joined), self.control.heartbeat(request)).await;
        beat.unwrap_or_else(|_| Err(Refusal::new(RefusalKind::Deadline, "no answer to a heartbeat within a lease")))
    }

    fn heard(&self, response: HeartbeatResponse) {
        let view = MemberView {
            generation: response.generation,
            stop: response.stop.then_some(response.reason),
            fenced: None,
            lost: None,
        };
        self.publish(view);
    }

    fn fenced(&self, refusal: Refusal) {
        warn!(coordinator = self.control.name(), reason = %refusal, "no longer a member");
        let view = MemberView { fenced: Some(refusal.message), ..self.view.borrow().clone() };
        self.publish(view);
    }

    fn unheard(&self, silence: Duration, refusal: &Refusal) {
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

fn heartbeat_request(joined: &JoinResponse, report: Report) -> HeartbeatRequest {
    HeartbeatRequest { member: joined.member, epoch: joined.epoch, progress: report.progress, load: report.load }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::testing::{FakeCoordinator, LEASE_MS, away, script};

    const PATIENCE: Duration = Duration::from_secs(30);
    const LEASE: Duration = Duration::from_millis(LEASE_MS as u64);

    async fn member(coordinator: FakeCoordinator) -> Membership {
        join(coordinator, &Shutdown::new()).await.unwrap()
    }

    async fn join(coordinator: FakeCoordinator, shutdown: &Shutdown) -> Result<Membership, MemberError> {
        Membership::join(Arc::new(coordinator), JoinRequest::default(), PATIENCE, shutdown).await
    }

    fn refused(outcome: Result<Membership, MemberError>) -> MemberError {
        outcome.err().expect("the join should have failed")
    }

    #[tokio::test(start_paused = true)]
    async fn a_join_waits_for_a_coordinator_that_starts_late() {
        let mut tries = 0;
        let late = script(move |_| {
            tries += 1;
            if tries < 4 { Err(away()) } else { Ok(JoinResponse { member: 9, epoch: 1, ..JoinResponse::default() }) }
        });
        let membership = member(FakeCoordinator { join: late, ..FakeCoordinator::default() }).await;
        assert_eq!((membership.member(), membership.epoch()), (9, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_absent_coordinator_is_named_with_the_time_waited() {
        let absent = FakeCoordinator { join: script(|_| Err(away())), ..FakeCoordinator::default() };
        let error = refused(join(absent, &Shutdown::new()).await);
        let MemberError::Unreachable { waited, .. } = &error else { panic!("{error}") };
        assert!(*waited >= PATIENCE, "{waited:?}");
        let text = error.to_string();
        assert!(text.contains("join the run for 30.0s: connection refused"), "{text}");
        assert!(text.contains("coordinator (fake)"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_mismatch_is_told_at_once() {
        let tries = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&tries);
        let other_job = script(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(Refusal::new(RefusalKind::Mismatch, "job fingerprints differ"))
        });
        let error = refused(join(FakeCoordinator { join: other_job, ..Default::default() }, &Shutdown::new()).await);
        assert_eq!(error.to_string(), "coordinator (fake) refused to join the run: job fingerprints differ");
        assert_eq!(tries.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_the_wait_for_a_coordinator() {
        let shutdown = Shutdown::new();
        shutdown.request();
        let absent = FakeCoordinator { join: script(|_| Err(away())), ..FakeCoordinator::default() };
        let error = refused(join(absent, &shutdown).await);
        assert!(matches!(error, MemberError::Stopped { .. }), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_carries_what_was_reported_and_comes_three_times_a_lease() {
        let beats = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&beats);
        let heartbeat = script(move |request| {
            seen.lock().unwrap().push(request);
            Ok(HeartbeatResponse::default())
        });
        let membership = member(FakeCoordinator { heartbeat, ..FakeCoordinator::default() }).await;
        membership.set_progress(Progress { step: 12, ..Progress::default() });
        membership.set_load(ServerLoad { rows: 5, bytes: 80 });
        tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
        let beats = beats.lock().unwrap().clone();
        assert_eq!(beats.len(), 3);
        let last = beats[2];
        assert_eq!((last.member, last.epoch), (7, 2));
        assert_eq!((last.progress.map(|p| p.step), last.load.map(|l| l.rows)), (Some(12), Some(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_reaches_the_subscriber_with_its_reason() {
        let heartbeat =
            script(|_| Ok(HeartbeatResponse { generation: 3, stop: true, reason: "run finished".to_owned() }));
        let membership = member(FakeCoordinator { heartbeat, ..FakeCoordinator::default() }).await;
        let mut view = membership.subscribe();
        let told = view.wait_for(|view| view.stop.is_some()).await.unwrap().clone();
        assert_eq!((told.stop.as_deref(), told.generation), (Some("run finished"), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn under_a_long_lease_a_stop_is_still_heard_soon() {
        let beats = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&beats);
        let join = script(|_| Ok(JoinResponse { lease_ms: 3_600_000, ..JoinResponse::default() }));
        let heartbeat = script(move |_| {
            let beats = seen.fetch_add(1, Ordering::Relaxed);
            Ok(HeartbeatResponse { stop: beats > 0, ..HeartbeatResponse::default() })
        });
        let membership = member(FakeCoordinator { join, heartbeat, ..FakeCoordinator::default() }).await;
        let joined = Instant::now();
        membership.subscribe().wait_for(|view| view.stop.is_some()).await.unwrap();
        assert_eq!(joined.elapsed(), LONGEST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_lease_of_silence_is_a_lost_lease_and_an_answer_heals_it() {
        let back = Arc::new(Mutex::new(false));
        let is_back = Arc::clone(&back);
        let heartbeat =
            script(move |_| if *is_back.lock().unwrap() { Ok(HeartbeatResponse::default()) } else { Err(away()) });
        let membership = member(FakeCoordinator { heartbeat, ..FakeCoordinator::default() }).await;
        let mut view = membership.subscribe();
        tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
        assert_eq!(view.borrow().lost, None);
        let told = view.wait_for(|view| view.lost.is_some()).await.unwrap().lost.clone().unwrap();
        assert!(told.starts_with("coordinator (fake) has not answered for 2.4s"), "{told}");
        *back.lock().unwrap() = true;
        assert!(view.wait_for(|view| view.lost.is_none()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fenced_member_is_told_and_beats_no_more() {
        let beats = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&beats);
        let heartbeat = script(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
            Err(Refusal::new(RefusalKind::Fenced, "dense worker 0 joined again"))
        });
        let membership = member(FakeCoordinator { heartbeat, ..FakeCoordinator::default() }).await;
        tokio::time::sleep(LEASE * 3).await;
        assert_eq!(membership.subscribe().borrow().fenced.as_deref(), Some("dense worker 0 joined again"));
        assert_eq!(beats.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_a_coordinator_that_is_gone_takes_no_longer_than_a_lease() {
        let leave = script(|_| Err(away()));
        let membership = member(FakeCoordinator { leave, ..FakeCoordinator::default() }).await;
        let error = membership.leave(Outcome::Finished, "").await.unwrap_err();
        let MemberError::Unreachable { waited, .. } = &error else { panic!("{error}") };
        assert!((LEASE..LEASE * 2).contains(waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_tells_the_outcome_once_the_coordinator_is_back_and_ends_the_heartbeats() {
        let (told, beats) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU32::new(0)));
        let (leaves, seen) = (Arc::clone(&told), Arc::clone(&beats));
        let leave = script(move |request| {
            leaves.lock().unwrap().push(request);
            if leaves.lock().unwrap().len() < 3 { Err(away()) } else { Ok(Default::default()) }
        });
        let heartbeat = script(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
            Ok(HeartbeatResponse::default())
        });
        let membership = member(FakeCoordinator { leave, heartbeat, ..FakeCoordinator::default() }).await;
        membership.leave(Outcome::Failed, "loss is not finite at step 7").await.unwrap();
        let last_words = beats.load(Ordering::Relaxed);
        tokio::time::sleep(LEASE * 3).await;
        assert_eq!(beats.load(Ordering::Relaxed), last_words);
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 3);
        assert_eq!((told[2].outcome(), told[2].reason.as_str()), (Outcome::Failed, "loss is not finite at step 7"));
    }
}
