//! Membership under paused time, against a scripted coordinator.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::testing::{FakeCoordinator, LEASE_MS, away, script};

const TIMEOUT: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(LEASE_MS as u64);

async fn member(coordinator: FakeCoordinator) -> Membership {
    join(coordinator, &Shutdown::new()).await.unwrap()
}

async fn join(coordinator: FakeCoordinator, shutdown: &Shutdown) -> Result<Membership, MemberError> {
    Membership::join(Arc::new(coordinator), JoinRequest::default(), TIMEOUT, shutdown).await
}

fn refused(outcome: Result<Membership, MemberError>) -> MemberError {
    outcome.err().expect("the join should have failed")
}

#[tokio::test(start_paused = true)]
async fn a_join_waits_for_a_coordinator_that_starts_late() {
    let mut tries = 0;
    let late = script(move |_| {
        tries += 1;
        if tries < 4 { Err(away()) } else { Ok(JoinResponse { member: 9, incarnation: 1, ..JoinResponse::default() }) }
    });
    let membership = member(FakeCoordinator { join: late, ..FakeCoordinator::default() }).await;
    assert_eq!((membership.member(), membership.incarnation()), (9, 1));
}

#[tokio::test(start_paused = true)]
async fn an_absent_coordinator_is_named_with_the_time_waited() {
    let absent = FakeCoordinator { join: script(|_| Err(away())), ..FakeCoordinator::default() };
    let error = refused(join(absent, &Shutdown::new()).await);
    let MemberError::Unreachable { waited, .. } = &error else { panic!("{error}") };
    assert!(*waited >= TIMEOUT, "{waited:?}");
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
    membership.set_load(ServerLoad { rows: 5, bytes: 80, ..ServerLoad::default() });
    membership.set_waits(vec![ServerWait { server: 3, oldest_ms: 1200, ..ServerWait::default() }]);
    membership.set_disk(Disk { free_bytes: 1, size_bytes: 2 });
    tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
    let beats = beats.lock().unwrap().clone();
    assert_eq!(beats.len(), 3);
    let last = &beats[2];
    assert_eq!((last.member, last.incarnation), (7, 2));
    assert_eq!((last.progress.map(|p| p.step), last.load.map(|l| l.rows)), (Some(12), Some(5)));
    assert_eq!((last.waits[0].server, last.disk.map(|disk| disk.size_bytes)), (3, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_stop_reaches_the_subscriber_with_its_reason() {
    let reason = "run finished".to_owned();
    let last = HeartbeatResponse { generation: 3, stop: true, reason, ..HeartbeatResponse::default() };
    let heartbeat = script(move |_| Ok(last.clone()));
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
async fn a_barrier_that_was_asked_for_is_told_once_with_its_time() {
    let heartbeat = script(move |request: HeartbeatRequest| {
        let barrier_in_ms = if request.barrier > 0 { 1500 } else { 0 };
        Ok(HeartbeatResponse { barrier: request.barrier, barrier_in_ms, ..HeartbeatResponse::default() })
    });
    let membership = member(FakeCoordinator { heartbeat, ..FakeCoordinator::default() }).await;
    let mut view = membership.subscribe();
    membership.ask_for_barrier(4);
    let told = view.wait_for(|view| view.barrier.is_some()).await.unwrap().barrier.unwrap();
    let heard = Instant::now();
    assert_eq!((told.number, told.at), (4, heard + Duration::from_millis(1500)));
    // The next answers say the same of it, some time later.
    tokio::time::sleep(LEASE).await;
    assert_eq!(membership.subscribe().borrow().barrier, Some(told));
    membership.ask_for_barrier(5);
    let next = view.wait_for(|view| view.barrier.is_some_and(|next| next.number == 5)).await.unwrap().barrier.unwrap();
    assert!(next.at > told.at);
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
async fn one_heartbeat_that_hangs_does_not_cost_the_lease() {
    let beats = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&beats);
    let heartbeat = script(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        Ok(HeartbeatResponse::default())
    });
    let join = script(|_| Ok(JoinResponse { lease_ms: LEASE_MS, ..JoinResponse::default() }));
    let fake = Arc::new(FakeCoordinator { heartbeat, join, ..FakeCoordinator::default() });
    let control = Arc::clone(&fake) as Arc<dyn ControlPlane>;
    let membership = Membership::join(control, JoinRequest::default(), TIMEOUT, &Shutdown::new()).await.unwrap();
    fake.hangs.store(1, Ordering::Relaxed);
    tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
    assert!(beats.load(Ordering::Relaxed) > 0, "the coordinator would have given the place away");
    assert_eq!(membership.subscribe().borrow().lost, None);
}

/// Invariant WT-1.
#[tokio::test(start_paused = true)]
async fn a_coordinator_that_hangs_costs_no_more_than_was_said() {
    let hanging = || FakeCoordinator { hangs: AtomicU32::new(u32::MAX), ..FakeCoordinator::default() };
    let started = Instant::now();
    let text = refused(join(hanging(), &Shutdown::new()).await).to_string();
    assert!(text.contains("join the run for 30.0s: no answer within"), "{text}");
    assert_eq!(started.elapsed(), TIMEOUT);

    let started = Instant::now();
    let error = crate::wait_for_placement(&hanging(), TIMEOUT, &Shutdown::new()).await.unwrap_err();
    assert!(error.to_string().contains("get the placement for 30.0s: no answer within"), "{error}");
    assert_eq!(started.elapsed(), TIMEOUT);

    let fake = Arc::new(FakeCoordinator::default());
    let control = Arc::clone(&fake) as Arc<dyn ControlPlane>;
    let membership = Membership::join(control, JoinRequest::default(), TIMEOUT, &Shutdown::new()).await.unwrap();
    fake.hangs.store(u32::MAX, Ordering::Relaxed);
    let started = Instant::now();
    assert!(membership.leave(Outcome::Finished, "").await.is_err());
    assert_eq!(started.elapsed(), LEASE);
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
