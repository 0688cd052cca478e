//! Membership, and the wait for the first placement, under paused time, against a scripted coordinator.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use zagros_coordinator_client::{ControlPlane, MemberError, Membership, wait_for_placement};
use zagros_fakes::{FakeControlPlane, LEASE};
use zagros_plumbing::Shutdown;
use zagros_protocol::control::{
    Disk, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveResponse, Outcome, PlacementResponse,
    ServerLoad, ServerWait,
};
use zagros_protocol::{Refusal, RefusalKind};

const TIMEOUT: Duration = Duration::from_secs(30);

fn coordinator() -> Arc<FakeControlPlane> {
    Arc::default()
}

fn away() -> Refusal {
    Refusal::new(RefusalKind::Unavailable, "connection refused")
}

async fn member(coordinator: &Arc<FakeControlPlane>) -> Membership {
    join(coordinator, &Shutdown::new()).await.unwrap()
}

async fn join(coordinator: &Arc<FakeControlPlane>, shutdown: &Shutdown) -> Result<Membership, MemberError> {
    let control = Arc::clone(coordinator) as Arc<dyn ControlPlane>;
    Membership::join(control, JoinRequest::default(), TIMEOUT, shutdown).await
}

async fn refused(coordinator: &Arc<FakeControlPlane>) -> MemberError {
    join(coordinator, &Shutdown::new()).await.err().expect("the join should have failed")
}

#[tokio::test(start_paused = true)]
async fn a_join_waits_for_a_coordinator_that_starts_late() {
    let coordinator = coordinator();
    let mut tries = 0;
    coordinator.join.set(move |_| {
        tries += 1;
        if tries < 4 { Err(away()) } else { Ok(JoinResponse { member: 9, incarnation: 1, ..JoinResponse::default() }) }
    });
    let membership = member(&coordinator).await;
    assert_eq!((membership.member_id(), membership.incarnation()), (9, 1));
}

