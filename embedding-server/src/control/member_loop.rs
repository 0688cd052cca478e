//! The server as a member of the run: it fetches the placement, reports its load, and ends when the run is over.
//!
//! A server that is asked to end does not end at once, because workers need it for their last checkpoint. It reports the
//! request to the coordinator, which drains the run. The server serves until the coordinator says that the run is over.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};
use zagros_coordinator_client::{ControlPlane, MemberView, Membership};
use zagros_plumbing::metrics::DiskSpace;
use zagros_plumbing::{Deadline, Shutdown};
use zagros_protocol::control::{Disk, PlacementRequest, PlacementResponse};

use crate::EmbeddingService;
use crate::metrics::RecentLookups;
use crate::resharding::{MoveRunner, adopt_placement};

/// The period of load reports, and of retries to fetch the placement.
const PERIOD: Duration = Duration::from_secs(1);
/// How often a server that is frozen asks whether its move is decided. Its requests wait for the answer.
const UNDECIDED: Duration = Duration::from_millis(5);
/// The longest wait for the end of the run after the server was asked to end. One save may take this long. If the
/// coordinator does not answer, an idle server waits two periods.
const DRAIN: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// This process was asked to end, and as far as the server knows no worker needs it.
    Asked,
    /// This process was asked to end, and the next process in its slot recovers its rows from the log.
    Restarts,
    RunOver(String),
    /// The coordinator no longer counts this server as a member.
    Fenced(String),
    /// Neither the coordinator nor a worker sends anything.
    Abandoned {
        /// Who is silent and for how long, as the membership reports it.
        silence: String,
        /// How long ago the last request came.
        idle: Duration,
    },
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("asked to stop"),
            Self::Restarts => f.write_str("asked to stop; the next process takes over the log"),
            Self::RunOver(reason) => f.write_str(reason),
            Self::Fenced(reason) => write!(f, "no longer a member of the run: {reason}"),
            Self::Abandoned { silence, idle } => write!(f, "{silence}, and no request for {idle:.0?}"),
        }
    }
}

struct IdleTime {
    /// Requests that had started at the last look.
    requests: u64,
    since: Instant,
}

impl IdleTime {
    fn new() -> Self {
        Self { requests: 0, since: Instant::now() }
    }

    /// The idle time now. A server with a request in progress is not idle.
    fn measure(&mut self, service: &EmbeddingService) -> Duration {
        let (requests, under_way) = service.metrics.request_counts();
        if requests != self.requests || under_way > 0 {
            *self = Self { requests, since: Instant::now() };
        }
        self.since.elapsed()
    }
}

/// Runs until the server must stop. It acts on signals and on a timer, so a missed signal costs one period. Without a
/// coordinator it serves while workers send requests, and for `timeout` after the last one (invariant WT-1).
pub(crate) async fn take_part_in_run(
    service: &EmbeddingService,
    control: &dyn ControlPlane,
    membership: &Membership,
    mut moves: MoveRunner,
    (timeout, shutdown): (Duration, &Shutdown),
) -> StopReason {
    let mut view = membership.subscribe();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut serving = ServedPlacement::default();
    let mut idle = IdleTime::new();
    let mut recent = RecentLookups::default();
    let mut asked: Option<Deadline> = None;
    loop {
        let mut asks = false;
        tokio::select! {
            // The channel closes only when the heartbeats are aborted. The timer continues.
            Ok(()) = view.changed() => {}
            _ = ticks.tick() => report_load(service, membership, &mut recent),
            () = shutdown.requested(), if asked.is_none() => {
                asked = Some(Deadline::from_now(DRAIN));
                membership.set_leaving();
                info!(server = service.server_index().0, "asked to end; serving until the workers have saved and left");
            }
            () = service.writers.wait_for_unknown() => asks = true,
            () = service.moves.wait_for_request() => asks = true,
            () = tokio::time::sleep(UNDECIDED), if service.is_frozen() => asks = true,
        }
        let now = view.borrow_and_update().clone();
        let idle = idle.measure(service);
        if let Some(ended) = stop_reason(&now, idle, timeout) {
            // A server that is released ends in another way than one whose run is over: its placement tells.
            if matches!(ended, StopReason::RunOver(_)) && !serving.is_newest(&now) {
                let fetched = fetch_placement(control, membership.lease()).await;
                serving.adopt_fetched(service, &mut moves, &now, fetched);
            }
            return ended;
        }
        if asked.is_some_and(|deadline| is_drained(&now, idle, deadline)) {
            return StopReason::Asked;
        }
        service.writers.note_reached(membership.newest_batch());
        if asks || !serving.is_newest(&now) {
            tokio::select! {
                fetched = fetch_placement(control, membership.lease()) => serving.adopt_fetched(service, &mut moves, &now, fetched),
                () = shutdown.requested(), if asked.is_none() => {}
            }
        }
    }
}

