//! Saves and loads by members of the run and by strangers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use zagros_embedding_client::{ClientConfig, EmbeddingClient, GrpcShard};
use zagros_protocol::RefusalKind;
use zagros_protocol::control::{DescribeRequest, FileDigest, LoadRequest, SaveRequest};
use zagros_protocol::datapath::Encoding;
use zagros_transport::control::storage_client::StorageClient;
use zagros_transport::{refusal_of, stamp_server};

use crate::datapath::lookup;
use crate::fake::{MemberChannel, Process, RUN, ScriptedRun, WRITER};

fn storage(process: &Process) -> StorageClient<MemberChannel> {
    StorageClient::new(process.channel(Some(RUN)))
}

async fn rows(process: &Process) -> u64 {
    storage(process).describe(DescribeRequest {}).await.unwrap().into_inner().tables[0].rows
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

#[tokio::test]
async fn a_load_without_files_does_not_empty_the_tables() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    process.client().lookup(lookup()).await.unwrap();
    let nothing = load_of(process.runs.path().display(), Vec::new());
    let refusal = refusal_of(storage(&process).load(nothing).await.unwrap_err());
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert!(refusal.message.contains("names no file, so it would only remove rows"), "{refusal}");
    assert_eq!(rows(&process).await, 3);
}

#[tokio::test]
async fn an_error_does_not_show_the_content_of_a_file() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    let secret = b"SECRET-KEY=0123456789";
    std::fs::write(process.runs.path().join("secret.txt"), secret).unwrap();
    let path = process.runs.path().display().to_string();
    let load = load_of(&path, vec![file("secret.txt")]);
    let refusal = refusal_of(storage(&process).load(load).await.unwrap_err());
    assert!(refusal.message.contains("secret.txt is not a file of rows"), "{refusal}");
    for reported in ["SECRET", "53", "0x53", "83"] {
        assert!(!refusal.message.replace(&path, "").contains(reported), "{refusal}");
    }
}

/// A proxy. It forwards the requests of the first connection but not their answers, and closes the connection once
/// `file` is written. Later connections work.
async fn proxy(server: String, file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut upstream = TcpStream::connect(&server).await.unwrap();
        let written = async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = copy(&mut client, &mut upstream) => panic!("the client gave up"),
            () = written => drop((client, upstream)),
        }
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut upstream = TcpStream::connect(&server).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut upstream).await });
        }
    });
    address
}

#[tokio::test]
async fn a_retried_save_is_answered_again_and_made_once() {
    let process = Process::ready(ScriptedRun::placed(4)).await;
    process.client().lookup(lookup()).await.unwrap();
    let folder = process.runs.path().join("run/model");
    let file = folder.join("rows-0-of-1.zrows");
    let through = proxy(process.address.clone(), file.clone()).await;
    process.coordinator.change(|state| state.proxy = Some(through));
    let timeout = Duration::from_secs(30);
    let config = ClientConfig { writer: WRITER.member, incarnation: WRITER.incarnation, wire: Encoding::F32, timeout };
    let connect = Arc::new(move |entry: &_| GrpcShard::connect(entry, timeout, &zagros_transport::Credentials::Open));
    let client = EmbeddingClient::new(config, process.coordinator.control_plane(), connect);
    client.refresh_placement().await.unwrap();
    let server = client.known_servers().remove(0);
    let saved = tokio::time::timeout(timeout, server.save(save_to(folder.display()))).await;
    let saved = saved.expect("the save hangs").unwrap();
    assert_eq!((saved.rows, saved.files.len()), (3, 1));
    let saves = r#"zagros_embedding_request_seconds_count{call="save",server="0"} 1"#;
    let text = process.get("/metrics").await;
    assert!(text.contains(saves), "the rows were saved twice: {text}");
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