#[tokio::test(start_paused = true)]
async fn a_join_that_fails_says_why() {
    let coordinator = coordinator();
    coordinator.join.refuse(RefusalKind::Mismatch, "job fingerprints differ");
    let error = refused(&coordinator).await;
    assert_eq!(error.to_string(), "coordinator (fake) refused to join the run: job fingerprints differ");
    assert_eq!(coordinator.join.requests().len(), 1, "it is reported at once");
    coordinator.join.disconnect();
    let error = refused(&coordinator).await;
    let MemberError::Unreachable { waited, .. } = &error else { panic!("{error}") };
    assert!(*waited >= TIMEOUT, "{waited:?}");
    let text = error.to_string();
    assert!(text.contains("coordinator (fake)"), "{text}");
    assert!(text.contains("join the run within 30.0s: connection refused"), "{text}");
    let shutdown = Shutdown::new();
    shutdown.request();
    let error = join(&coordinator, &shutdown).await.err().unwrap();
    assert!(matches!(error, MemberError::Stopped { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_carries_what_was_reported_and_comes_three_times_a_lease() {
    let coordinator = coordinator();
    let membership = member(&coordinator).await;
    membership.update_progress(|progress| progress.step = 12);
    membership.set_load(ServerLoad { rows: 5, bytes: 80, ..ServerLoad::default() });
    membership.set_waits(vec![ServerWait { server: 3, oldest_ms: 1200, ..ServerWait::default() }]);
    membership.set_disk(Disk { free_bytes: 1, size_bytes: 2 });
    tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
    let heartbeats = coordinator.heartbeat.requests();
    assert_eq!(heartbeats.len(), 3);
    let last = &heartbeats[2];
    assert_eq!((last.member, last.incarnation), (7, 1));
    assert_eq!((last.progress.map(|p| p.step), last.load.map(|l| l.rows)), (Some(12), Some(5)));
    assert_eq!((last.waits[0].server, last.disk.map(|disk| disk.size_bytes)), (3, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_stop_arrives_soon_under_a_long_lease_too() {
    let coordinator = Arc::new(FakeControlPlane::with_lease(Duration::from_hours(1)));
    let mut heartbeats = 0;
    coordinator.heartbeat.set(move |_| {
        heartbeats += 1;
        Ok(HeartbeatResponse { stop: heartbeats > 1, ..HeartbeatResponse::default() })
    });
    let membership = member(&coordinator).await;
    let joined = Instant::now();
    membership.subscribe().wait_for(|view| view.stop.is_some()).await.unwrap();
    assert_eq!(joined.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_requested_barrier_is_reported_once_with_its_time() {
    let coordinator = coordinator();
    coordinator.heartbeat.set(|request: HeartbeatRequest| {
        let barrier_in_ms = if request.barrier > 0 { 1500 } else { 0 };
        Ok(HeartbeatResponse { barrier: request.barrier, barrier_in_ms, ..HeartbeatResponse::default() })
    });
    let membership = member(&coordinator).await;
    let mut view = membership.subscribe();
    membership.ask_for_barrier(4);
    let barrier = view.wait_for(|view| view.barrier.is_some()).await.unwrap().barrier.unwrap();
    assert_eq!((barrier.number, barrier.at), (4, Instant::now() + Duration::from_millis(1500)));
    // The next answers name the same barrier, some time later.
    tokio::time::sleep(LEASE).await;
    assert_eq!(membership.subscribe().borrow().barrier, Some(barrier));
    membership.ask_for_barrier(5);
    let next = view.wait_for(|view| view.barrier.is_some_and(|next| next.number == 5)).await.unwrap().barrier.unwrap();
    assert!(next.at > barrier.at);
}

#[tokio::test(start_paused = true)]
async fn a_whole_lease_of_silence_is_a_lost_lease_and_an_answer_heals_it() {
    let coordinator = coordinator();
    coordinator.heartbeat.disconnect();
    let membership = member(&coordinator).await;
    let mut view = membership.subscribe();
    tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
    assert_eq!(view.borrow().lost, None);
    let lost = view.wait_for(|view| view.lost.is_some()).await.unwrap().lost.clone().unwrap();
    assert!(lost.starts_with("coordinator (fake) has not answered for 2.4s"), "{lost}");
    coordinator.reconnect();
    assert!(view.wait_for(|view| view.lost.is_none()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn one_heartbeat_that_hangs_does_not_cost_the_lease() {
    let coordinator = coordinator();
    let membership = member(&coordinator).await;
    coordinator.hang(1);
    tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
    let answered = coordinator.heartbeat.requests().len();
    assert!(answered > 0, "the coordinator would have given the member slot away");
    assert_eq!(membership.subscribe().borrow().lost, None);
}

/// Invariant WT-1.
#[tokio::test(start_paused = true)]
async fn a_coordinator_that_hangs_costs_no_more_than_the_timeout() {
    let hanging = coordinator();
    hanging.hang(u32::MAX);
    let started = Instant::now();
    let text = refused(&hanging).await.to_string();
    assert!(text.contains("join the run within 30.0s: no answer within"), "{text}");
    assert_eq!(started.elapsed(), TIMEOUT);

    let started = Instant::now();
    let error = wait_for_placement(&*hanging, TIMEOUT, &Shutdown::new()).await.unwrap_err();
    assert!(error.to_string().contains("get the placement within 30.0s: no answer within"), "{error}");
    assert_eq!(started.elapsed(), TIMEOUT);

    let coordinator = coordinator();
    let membership = member(&coordinator).await;
    coordinator.hang(u32::MAX);
    let started = Instant::now();
    assert!(membership.leave(Outcome::Finished, "").await.is_err());
    assert_eq!(started.elapsed(), LEASE);
}

#[tokio::test(start_paused = true)]
async fn a_fenced_member_learns_why_and_sends_no_further_heartbeat() {
    let coordinator = coordinator();
    coordinator.heartbeat.refuse(RefusalKind::Fenced, "dense worker 0 joined again");
    let membership = member(&coordinator).await;
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(membership.subscribe().borrow().fenced.as_deref(), Some("dense worker 0 joined again"));
    assert_eq!(coordinator.heartbeat.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn leaving_reports_the_outcome_once_the_coordinator_is_back_and_ends_the_heartbeats() {
    let coordinator = coordinator();
    let mut tries = 0;
    coordinator.leave.set(move |_| {
        tries += 1;
        if tries < 3 { Err(away()) } else { Ok(LeaveResponse {}) }
    });
    let membership = member(&coordinator).await;
    membership.leave(Outcome::Failed, "loss is not finite at step 7").await.unwrap();
    let heartbeats = coordinator.heartbeat.requests().len();
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(coordinator.heartbeat.requests().len(), heartbeats);
    let leaves = coordinator.leave.requests();
    assert_eq!(leaves.len(), 3);
    assert_eq!((leaves[2].outcome(), leaves[2].reason.as_str()), (Outcome::Failed, "loss is not finite at step 7"));
}

#[tokio::test(start_paused = true)]
async fn the_first_placement_ends_the_wait() {
    let fake = FakeControlPlane::default();
    let mut asked = 0;
    fake.placement.set(move |_| {
        asked += 1;
        match asked {
            1 => Err(away()),
            2 => Ok(PlacementResponse::default()),
            _ => Ok(PlacementResponse { generation: 1, ..PlacementResponse::default() }),
        }
    });
    let placement = wait_for_placement(&fake, TIMEOUT, &Shutdown::new()).await.unwrap();
    assert_eq!((placement.generation, fake.placement.requests().len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_placement_that_fails_says_why() {
    let fake = FakeControlPlane::default();
    let waiting_for = "embedding server 2 has not joined".to_owned();
    fake.placement.respond(PlacementResponse { waiting_for, ..PlacementResponse::default() });
    let text = wait_for_placement(&fake, TIMEOUT, &Shutdown::new()).await.unwrap_err().to_string();
    assert!(text.contains("after 30.0s: embedding server 2 has not joined"), "{text}");
    // Shutdown and final refusals end the wait at once.
    fake.placement.refuse(RefusalKind::Invalid, "no");
    let error = wait_for_placement(&fake, TIMEOUT, &Shutdown::new()).await.unwrap_err();
    assert!(matches!(error, MemberError::Refused { .. }), "{error}");
    let shutdown = Shutdown::new();
    shutdown.request();
    fake.placement.disconnect();
    let error = wait_for_placement(&fake, TIMEOUT, &shutdown).await.unwrap_err();
    assert!(matches!(error, MemberError::Stopped { .. }), "{error}");
}
