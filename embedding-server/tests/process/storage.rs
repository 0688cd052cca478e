//! Saves and loads by members of the run and by strangers.

use zagros_protocol::RefusalKind;
use zagros_protocol::control::{FileDigest, LoadRequest, SaveRequest};
use zagros_transport::control::storage_client::StorageClient;
use zagros_transport::{refusal_of, stamp_server};

use crate::datapath::lookup;
use crate::fake::{MemberChannel, Process, RUN, ScriptedRun};

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