/// Whether a server that was asked to end waits no longer: coordinator and workers are silent, or [`DRAIN`] is over.
fn is_drained(view: &MemberView, idle: Duration, deadline: Deadline) -> bool {
    if deadline.is_past() {
        let waited = deadline.time_waited();
        warn!("asked to end {waited:.0?} ago, but the workers have not left; ends without them");
        return true;
    }
    view.lost.is_some() && idle > PERIOD * 2
}

fn report_load(service: &EmbeddingService, membership: &Membership, recent: &mut RecentLookups) {
    service.note_disks();
    membership.set_load(recent.sample_load(&service.metrics, &service.tables, service.current_load()));
    if let Some(DiskSpace { free, size }) = service.disk_space() {
        membership.set_disk(Disk { free_bytes: free, size_bytes: size });
    }
}

fn stop_reason(view: &MemberView, idle: Duration, timeout: Duration) -> Option<StopReason> {
    let fenced = view.fenced.clone().map(StopReason::Fenced);
    let reported = fenced.or_else(|| view.stop.clone().map(StopReason::RunOver));
    let abandoned = || view.lost.clone().map(|silence| StopReason::Abandoned { silence, idle });
    reported.or_else(|| abandoned().filter(|_| idle > timeout))
}

async fn fetch_placement(control: &dyn ControlPlane, timeout: Duration) -> Result<PlacementResponse, String> {
    let asked = Deadline::from_now(timeout).bound(control.placement(PlacementRequest {})).await;
    let answer = asked.map_err(|within| format!("{} did not answer within {within:.1?}", control.name()))?;
    answer.map_err(|refusal| refusal.to_string())
}

#[derive(Debug, Default)]
struct ServedPlacement {
    generation: u64,
    /// The move that was under way, as the heartbeats name it.
    bucket_move: u64,
}

impl ServedPlacement {
    fn is_newest(&self, view: &MemberView) -> bool {
        (view.generation, view.bucket_move) == (self.generation, self.bucket_move)
    }

