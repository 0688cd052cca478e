//! Saving and loading, for those who may ask for it and for strangers.

use zagros_protocol::control::storage_client::StorageClient;
use zagros_protocol::control::{DescribeRequest, LoadRequest, SaveRequest};
use zagros_protocol::{Refusal, RefusalKind};

use crate::datapath::lookup;
use crate::fake::{FakeCoordinator, MemberChannel, Process, RUN};

fn storage(process: &Process) -> StorageClient<MemberChannel> {
    StorageClient::new(process.channel(Some(RUN)))
}

async fn rows(process: &Process) -> u64 {
    storage(process).describe(DescribeRequest {}).await.unwrap().into_inner().tables[0].rows
}

fn save_to(folder: impl ToString) -> SaveRequest {
    SaveRequest { folder: folder.to_string(), ..SaveRequest::default() }
}

#[tokio::test]
async fn rows_go_to_and_come_from_the_folders_of_the_job_alone() {
    let process = Process::ready(FakeCoordinator::placed(4)).await;
    process.client().lookup(lookup()).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let link = process.runs.path().join("link");
    std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    let up = format!("{}/a/../../b", process.runs.path().display());
    let folders = [elsewhere.path().join("made").display().to_string(), link.join("made").display().to_string(), up];
    for folder in folders.into_iter().chain(["s3://bucket/model".to_owned(), "relative".to_owned()]) {
        let load = LoadRequest { folder: folder.clone(), files: vec!["rows-0-of-1.zrows".to_owned()], replace: true };
        let refusals =
            [storage(&process).save(save_to(&folder)).await.map(drop), storage(&process).load(load).await.map(drop)];
        for refused in refusals {
            let refusal = Refusal::from(refused.unwrap_err());
            assert_eq!(refusal.kind, RefusalKind::Invalid);
            assert!(refusal.message.contains("lies in none of the folders that are allowed here"), "{refusal}");
        }
    }
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0, "something was made");

    let folder = process.runs.path().join("run/model").display().to_string();
    let saved = storage(&process).save(save_to(&folder)).await.unwrap().into_inner();
    assert_eq!(saved.rows, 3);
    let load = LoadRequest { folder, files: saved.files, replace: true };
    assert_eq!(storage(&process).load(load).await.unwrap().into_inner().rows, 3);
}

#[tokio::test]
async fn nobody_empties_the_tables_with_a_load_of_nothing() {
    let process = Process::ready(FakeCoordinator::placed(4)).await;
    process.client().lookup(lookup()).await.unwrap();
    let folder = process.runs.path().display().to_string();
    let nothing = LoadRequest { folder, files: Vec::new(), replace: true };
    let refusal = Refusal::from(storage(&process).load(nothing).await.unwrap_err());
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert!(refusal.message.contains("names no file, which would only forget them"), "{refusal}");
    assert_eq!(rows(&process).await, 3);
}

#[tokio::test]
async fn an_error_tells_nothing_of_what_is_in_a_file() {
    let process = Process::ready(FakeCoordinator::placed(4)).await;
    let secret = b"SECRET-KEY=0123456789";
    std::fs::write(process.runs.path().join("secret.txt"), secret).unwrap();
    let folder = process.runs.path().display().to_string();
    let load = LoadRequest { folder, files: vec!["secret.txt".to_owned()], replace: true };
    let refusal = Refusal::from(storage(&process).load(load).await.unwrap_err());
    assert!(refusal.message.contains("secret.txt is not a file of rows"), "{refusal}");
    for told in ["SECRET", "53", "0x53", "83"] {
        let path = process.runs.path().display().to_string();
        assert!(!refusal.message.replace(&path, "").contains(told), "{refusal}");
    }
}
