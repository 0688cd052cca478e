//! A folder behaves the same on a disk and in a store. A store that fails is reported by name and in time.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use object_store::path::Path as Key;
use zagros_fakes::s3::{FakeS3, S3Fault, S3Limits};

use crate::bucket::ObjectBucket;
use crate::upload::ObjectUpload;
use crate::upload::{PART, PartSizes};
use crate::{Folder, StoreError, StoreFault, StoreProblem};

const TIMEOUT: Duration = Duration::from_secs(20);

fn folder_of(store: &FakeS3, timeout: Duration) -> Folder {
    Folder::open_in(&store.environment_variables(), "s3://models/ads", timeout).unwrap()
}

fn folder_in_store(timeout: Duration) -> (FakeS3, Folder) {
    let store = FakeS3::start("models");
    let folder = folder_of(&store, timeout);
    (store, folder)
}

fn problem(error: &StoreError) -> Option<StoreProblem> {
    match error {
        StoreError::Bucket { problem, .. } => Some(*problem),
        _ => None,
    }
}

/// Bytes that differ at every position.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

#[test]
fn a_folder_behaves_the_same_on_a_disk_and_in_a_store() {
    let (disk, store) = (tempfile::tempdir().unwrap(), FakeS3::start("models"));
    for folder in [Folder::on_disk(disk.path()), folder_of(&store, TIMEOUT)] {
        folder.check_writable().unwrap();
        assert_eq!(folder.folder_names().unwrap(), Vec::<String>::new());
        // More folders than fit on one page of the list.
        for name in ["a", "b", "c", "d", "e"] {
            let inner = folder.join(name).make().unwrap();
            inner.write("manifest.json", name.as_bytes()).unwrap();
            inner.write("rows", b"rows").unwrap();
        }
        let names = || folder.folder_names().unwrap().into_iter().collect::<BTreeSet<_>>();
        assert_eq!(names().into_iter().collect::<String>(), "abcde");
        let (a, b) = (folder.join("a"), folder.join("b"));
        b.write("manifest.json", b"new").unwrap();
        assert_eq!(b.read("manifest.json").unwrap(), b"new");
        assert!(a.has_file("rows").unwrap() && !a.has_file("other").unwrap());
        assert!(a.read("other").unwrap_err().is_missing());
        assert_eq!(a.open_file("other").err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
        assert_eq!((a.name(), a.parent().unwrap().to_string()), (Some("a"), folder.to_string()));
        let (found, name) = a.locate_file("../b/manifest.json").unwrap();
        assert_eq!(found.read(name).unwrap(), b"new");
        assert!(a.locate_file("../../b/manifest.json").is_none());
        assert_eq!(a.locate_file("manifest.json").unwrap().0.to_string(), a.to_string());
        b.delete_except(&BTreeSet::from(["manifest.json".to_owned()])).unwrap();
        assert!(b.has_file("manifest.json").unwrap() && !b.has_file("rows").unwrap());
        a.delete_file("manifest.json").unwrap();
        a.delete_file("manifest.json").unwrap();
        assert!(!a.has_file("manifest.json").unwrap() && a.has_file("rows").unwrap());
        a.delete().unwrap();
        a.delete().unwrap();
        assert_eq!(names().into_iter().collect::<String>(), "bcde");
        assert!(b.to_string().ends_with("/b"), "{b}");
    }
    assert!(store.object_keys().iter().all(|key| key.starts_with("ads/")), "{:?}", store.object_keys());
}

/// Invariant CK-1: an inner error leaves the file as it was, and no other file next to it.
#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let (disk, store) = (tempfile::tempdir().unwrap(), FakeS3::start("models"));
    for folder in [Folder::on_disk(disk.path()), folder_of(&store, TIMEOUT)] {
        folder.write("rows", b"old").unwrap();
        let much = pattern(PART + 5);
        let none = folder.write_unless("rows", 0, |to| to.write_all(&much).map(|()| Err::<(), _>("damaged")));
        assert_eq!(none.unwrap(), Err("damaged"));
        let full = folder.write_unless("rows", 0, |to| {
            to.write_all(&much)?;
            Err::<Result<(), &str>, _>(io::Error::other("broken"))
        });
        assert!(full.unwrap_err().to_string().contains("broken"));
        assert_eq!(folder.read("rows").unwrap(), b"old");
        let done = folder.write_unless("rows", 0, |to| to.write_all(&much).map(|()| Ok::<_, &str>(7)));
        assert_eq!((done.unwrap(), folder.read("rows").unwrap() == much), (Ok(7), true));
    }
    assert_eq!((store.object_keys(), store.open_uploads()), (vec!["ads/rows".to_owned()], 0));
}

