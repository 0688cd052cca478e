//! The server as a worker sees it: a generated client calls a server behind a socket.
//! Saves and loads by members of the run and by strangers.

use zagros_protocol::control::{DescribeRequest, FileDigest, LoadRequest, SaveRequest, Writer};
use zagros_protocol::datapath::{Access, LookupRequest, PushRequest};
use zagros_protocol::{Refusal, RefusalKind, RunId};
use zagros_transport::control::storage_client::StorageClient;
use zagros_transport::datapath::embedding_client::EmbeddingClient;
use zagros_transport::{refusal_of, stamp_server};
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

fn storage(process: &Process) -> StorageClient<MemberChannel> {
    StorageClient::new(process.channel(Some(RUN)))
}

fn save_to(folder: impl ToString) -> SaveRequest {
    SaveRequest { folder: folder.to_string(), ..SaveRequest::default() }
}

fn load_of(folder: impl ToString, files: Vec<FileDigest>) -> LoadRequest {
    LoadRequest { folder: folder.to_string(), files, ..LoadRequest::default() }
}

fn file(name: &str) -> FileDigest {
    FileDigest { name: name.to_owned(), ..FileDigest::default() }
}

#[tokio::test]
async fn rows_are_saved_to_and_loaded_from_the_folders_of_the_job_only() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    process.client().lookup(lookup()).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let link = process.runs.path().join("link");
    std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    let up = format!("{}/a/../../b", process.runs.path().display());
    let folders = [elsewhere.path().join("made").display().to_string(), link.join("made").display().to_string(), up];
    for folder in folders.into_iter().chain(["s3://bucket/model".to_owned(), "relative".to_owned()]) {
        let load = load_of(&folder, vec![file("rows-0-of-1.zrows")]);
        let refusals =
            [storage(&process).save(save_to(&folder)).await.map(drop), storage(&process).load(load).await.map(drop)];
        for refused in refusals {
            let refusal = refusal_of(refused.unwrap_err());
            assert_eq!(refusal.kind, RefusalKind::Invalid);
            assert!(refusal.message.contains("is outside of the allowed folders"), "{refusal}");
        }
    }
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0, "something was made");

    let folder = process.runs.path().join("run/model").display().to_string();
    let saved = storage(&process).save(save_to(&folder)).await.unwrap().into_inner();
    assert_eq!(saved.rows, 3);
    assert_eq!(storage(&process).load(load_of(folder, saved.files)).await.unwrap().into_inner().rows, 3);
}

/// Another process at the same address has none of the rows. Its save would be an empty model.
#[tokio::test]
async fn a_request_for_an_ended_process_is_not_served_by_the_next_one() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    let instance = process.coordinator.change(|state| state.joined.clone()).unwrap().instance;
    let folder = process.runs.path().join("model");
    for (meant, expected) in [(instance, None), (instance ^ 1, Some(RefusalKind::Moved))] {
        let mut request = tonic::Request::new(save_to(folder.display()));
        stamp_server(meant, request.metadata_mut().as_mut());
        let refused = storage(&process).save(request).await.err().map(|status| refusal_of(status).kind);
        assert_eq!(refused, expected);
    }
}
