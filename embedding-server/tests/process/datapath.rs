//! The server as a worker sees it: a generated client calls a server behind a socket.

use zagros_protocol::control::{DescribeRequest, LoadRequest, SaveRequest, Writer};
use zagros_protocol::datapath::{Access, LookupRequest, PushRequest};
use zagros_protocol::{Refusal, RefusalKind, RunId};
use zagros_transport::control::storage_client::StorageClient;
use zagros_transport::datapath::embedding_client::EmbeddingClient;
use zagros_transport::refusal_of;
use zagros_zip::ZipEq;

use crate::fake::{MemberChannel, Process, RUN, ScriptedRun, WRITER, lookup_of, push_of, row_values, wait};

const IDS: [u64; 3] = [7, 8, u64::MAX];

pub(crate) fn lookup() -> LookupRequest {
    lookup_of(4, &IDS, Access::Train)
}

fn push(seq: u64) -> PushRequest {
    PushRequest { generation: 4, staleness: 2, ..push_of(WRITER, seq, &IDS, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) }
}

async fn rows(client: &mut EmbeddingClient<MemberChannel>) -> Vec<f32> {
    row_values(client.lookup(lookup()).await.unwrap().get_ref())
}

async fn refused(client: &mut EmbeddingClient<MemberChannel>, request: PushRequest) -> Refusal {
    refusal_of(client.push(request).await.unwrap_err())
}

#[tokio::test]
async fn rows_are_looked_up_pushed_once_and_looked_up_again_and_measured() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    let mut client = process.client();
    let first = rows(&mut client).await;
    assert!(first.iter().all(|value| value.is_finite() && *value != 0.0), "{first:?}");
    assert!(!client.push(push(1)).await.unwrap().into_inner().duplicate);
    assert!(client.push(push(1)).await.unwrap().into_inner().duplicate);
    let pushed = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let expected: Vec<f32> = first.iter().zip_eq(pushed).map(|(value, gradient)| value - gradient).collect();
    assert_eq!(rows(&mut client).await, expected);
    let text = process.get("/metrics").await;
    for line in [
        r#"zagros_embedding_table_rows{server="0",table="item"} 3"#,
        r#"zagros_embedding_table_ids_total{server="0",table="item",what="dropped"} 0"#,
        r#"zagros_embedding_table_lock_wait_seconds_total{server="0",table="item"} 0"#,
        r#"zagros_embedding_request_seconds_count{call="lookup",server="0"} 2"#,
        r#"zagros_embedding_request_rows_sum{call="push",server="0"} 3"#,
        r#"zagros_embedding_push_staleness_batches_sum{server="0"} 2"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// Invariant MB-2: members, generations and writers count from 1 in each run.
#[tokio::test]
async fn a_process_of_an_earlier_run_changes_nothing_and_is_shown_both_runs() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    let mut client = process.client();
    let first = rows(&mut client).await;
    let both = format!("embedding server 0 belongs to run {RUN}, but this request belongs to run 000000000000000b");
    let mut stale = EmbeddingClient::new(process.channel(Some(RunId(0xb))));
    let looked_up = refusal_of(stale.lookup(lookup()).await.unwrap_err());
    for refusal in [looked_up, refused(&mut stale, push(1)).await] {
        assert_eq!(refusal.kind, RefusalKind::Fenced);
        assert!(refusal.message.starts_with(&both), "{refusal}");
    }
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("model");
    let mut storage = StorageClient::new(process.channel(Some(RunId(0xb))));
    let save = SaveRequest { folder: below.display().to_string(), ..SaveRequest::default() };
    let refusals = [
        storage.describe(DescribeRequest {}).await.map(drop),
        storage.save(save.clone()).await.map(drop),
        storage.load(LoadRequest::default()).await.map(drop),
        StorageClient::new(process.channel(None)).save(save).await.map(drop),
    ];
    let kinds = refusals.map(|refused| refusal_of(refused.unwrap_err()).kind);
    assert_eq!(kinds, [RefusalKind::Fenced, RefusalKind::Fenced, RefusalKind::Fenced, RefusalKind::Mismatch]);
    assert!(!below.exists());
    assert_eq!(rows(&mut client).await, first);
    assert!(!client.push(push(1)).await.unwrap().into_inner().duplicate, "the push of the run was taken for a retry");
}

/// Invariant MB-1: a server learns of a new incarnation at once, and believes only the coordinator.
#[tokio::test]
async fn an_incarnation_that_was_never_assigned_fences_nobody() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    let mut client = process.client();
    for forged in [PushRequest { incarnation: u32::MAX, ..push(1) }, PushRequest { writer: 99, ..push(1) }] {
        assert_eq!(refused(&mut client, forged).await.kind, RefusalKind::Unavailable);
    }
    client.push(push(1)).await.unwrap();
    for far in [PushRequest { seq: u64::MAX, ..push(2) }, PushRequest { step: u64::MAX, ..push(2) }] {
        assert_eq!(refused(&mut client, far).await.kind, RefusalKind::Unavailable);
    }
    client.push(push(2)).await.unwrap();

    // Another process takes the worker's member slot.
    process.coordinator.change(|state| state.more_writers = vec![Writer { incarnation: 2, ..WRITER }]);
    let next = || PushRequest { incarnation: 2, ..push(1) };
    wait("the new process may push", async || process.client().push(next()).await.is_ok()).await;
    assert_eq!(refused(&mut client, push(3)).await.kind, RefusalKind::Fenced);
    // The run has reached a large number.
    process.coordinator.change(|state| state.batch = 1 << 40);
    let far_push = || PushRequest { seq: 1 << 40, step: 1 << 40, ..next() };
    wait("the coordinator has reported how far the run is", async || process.client().push(far_push()).await.is_ok())
        .await;
}
