//! Loads of saved models into servers that log: a server uses a loaded model whole or not at all.

use zagros_protocol::control::{FileDigest, LoadRequest};

use super::*;
use crate::storage;
use crate::testing::{load_request, save_request};

/// A folder with the model that a server holds, and the request that loads it.
fn saved(service: &EmbeddingService) -> (tempfile::TempDir, LoadRequest) {
    let folder = tempfile::tempdir().unwrap();
    let files = storage::save(service, &save_request(folder.path()), |_| ()).unwrap().files;
    let files = files.into_iter().map(|file| FileDigest { name: file.name, ..FileDigest::default() }).collect();
    let request = load_request(folder.path(), files);
    (folder, request)
}

/// The process ends while a model is loaded in the place of another one. What comes back is the model before, or the loaded one,
/// or a part that the server refuses to use until the model is loaded again.
#[test]
fn a_load_that_is_killed_at_any_record_is_never_half_a_model() {
    let home = LogFixture::new("");
    let other = LogFixture::new("");
    let donor = other.start();
    train(&donor, 1, 30, 500);
    let (_folder, request) = saved(&donor);
    let loaded = rows(&donor);
    let service = home.start();
    train(&service, 1, 3, 40);
    let old_rows = rows(&service);
    let end = home.log_end(&service);
    let start = end.0;
    storage::load(&service, &request).unwrap();
    assert_eq!(rows(&service), loaded);
    drop(service);
    let log = TornLog::new(&home, end);
    assert!(log.records.len() > 50, "{} records", log.records.len());
    let [mut befores, mut parts] = [0; 2];
    let lsns = log.records.iter().map(|record| record.0);
    for lsn in lsns.filter(|lsn| (lsn / 8) % 5 < 2 || lsn - start < 200) {
        log.cut(lsn);
        let service = home.start();
        if service.check_whole().is_ok() {
            assert_eq!(rows(&service), old_rows, "cut at {lsn}");
            befores += 1;
            continue;
        }
        parts += 1;
        let refused = push(&service, &push_of(&[(ITEM, &[1])], 900, 1.0)).unwrap_err();
        assert!(refused.message.contains("holds a part of a model") && !refused.kind.is_retryable(), "{refused}");
        assert!(lookup(&service, &lookup_of(&[(ITEM, &[1])], Access::Read)).is_err());
        assert!(service.check_ready().unwrap_err().contains("a load did not end"));
        if parts % 16 == 1 {
            // A base does not make a part whole, and neither does another process.
            write_base(&service);
            let service = home.restart(service);
            storage::load(&service, &request).unwrap();
            assert_eq!((rows(&service), service.check_ready()), (loaded.clone(), Ok(())));
            assert_eq!(rows(&home.restart(service)), loaded);
            fs::remove_dir_all(home.files("base-").pop().unwrap()).unwrap();
        }
    }
    assert!(befores > 0 && parts > 10, "{befores} {parts}");
}

#[test]
fn a_load_into_a_stopped_log_changes_nothing() {
    for (durability, call) in [(DurabilityLevel::Process, "write"), (DurabilityLevel::Machine, "sync")] {
        let mut home = LogFixture::new("");
        home.job.cluster.durability = durability;
        let service = home.start();
        train(&service, 1, 10, 100);
        let (_folder, request) = saved(&service);
        push(&service, &push_of(&[(0, &[5, 1000])], 900, 1.0)).unwrap();
        let old_rows = rows(&service);
        home.disk.fail(Some(call));
        // The first one finds out that the disk fails, the second one that the log is stopped.
        for _ in 0..2 {
            let refused = storage::load(&service, &request).unwrap_err();
            assert!(refused.kind.is_retryable() && refused.message.contains("the log cannot be written"), "{refused}");
            assert_eq!(rows(&service), old_rows);
        }
        home.repair(&service);
        assert_eq!(service.check_ready(), Ok(()));
        let service = home.restart(service);
        assert_eq!((rows(&service), service.check_whole().is_ok()), (old_rows, true));
        storage::load(&service, &request).unwrap();
    }
}

/// A model is loaded in the place of rows that a push has changed before it died: its retry is a push like any other.
#[test]
fn a_push_that_died_before_a_load_is_applied_whole_after_it() {
    let (home, service) = LogFixture::started("");
    let ids: Vec<u64> = (0..30).collect();
    push_items(&service, &ids, 1, 1.0);
    let (_folder, request) = saved(&service);
    let end = home.log_end(&service);
    let middle = end.0 + 1500;
    push_items(&service, &ids, 2, 3.0);
    let expected = rows(&service);
    drop(service);
    TornLog::new(&home, end).cut(middle);
    let service = home.start();
    assert_eq!(service.log.as_ref().unwrap().partial.push_images().len(), 1);
    storage::load(&service, &request).unwrap();
    push_items(&service, &ids, 2, 3.0);
    assert_eq!(rows(&service), expected);
}

/// The cold tier loses its rows only after the log says so.
#[test]
fn a_clear_whose_record_cannot_be_written_keeps_the_cold_tier() {
    let (home, service) = LogFixture::started("memory = \"8MiB\"");
    push_many(&service, 60_000, 1);
    let expected = rows(&service);
    home.disk.fail(Some("write"));
    let error = service.tables.clear().unwrap_err().to_string();
    assert!(error.contains("the tables are not cleared: ") && error.contains("write failed"), "{error}");
    drop(service);
    home.disk.fail(None);
    assert_eq!(rows(&home.start()), expected);
}

/// A server whose rows cannot leave memory says so, and takes no more rows than it has room for.
#[test]
fn rows_that_cannot_leave_memory_because_of_the_log_are_noticed() {
    let (home, service) = LogFixture::started("memory = \"8MiB\"");
    let ids = |first: u64| (first..first + 2000).collect::<Vec<_>>();
    push_many(&service, 40_000, 1);
    home.disk.fail(Some("write"));
    assert!(push(&service, &push_of(&[(ITEM, &[1])], 90_000, 1.0)).is_err());
    let refused = (0..200).map(|step| 100_000 + 2000 * step).find_map(|first| {
        let (ids, found) = (ids(first), |parts: &[(u32, &[u64])]| lookup(&service, &lookup_of(parts, Access::Train)));
        found(&[(0, &ids), (ITEM, &ids)]).err()
    });
    let refused = refused.expect("memory is limited");
    assert!(refused.message.contains("memory is full"), "{refused}");
    assert!(service.tables.last_write_error().unwrap().to_string().contains("write failed"));
    let (used, budget) = service.tables.memory_budget().unwrap();
    assert!(used < budget + (budget / 2), "{used} of {budget}");
    home.repair(&service);
    let ids = ids(900_000);
    lookup(&service, &lookup_of(&[(0, &ids), (ITEM, &ids)], Access::Train)).unwrap();
}