#[test]
fn a_large_object_is_sent_in_parts_and_read_from_any_position() {
    let (store, folder) = folder_in_store(TIMEOUT);
    let content = pattern(3 * PART + 12_345);
    folder.write("rows", &content).unwrap();
    let parts = store.request_log().iter().filter(|request| *request == "PUT /models/ads/rows").count();
    assert_eq!(parts, 4);
    assert!(store.object_content("ads/rows").unwrap() == content);
    let (mut input, bytes) = folder.open_file("rows").unwrap();
    assert_eq!(bytes, content.len() as u64);
    for (to, from) in [
        (SeekFrom::Start(30 << 20), 30 << 20),
        (SeekFrom::Current(-100), (30 << 20) + 900),
        (SeekFrom::End(-1000), content.len() - 1000),
    ] {
        input.seek(to).unwrap();
        let mut found = vec![0; 1000];
        input.read_exact(&mut found).unwrap();
        assert!(found == content[from..from + 1000], "{to:?}");
    }
    assert_eq!(input.read(&mut [0; 8]).unwrap(), 0);
    let mut all = Vec::new();
    input.seek(SeekFrom::Start(0)).unwrap();
    input.read_to_end(&mut all).unwrap();
    assert!(all == content);
}

/// A failure that a retry overcomes is not reported.
#[test]
fn a_request_that_fails_for_a_moment_is_retried() {
    let (store, folder) = folder_in_store(TIMEOUT);
    let content = pattern(PART + 1);
    for fault in [S3Fault::Fails, S3Fault::Breaks, S3Fault::Late(Duration::from_millis(300))] {
        store.inject_fault(fault, "PUT /models/ads/rows", 2);
        folder.write("rows", &content).unwrap();
        assert!(store.object_content("ads/rows").unwrap() == content, "{fault:?}");
        store.remove_object("ads/rows");
    }
    folder.write("rows", &content).unwrap();
    store.inject_fault(S3Fault::BreaksHalfway, "GET", 1);
    assert!(folder.read("rows").unwrap() == content);
}

/// Each call is repeated by itself, and what it did is there once.
#[test]
fn a_call_whose_answer_is_lost_is_repeated_and_does_nothing_twice() {
    let (store, folder) = folder_in_store(TIMEOUT);
    let (content, small) = (pattern(2 * PART + 1), pattern(10));
    let count = |method: &str| store.request_log().iter().filter(|request| request.starts_with(method)).count();
    for (lost, content, open) in [
        ("PUT /models/ads/rows?", &small, 0),
        // The writer does not know the id of the first upload. This upload has no parts, and the rules of the bucket remove it.
        ("POST /models/ads/rows?uploads", &content, 1),
        ("PUT /models/ads/rows?partNumber=2", &content, 1),
        ("POST /models/ads/rows?uploadId", &content, 1),
        ("DELETE /models/ads/rows", &content, 1),
    ] {
        let earlier = (count("PUT"), count("POST"), count("DELETE"));
        store.inject_fault(S3Fault::LosesAnswer, lost, 1);
        folder.write("rows", content).unwrap();
        assert!(store.object_content("ads/rows").unwrap() == *content, "{lost}");
        folder.delete_file("rows").unwrap();
        assert_eq!((store.object_keys(), store.open_uploads()), (Vec::new(), open), "{lost}");
        let calls = count("PUT") + count("POST") + count("DELETE") - earlier.0 - earlier.1 - earlier.2;
        // Once more than without a loss: a start, three parts, a completion; a deletion.
        let expected = if content.len() > PART { 6 } else { 2 };
        assert_eq!(calls, expected + 1, "{lost}");
    }
    for lost in ["HEAD", "GET"] {
        folder.write("rows", &content).unwrap();
        store.inject_fault(S3Fault::LosesAnswer, lost, 1);
        assert!(folder.read("rows").unwrap() == content);
    }
}

/// An object of another upload under the same key is not taken for the one that was sent.
#[test]
fn a_completion_that_fails_is_not_taken_for_a_lost_answer() {
    let (store, folder) = folder_in_store(TIMEOUT);
    let (old, new) = (pattern(PART + 2), vec![7; PART + 2]);
    folder.write("rows", &old).unwrap();
    store.inject_fault(S3Fault::Denies, "POST /models/ads/rows?uploadId", 1);
    let error = folder.write("rows", &new).unwrap_err();
    assert_eq!(problem(&error), Some(StoreProblem::Refused), "{error}");
    assert!(store.object_content("ads/rows").unwrap() == old && store.open_uploads() == 0);
}

