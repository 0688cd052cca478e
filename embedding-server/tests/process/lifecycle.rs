//! How a server joins a run, follows the coordinator and ends.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use zagros_embedding_server::ServerError;
use zagros_plumbing::StopMeaning;
use zagros_protocol::control::Outcome;
use zagros_protocol::datapath::{Access, Encoding, LookupRequest};
use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind};
use zagros_transport::refusal_of;

use crate::fake::{BUCKETS, Process, ScriptedRun, away, wait};

/// A `cluster.timeout_seconds` that tests wait for.
const SHORT: Duration = Duration::from_millis(200);

/// A lookup without rows, which succeeds whenever the server serves.
fn no_rows(generation: u64) -> LookupRequest {
    let (access, encoding) = (Access::Read as i32, Encoding::F32 as i32);
    LookupRequest { generation, access, encoding, ..LookupRequest::default() }
}

#[tokio::test]
async fn it_is_unready_until_there_is_a_placement_and_follows_each_new_one() {
    let process = Process::start(ScriptedRun::default()).await;
    process.coordinator.until("it joined", |state| state.joined.is_some()).await;
    let unready = process.get("/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("has no placement yet"), "{unready}");
    assert!(process.get("/healthz").await.starts_with("HTTP/1.1 200"));
    for generation in [1, 2] {
        let map = BucketMap::split_evenly(Generation(generation), BUCKETS, 1);
        process.coordinator.change(|state| state.map = Some(map));
        let served = async || process.client().lookup(no_rows(generation)).await.is_ok();
        wait("the generation is served", served).await;
    }
}

#[tokio::test]
async fn it_stops_and_leaves_when_the_run_is_over() {
    let process = Process::ready(ScriptedRun::placed(1)).await;
    let coordinator = process.coordinator.clone();
    // An open connection does not delay the end.
    let mut client = process.client();
    client.lookup(no_rows(1)).await.unwrap();
    coordinator.change(|state| state.stop = Some("the run has finished".to_owned()));
    process.ended().await.unwrap();
    let left = coordinator.change(|state| state.left.clone()).unwrap();
    assert_eq!((left.outcome(), left.reason.as_str()), (Outcome::Finished, "the run has finished"));
}

#[tokio::test]
async fn a_server_that_is_asked_to_end_serves_until_the_run_is_over() {
    let process = Process::ready(ScriptedRun::placed(1)).await;
    let coordinator = process.coordinator.clone();
    process.shutdown.request();
    coordinator.until("it said so", |state| state.leaving).await;
    let mut client = process.client();
    client.lookup(no_rows(1)).await.unwrap();
    assert!(coordinator.change(|state| state.left.clone()).is_none());
    coordinator.change(|state| state.stop = Some("the workers have left".to_owned()));
    process.ended().await.unwrap();
    assert!(coordinator.change(|state| state.left.clone()).is_some());
}

/// A supervisor starts the next process with the same log. No other process of the run ends.
#[tokio::test]
async fn a_server_with_a_successor_ends_at_once_and_drains_no_run() {
    let coordinator = ScriptedRun::placed(1);
    let process = Process::started(coordinator.clone(), Duration::from_secs(30), StopMeaning::Restart).await;
    process.until_ready().await;
    process.shutdown.request();
    process.ended().await.unwrap();
    let (leaving, left) = coordinator.change(|state| (state.leaving, state.left.clone()));
    assert_eq!((leaving, left), (false, None), "the coordinator waits for the next process");
}

#[tokio::test]
async fn a_server_that_is_asked_to_end_without_a_coordinator_ends_at_once() {
    let process = Process::ready(ScriptedRun::placed(1)).await;
    let coordinator = process.coordinator.clone();
    coordinator.change(|state| state.refuse_heartbeat = Some(away()));
    process.shutdown.request();
    process.ended().await.unwrap();
    assert_eq!(coordinator.change(|state| state.left.clone()).unwrap().outcome(), Outcome::Interrupted);
}

#[tokio::test]
async fn it_stops_waiting_for_a_coordinator_when_asked_to() {
    let coordinator = ScriptedRun::default();
    coordinator.change(|state| state.refuse_join = Some(away()));
    let process = Process::start(coordinator.clone()).await;
    coordinator.until("it tried to join", |state| state.joined.is_some()).await;
    let refusal = refusal_of(process.client().lookup(no_rows(1)).await.unwrap_err());
    assert!(refusal.kind.is_retryable() && refusal.message.contains("has not joined a run yet"), "{refusal}");
    process.shutdown.request();
    process.ended().await.unwrap();
}

#[tokio::test]
async fn another_job_is_an_error_that_says_so() {
    let coordinator = ScriptedRun::default();
    let other = Refusal::new(RefusalKind::Mismatch, "job fingerprints differ");
    coordinator.change(|state| state.refuse_join = Some(other));
    let error = Process::start(coordinator).await.ended().await.unwrap_err();
    assert_eq!(error.to_string(), "embedding server 0 could not join the run");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("coordinator (fake) refused to join the run: job fingerprints differ"), "{cause}");
}

#[tokio::test]
async fn a_server_that_was_replaced_stops_with_the_reason() {
    let process = Process::ready(ScriptedRun::placed(1)).await;
    let replaced = Refusal::new(RefusalKind::Fenced, "a newer process took the place of embedding server 0");
    process.coordinator.change(|state| state.refuse_heartbeat = Some(replaced));
    let error = process.ended().await.unwrap_err();
    let ServerError::Fenced { index: 0, reason } = &error else { panic!("{error}") };
    assert!(reason.contains("a newer process"), "{error}");
}

/// Invariant WT-1: no process is left that could report the end of the run.
#[tokio::test]
async fn a_server_without_coordinator_and_workers_ends_and_says_so() {
    let process = Process::started(ScriptedRun::placed(1), SHORT, StopMeaning::Drain).await;
    process.until_ready().await;
    process.coordinator.change(|state| state.refuse_heartbeat = Some(away()));
    let error = process.ended().await.unwrap_err();
    assert!(matches!(error, ServerError::Abandoned { index: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("coordinator (fake) has not answered for"), "{text}");
    assert!(text.contains("connection refused, and no worker has sent a request in the last"), "{text}");
}

#[tokio::test]
async fn a_half_open_connection_is_not_a_failure() {
    let process = Process::started(ScriptedRun::placed(1), SHORT, StopMeaning::Drain).await;
    process.until_ready().await;
    let mut admin = TcpStream::connect(process.admin).await.unwrap();
    admin.write_all(b"GET /heal").await.unwrap();
    let _data = TcpStream::connect(&process.address).await.unwrap();
    // The server answers a later connection only after it has accepted the connections above.
    process.until_ready().await;
    process.client().lookup(no_rows(1)).await.unwrap();
    process.coordinator.change(|state| state.stop = Some("run finished".to_owned()));
    process.ended().await.unwrap();
}

#[tokio::test]
async fn it_continues_to_serve_while_the_coordinator_is_away() {
    let process = Process::ready(ScriptedRun::placed(1)).await;
    process.coordinator.change(|state| (state.refuse_heartbeat, state.load) = (Some(away()), None));
    process.coordinator.until("it still reports", |state| state.load.is_some()).await;
    process.client().lookup(no_rows(1)).await.unwrap();
    assert!(process.get("/readyz").await.starts_with("HTTP/1.1 200"));
    process.coordinator.change(|state| (state.refuse_heartbeat, state.stop) = (None, Some("over".to_owned())));
    process.ended().await.unwrap();
}
