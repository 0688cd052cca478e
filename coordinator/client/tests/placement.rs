//! The wait for the first placement under paused time, against a scripted coordinator.

use std::time::Duration;

use zagros_coordinator_client::{MemberError, wait_for_placement};
use zagros_fakes::FakeControlPlane;
use zagros_plumbing::Shutdown;
use zagros_protocol::control::PlacementResponse;
use zagros_protocol::{Refusal, RefusalKind};

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn the_first_placement_ends_the_wait() {
    let fake = FakeControlPlane::default();
    let mut asked = 0;
    fake.placement.set(move |_| {
        asked += 1;
        match asked {
            1 => Err(Refusal::new(RefusalKind::Unavailable, "connection refused")),
            2 => Ok(PlacementResponse::default()),
            _ => Ok(PlacementResponse { generation: 1, ..PlacementResponse::default() }),
        }
    });
    let placement = wait_for_placement(&fake, TIMEOUT, &Shutdown::new()).await.unwrap();
    assert_eq!((placement.generation, fake.placement.requests().len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_missing_server_is_named_after_the_timeout() {
    let fake = FakeControlPlane::default();
    let waiting_for = "embedding server 2 has not joined".to_owned();
    fake.placement.respond(PlacementResponse { waiting_for, ..PlacementResponse::default() });
    let error = wait_for_placement(&fake, TIMEOUT, &Shutdown::new()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("after 30.0s: embedding server 2 has not joined"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_and_final_refusals_end_the_wait_at_once() {
    let fake = FakeControlPlane::default();
    fake.placement.refuse(RefusalKind::Invalid, "no");
    let error = wait_for_placement(&fake, TIMEOUT, &Shutdown::new()).await.unwrap_err();
    assert!(matches!(error, MemberError::Refused { .. }), "{error}");
    let shutdown = Shutdown::new();
    shutdown.request();
    fake.placement.disconnect();
    let error = wait_for_placement(&fake, TIMEOUT, &shutdown).await.unwrap_err();
    assert!(matches!(error, MemberError::Stopped { .. }), "{error}");
}