    /// Serves what was fetched, and starts what it asks for.
    fn adopt_fetched(
        &mut self,
        service: &EmbeddingService,
        moves: &mut MoveRunner,
        view: &MemberView,
        fetched: Result<PlacementResponse, String>,
    ) {
        let adopted =
            fetched.and_then(|placement| adopt_placement(service, &placement).map_err(|error| error.to_string()));
        match adopted {
            Ok(Some(adopted)) => {
                *self = Self { generation: adopted.generation.0, bucket_move: view.bucket_move };
                moves.start_announced(&adopted);
            }
            Ok(None) => {}
            Err(reason) => warn!(reason, "cannot fetch the placement; will ask again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zagros_fakes::FakeControlPlane;
    use zagros_protocol::control::{HeartbeatResponse, JoinRequest};
    use zagros_protocol::datapath::Access;
    use zagros_protocol::{BucketMap, Generation, ServerIndex};
    use zagros_transport::Credentials;

    use super::*;
    use crate::testing;
    use crate::testing::{lookup_of, placed};

    const TIMEOUT: Duration = Duration::from_secs(30);

    async fn wait(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_since_the_last_request_and_not_while_one_is_under_way() {
        let service = placed(1, 0);
        let mut idle = IdleTime::new();
        wait(40).await;
        assert_eq!(idle.measure(&service), Duration::from_secs(40));
        let lookup = || testing::lookup(&service, &lookup_of(&[(0, &[1])], Access::Train));
        service.metrics.lookup.observe(lookup).unwrap();
        assert_eq!(idle.measure(&service), Duration::ZERO);
        wait(40).await;
        // A save may take minutes. The server is not idle during a save.
        let saving = service.metrics.save.observe(|| Ok(idle.measure(&service))).unwrap();
        assert_eq!(saving, Duration::ZERO);
        wait(5).await;
        assert_eq!(idle.measure(&service), Duration::from_secs(5));
    }

    /// The heartbeat that ends a server may be the first one that tells of the placement without it.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_released_knows_that_it_owns_nothing() {
        let service = placed(1, 0);
        let control = Arc::new(FakeControlPlane::default());
        let buckets: Vec<u32> = (0..testing::BUCKETS).collect();
        let map = BucketMap::split_evenly(Generation(1), testing::BUCKETS, 1).with_moved(&buckets, ServerIndex(1));
        let placement =
            PlacementResponse { generation: 2, owners: map.pack_owners().into(), ..PlacementResponse::default() };
        control.placement.respond(placement);
        let reason = "released".to_owned();
        let answer = HeartbeatResponse { generation: 2, stop: true, reason, ..HeartbeatResponse::default() };
        control.heartbeat.respond(answer);
        let (stop, request) = (Shutdown::new(), JoinRequest::default());
        let membership = Membership::join(control.clone(), request, TIMEOUT, &stop).await.unwrap();
        let moves = MoveRunner::new(Arc::clone(&service), control.clone(), Credentials::Open, (7, 1));
        assert!(!service.owns_nothing());
        let ended = take_part_in_run(&service, control.as_ref(), &membership, moves, (TIMEOUT, &stop)).await;
        assert_eq!(ended, StopReason::RunOver("released".to_owned()));
        assert!(service.owns_nothing());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_asked_to_end_waits_for_the_run_unless_the_coordinator_is_silent() {
        let deadline = Deadline::from_now(DRAIN);
        let draining = MemberView { draining: Some("as the test wants".to_owned()), ..MemberView::default() };
        assert!(!is_drained(&draining, TIMEOUT * 2, deadline));
        let lost = MemberView { lost: Some("silent".to_owned()), ..draining.clone() };
        assert!(!is_drained(&lost, PERIOD, deadline) && is_drained(&lost, PERIOD * 3, deadline));
        tokio::time::sleep(DRAIN).await;
        assert!(is_drained(&draining, Duration::ZERO, deadline));
    }

    #[test]
    fn a_server_is_abandoned_when_coordinator_and_workers_are_silent() {
        let (idle, silence) = (TIMEOUT * 2, "coordinator (x) has not answered for 12.0s".to_owned());
        let lost = MemberView { lost: Some(silence.clone()), ..MemberView::default() };
        assert_eq!(stop_reason(&lost, idle, TIMEOUT), Some(StopReason::Abandoned { silence, idle }));
        assert_eq!(stop_reason(&lost, TIMEOUT, TIMEOUT), None);
        assert_eq!(stop_reason(&MemberView::default(), idle, TIMEOUT), None);
        let stopped = MemberView { stop: Some("run finished".to_owned()), ..lost };
        assert_eq!(stop_reason(&stopped, idle, TIMEOUT), Some(StopReason::RunOver("run finished".to_owned())));
    }
}