/// Ten thousand parts of 16 MiB have 156 GiB. Here a part has 1 KiB, and the store refuses what Amazon's refuses.
#[test]
fn a_file_of_more_bytes_than_ten_thousand_of_the_first_parts_keeps_to_the_limits_of_stores() {
    const UNIT: usize = 1 << 10;
    let store = FakeS3::start("models");
    let bucket =
        std::sync::Arc::new(ObjectBucket::open("s3://models", TIMEOUT, &store.environment_variables()).unwrap());
    let limits = S3Limits { smallest_part: 5 * UNIT / 16, largest_part: 320 * UNIT, ..S3Limits::default() };
    let content = pattern(10_000 * UNIT + 1);
    // If the writer does not know the size, the last parts grow, which R2 refuses.
    for (expected, equal_parts) in [(content.len() as u64, true), (0, false)] {
        store.set_limits(S3Limits { equal_parts, ..limits });
        let sizes = PartSizes::scaled(UNIT, expected);
        let mut upload = ObjectUpload::new(std::sync::Arc::clone(&bucket), Key::from("rows"), sizes);
        upload.write_all(&content).unwrap();
        upload.finish().unwrap();
        assert!(store.object_content("rows").unwrap() == content);
        store.remove_object("rows");
    }
    let puts = store.request_log().iter().filter(|request| request.starts_with("PUT")).count();
    assert!(puts < 20_000, "{puts}");
}

/// Invariant WT-1.
#[test]
fn a_store_that_is_silent_is_reported_in_time_and_by_name() {
    let (store, folder) = folder_in_store(Duration::from_secs(1));
    store.inject_fault(S3Fault::Hangs, "PUT", usize::MAX);
    let started = Instant::now();
    let error = folder.write("rows", b"rows").unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let reported = error.to_string();
    assert_eq!(problem(&error), Some(StoreProblem::Away), "{reported}");
    assert!(reported.contains("cannot write s3://models/ads/rows (http://127.0.0.1:"), "{reported}");
    assert!(reported.contains("AWS_ENDPOINT_URL is right"), "{reported}");
    store.clear_faults();
    folder.write("rows", b"rows").unwrap();
    drop(store);
    let gone = folder.read("rows").unwrap_err();
    assert_eq!(problem(&gone), Some(StoreProblem::Away), "{gone}");
}

#[test]
fn an_upload_that_fails_is_taken_back() {
    let (store, folder) = folder_in_store(TIMEOUT);
    store.inject_fault(S3Fault::Denies, "PUT", usize::MAX);
    let error = folder.write("rows", &pattern(2 * PART)).unwrap_err();
    assert_eq!(problem(&error), Some(StoreProblem::Refused), "{error}");
    assert_eq!((store.open_uploads(), store.object_keys().len()), (0, 0));
}

#[test]
fn wrong_names_and_credentials_are_found_before_the_work() {
    let store = FakeS3::start("models");
    let open_error = |text: &str, name: &str, value: &str| {
        let mut environment = store.environment_variables();
        environment.retain(|(key, _)| key != name);
        environment.push((name.to_owned(), value.to_owned()));
        Folder::open_in(&environment, text, TIMEOUT).and_then(|folder| folder.check_writable()).unwrap_err()
    };
    let wrong_key = open_error("s3://models/ads", "AWS_ACCESS_KEY_ID", "someone-else");
    assert_eq!(problem(&wrong_key), Some(StoreProblem::Refused));
    let reported = wrong_key.to_string();
    assert!(reported.contains("InvalidAccessKeyId") && reported.contains("check AWS_ACCESS_KEY_ID"), "{reported}");
    assert!(!reported.contains("someone-else") && !reported.contains("test-secret"), "{reported}");
    let no_bucket = open_error("s3://other/ads", "AWS_REGION", "us-east-1");
    assert_eq!(problem(&no_bucket), Some(StoreProblem::NoBucket), "{no_bucket}");
    let open = open_error("s3://models/ads", "AWS_ALLOW_HTTP", "false");
    assert!(open.to_string().contains("AWS_ALLOW_HTTP=true"), "{open}");
    let away = open_error("s3://models/ads", "AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    assert_eq!(problem(&away), Some(StoreProblem::Away), "{away}");
    assert!(!format!("{:?}", folder_of(&store, TIMEOUT)).contains("test-"));
}

#[test]
fn without_credentials_and_role_the_error_names_the_variables_to_set() {
    let store = FakeS3::start("models");
    let mut environment = store.environment_variables();
    environment.retain(|(key, _)| !["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].contains(&key.as_str()));
    environment.push(("AWS_METADATA_ENDPOINT".to_owned(), "http://127.0.0.1:1".to_owned()));
    let folder = Folder::open_in(&environment, "s3://models/ads", Duration::from_secs(1)).unwrap();
    let error = folder.read("rows").unwrap_err();
    assert_eq!(problem(&error), Some(StoreProblem::Keyless), "{error}");
    assert!(error.to_string().contains("there is no AWS_ACCESS_KEY_ID in the environment"), "{error}");
    assert_eq!(error.fault(), StoreFault::Away);
}

#[test]
fn a_folder_can_be_used_and_dropped_within_a_runtime() {
    let (store, folder) = folder_in_store(TIMEOUT);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let written = runtime.block_on(async move {
        let inner = folder.clone();
        tokio::task::spawn_blocking(move || inner.write("rows", b"rows")).await.unwrap().map(|()| drop(folder))
    });
    written.unwrap();
    assert_eq!(store.object_content("ads/rows").unwrap(), b"rows");
}
