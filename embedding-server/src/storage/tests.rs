//! Save and load: between different numbers of servers, during training, and with damaged files.

mod deltas;
mod starts;

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use prometheus::Registry;
use sha2::Digest;
use zagros_job::{AdmissionPolicy, EvictionOrder, FrequencyCounter, Job, WeightType};
use zagros_protocol::control::{FileDigest, LoadRequest};
use zagros_protocol::datapath::Access;
use zagros_protocol::{Refusal, RefusalKind, RowKey, ServerIndex, TableId, bucket_of};
use zagros_table::{EvictionTarget, Ttl};

use crate::testing::{
    BUCKETS, Content, DIM, content, even_map, job, job_with, load_request, lookup_of, placed, placed_at, placed_with,
    push_of, save_request, service, slots, unchecked,
};
use crate::{EmbeddingService, storage, testing};

const IDS: u64 = 300;

/// Servers with [`IDS`] rows per table in total. Some rows are trained.
fn trained(servers: u32) -> Vec<Arc<EmbeddingService>> {
    let all: Vec<_> = (0..servers).map(|index| placed(servers, index)).collect();
    for service in &all {
        let [users, items] = own(service, 0..IDS);
        testing::lookup(service, &lookup_of(&[(0, &users), (1, &items)], Access::Train)).unwrap();
        let half = users.len() / 2;
        testing::push(service, &push_of(&[(0, &users[..half])], 1, 0.5)).unwrap();
    }
    all
}

fn owner(table: u32, id: u64, servers: u32) -> u32 {
    bucket_of(RowKey { table: TableId(table), id }, BUCKETS) * servers / BUCKETS
}

fn save_digests(services: &[Arc<EmbeddingService>], folder: &Path) -> Vec<FileDigest> {
    let request = save_request(folder);
    services.iter().flat_map(|service| storage::save(service, &request, |_| ()).unwrap().files).collect()
}

fn save(services: &[Arc<EmbeddingService>], folder: &Path) -> Vec<String> {
    save_digests(services, folder).into_iter().map(|file| file.name).collect()
}

/// Saves into a new folder. Answers the folder and the names of the files.
fn save_anew(services: &[Arc<EmbeddingService>]) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let files = save(services, folder.path());
    (folder, files)
}

fn load(service: &EmbeddingService, folder: &Path, files: &[String]) -> Result<u64, Refusal> {
    storage::load(service, &load_request(folder, unchecked(files))).map(|response| response.rows)
}

/// Loads into all servers in the place of what they have. Returns their rows.
fn replace_all(services: &[Arc<EmbeddingService>], request: &LoadRequest) -> Result<u64, Refusal> {
    services.iter().map(|service| storage::load(service, request).map(|response| response.rows)).sum()
}

/// Rows created after the save are gone after the load. A load of a damaged file changes nothing.
#[test]
fn a_load_that_replaces_goes_back_to_the_saved_state() {
    let servers = trained(2);
    let ((folder, files), before) = (save_anew(&servers), content(&servers));
    for service in &servers {
        let [users, _] = own(service, 0..2 * IDS);
        testing::lookup(service, &lookup_of(&[(0, &users)], Access::Train)).unwrap();
        testing::push(service, &push_of(&[(0, &users)], 2, 0.25)).unwrap();
    }
    let later = content(&servers);
    assert!(later.len() > before.len());
    let (path, request) = (folder.path().join(&files[0]), load_request(folder.path(), unchecked(&files)));
    let good = fs::read(&path).unwrap();
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    let refused = storage::load(&servers[0], &request).unwrap_err();
    assert!(refused.message.contains(&files[0]) && content(&servers) == later, "{refused}");
    fs::write(&path, &good).unwrap();
    assert_eq!(replace_all(&servers, &request), Ok(2 * IDS));
    assert_eq!(content(&servers), before);
}

#[test]
fn a_save_of_any_number_of_servers_loads_into_any() {
    for (before, after) in [(1, 1), (1, 2), (1, 5), (3, 1), (2, 5)] {
        let saved = trained(before);
        let (folder, files) = save_anew(&saved);
        assert_eq!(files[0], format!("rows-0-of-{before}.zrows"));
        let loaded: Vec<_> = (0..after).map(|index| placed(after, index)).collect();
        let rows: u64 = loaded.iter().map(|service| load(service, folder.path(), &files).unwrap()).sum();
        assert_eq!(rows, 2 * IDS);
        assert_eq!(content(&loaded), content(&saved), "{before} servers to {after}");
    }
}

#[test]
fn equal_tables_make_equal_files() {
    let bytes = [(); 2].map(|()| {
        let (folder, files) = save_anew(&trained(1));
        fs::read(folder.path().join(&files[0])).unwrap()
    });
    assert_eq!(bytes[0], bytes[1]);
}

/// The folder and names of small saved files, and an empty server.
fn small() -> (tempfile::TempDir, Vec<String>, Arc<EmbeddingService>) {
    let saved = placed(1, 0);
    testing::lookup(&saved, &lookup_of(&[(0, &[1, 2, 3]), (1, &[4])], Access::Train)).unwrap();
    let (folder, files) = save_anew(&[saved]);
    (folder, files, placed(1, 0))
}

/// A worker that resumes from a checkpoint may get the placement before this server does.
#[test]
fn a_load_waits_for_the_placement_until_the_timeout_of_the_job() {
    let (folder, files, _) = small();
    let service = service(1, 0);
    let loaded = std::thread::scope(|threads| {
        let load = threads.spawn(|| load(&service, folder.path(), &files));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!load.is_finished(), "nothing says which rows are this server's");
        service.set_placement(even_map(1));
        load.join().unwrap()
    });
    assert_eq!(loaded, Ok(4));
    let mut hasty = job(1);
    hasty.cluster.timeout = std::time::Duration::from_millis(1);
    let alone = EmbeddingService::new(&hasty, ServerIndex(0), &Registry::new()).unwrap();
    let refusal = load(&alone, folder.path(), &files).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Unavailable);
    assert!(refusal.message.contains("embedding server 0 has no placement yet"), "{refusal}");
}

#[test]
fn one_save_or_load_runs_at_a_time() {
    let (folder, files, service) = small();
    let turn = service.storage.take_turn().unwrap();
    let refusal = load(&service, folder.path(), &files).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Unavailable);
    assert!(refusal.message.contains("being saved or loaded already"), "{refusal}");
    assert_eq!(storage::save(&service, &save_request(folder.path()), |_| ()).unwrap_err(), refusal);
    drop(turn);
    assert_eq!(load(&service, folder.path(), &files), Ok(4));
}

#[test]
fn a_save_reports_size_checksum_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let saved = storage::save(&trained(1)[0], &save_request(folder.path()), |_| ()).unwrap();
    let file = &saved.files[0];
    let bytes = fs::read(folder.path().join(&file.name)).unwrap();
    assert_eq!((saved.rows, saved.bytes, file.bytes), (2 * IDS, bytes.len() as u64, bytes.len() as u64));
    assert_eq!(file.sha256[..], sha2::Sha256::digest(&bytes)[..]);
    assert!(saved.pause_seconds <= saved.seconds);
}

/// Two saves of the same tables at different steps. Names, sizes and block lengths are equal.
#[test]
fn a_whole_file_of_another_save_is_refused_and_nothing_is_loaded() {
    let (older, newer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let servers = trained(2);
    let then = save_digests(&servers, older.path());
    for service in &servers {
        let [users, _] = own(service, 0..IDS);
        testing::push(service, &push_of(&[(0, &users)], 2, 0.25)).unwrap();
    }
    let now = save_digests(&servers, newer.path());
    assert_eq!((then[1].bytes, &then[1].name), (now[1].bytes, &now[1].name));
    fs::copy(older.path().join(&then[1].name), newer.path().join(&now[1].name)).unwrap();
    let request = load_request(newer.path(), now.clone());
    for servers in [1, 2, 3] {
        let refused = (0..servers).filter(|index| {
            let service = placed(servers, *index);
            let loaded = storage::load(&service, &request);
            let reported =
                |refusal: &Refusal| refusal.message.contains("is not the file that was saved: its SHA-256 is");
            assert!(loaded.as_ref().err().is_none_or(reported), "{loaded:?}");
            loaded.is_err() && service.current_load().rows == 0
        });
        assert!(refused.count() >= 1, "{servers} servers");
    }
    // A manifest of an earlier release has no hash, so a server cannot detect this.
    let files = now.into_iter().map(|file| FileDigest { sha256: Vec::new().into(), ..file }).collect();
    assert!(storage::load(&placed(1, 0), &LoadRequest { files, ..request }).is_ok());
}

#[test]
fn another_model_is_refused_with_the_difference() {
    let (folder, files, _) = small();
    let words_of = |here: &str| format!("of f32 with 8 words of adagrad a row there, and {here} a row here");
    type Change = fn(&mut zagros_job::Table);
    let cases: [(Change, String); 4] = [
        (|table| table.dim = 5, words_of("dim 5 of f32 with 10 words of adagrad")),
        (
            |table| table.optimizer = zagros_job::Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 },
            words_of("dim 4 of f32 with 4 words of sgd"),
        ),
        (|table| table.element = WeightType::Int8, words_of("dim 4 of int8 with 6 words of adagrad")),
        (|table| table.name = "users".to_owned(), "this model has no table `user`".to_owned()),
    ];
    for (change, expected) in cases {
        let mut job = job(1);
        change(&mut job.tables[0]);
        let refusal = load(&placed_with(&job), folder.path(), &files).unwrap_err();
        assert!(refusal.message.contains(&expected), "{refusal}, expected {expected}");
    }
}

#[test]
fn files_are_named_not_found_and_not_followed_elsewhere() {
    let (folder, files, service) = small();
    let missing = load(&service, folder.path(), &["rows-7-of-9.zrows".to_owned()]).unwrap_err();
    assert!(missing.kind == RefusalKind::Invalid && missing.message.contains("rows-7-of-9.zrows"), "{missing}");
    for elsewhere in [format!("../{}", files[0]), "/etc/passwd".to_owned(), String::new(), "..".to_owned()] {
        let refusal = load(&service, folder.path(), &[elsewhere]).unwrap_err();
        assert!(refusal.message.contains("is not the name of a file in the folder"), "{refusal}");
    }
    fs::write(folder.path().join("notes.txt"), "these are notes about the run").unwrap();
    let notes = load(&service, folder.path(), &["notes.txt".to_owned()]).unwrap_err();
    assert!(notes.message.contains("is not a file of rows") && !notes.message.contains("these are"), "{notes}");
    let nothing = load(&service, folder.path(), &[]).unwrap_err();
    assert!(nothing.message.contains("names no file, so it would only remove rows"), "{nothing}");
}

fn changed(servers: u32, change: impl FnOnce(&mut Job)) -> Vec<Arc<EmbeddingService>> {
    let mut job = job(servers);
    change(&mut job);
    (0..servers).map(|index| placed_at(&job, index)).collect()
}

/// Those of some ids that a server owns, for both tables.
fn own(service: &EmbeddingService, ids: impl Iterator<Item = u64> + Clone) -> [Vec<u64>; 2] {
    let servers = service.placement().unwrap().server_count();
    [0, 1].map(|table| ids.clone().filter(|id| owner(table, *id, servers) == service.index.0).collect())
}

/// Looks up `range` for training, each id on its server. Returns the number of rows created.
fn look_up(services: &[Arc<EmbeddingService>], range: &Range<u64>) -> u32 {
    let sight = |service: &Arc<EmbeddingService>| {
        let [users, items] = own(service, range.clone());
        testing::lookup(service, &lookup_of(&[(0, &users), (1, &items)], Access::Train)).unwrap().created
    };
    services.iter().map(sight).sum()
}

fn loaded(folder: &Path, files: &[String], servers: u32, change: impl FnOnce(&mut Job)) -> Vec<Arc<EmbeddingService>> {
    let services = changed(servers, change);
    let taken: u64 = services.iter().map(|service| load(service, folder, files).unwrap()).sum();
    assert_eq!(taken, services.iter().map(|service| service.current_load().rows).sum::<u64>());
    services
}

#[test]
fn frequency_counts_come_back_on_any_number_of_servers() {
    /// `user` counts exactly, `item` counts with a sketch. Both create a row at the third use.
    fn counting(job: &mut Job) {
        let count = |counter| AdmissionPolicy::Count { threshold: 3, counter };
        job.tables[0].admission = count(FrequencyCounter::Exact);
        job.tables[1].admission = count(FrequencyCounter::CountMin { error: 1e-4, failure: 1e-3 });
    }
    let saved = changed(2, counting);
    assert_eq!([look_up(&saved, &(0..200)), look_up(&saved, &(0..100))], [0, 0]);
    let (folder, files) = save_anew(&saved);
    for servers in [1, 2, 5] {
        let services = loaded(folder.path(), &files, servers, counting);
        assert_eq!(look_up(&services, &(0..200)), 2 * 100, "{servers} servers: those seen twice before");
        assert_eq!(look_up(&services, &(0..200)), 2 * 100, "{servers} servers: the others");
    }
    // A table with another counter starts from zero. A table without an admission filter admits every id.
    let services = loaded(folder.path(), &files, 1, |job| {
        job.tables[1].admission =
            AdmissionPolicy::Count { threshold: 3, counter: FrequencyCounter::CountMin { error: 1e-3, failure: 1e-3 } };
    });
    assert_eq!(look_up(&services, &(0..100)), 100);
}

#[test]
fn access_metadata_and_its_time_are_restored() {
    fn aging(job: &mut Job) {
        job.tables[0].eviction.ttl = Some(Ttl::Steps(100));
    }
    let saved = changed(2, aging);
    for (step, range) in [(10, 0..50), (60, 50..100)] {
        saved.iter().for_each(|service| service.tables.advance_clock(step, 0));
        look_up(&saved, &range);
    }
    let (folder, files) = save_anew(&saved);
    let access = |content: &Content| content.values().filter(|row| row.1.is_some()).count();
    assert_eq!(access(&content(&saved)), 100);
    for servers in [1, 2, 5] {
        let services = loaded(folder.path(), &files, servers, aging);
        assert_eq!(content(&services), content(&saved), "{servers} servers");
        assert!(services.iter().all(|service| service.tables.take_snapshot().unwrap().snapshot_time().steps == 60));
    }
    // Access metadata of another format is skipped: the rows count as used at the time of the load.
    let services = loaded(folder.path(), &files, 1, |job| {
        aging(job);
        job.tables[0].eviction.order = EvictionOrder::Lfu { half_life: 10 };
    });
    let found = content(&services);
    assert_eq!((found.len(), access(&found)), (200, 100));
}

/// As in early stopping: the run returns to its best state after more steps and seconds than the time to live.
#[test]
fn a_load_that_replaces_restores_the_age_of_rows() {
    for ttl in [Ttl::Steps(100), Ttl::Seconds(1800)] {
        let aging = |job: &mut Job| job.tables[0].eviction.ttl = Some(ttl);
        let servers = changed(2, aging);
        let tick = |steps, seconds| servers.iter().for_each(|service| service.tables.advance_clock(steps, seconds));
        // Training runs more than an hour before the save, and again after it.
        tick(60, 4000);
        look_up(&servers, &(0..50));
        let (folder, files) = save_anew(&servers);
        let best = slots(&servers);
        tick(60 + 500, 4000 + 4000);
        assert!(slots(&servers).len() < best.len(), "rows grow old");
        assert_eq!(replace_all(&servers, &load_request(folder.path(), unchecked(&files))), Ok(100));
        assert_eq!(slots(&servers), best);
        // The saved rows are whole. A process with another clock can load them.
        let files = save(&servers, folder.path());
        let others = loaded(folder.path(), &files, 1, aging);
        assert_eq!(slots(&others), best);
    }
}

#[test]
fn rows_beyond_memory_are_saved_and_load_anywhere() {
    let cold = tempfile::tempdir().unwrap();
    let cluster = format!("memory = \"256KiB\"\ncold_folder = {:?}", cold.path());
    let limited = placed_with(&job_with(1, &cluster));
    let ids: Vec<u64> = (0..20_000).collect();
    for ids in ids.chunks(1000) {
        testing::lookup(&limited, &lookup_of(&[(0, ids)], Access::Train)).unwrap();
    }
    let in_memory: usize = limited.tables.iter().map(zagros_table::Table::row_count).sum();
    assert!(in_memory < 20_000, "{in_memory} rows fit in memory");
    testing::push(&limited, &push_of(&[(0, &ids[..3000])], 1, 0.5)).unwrap();
    let (folder, files) = save_anew(std::slice::from_ref(&limited));
    let expected = slots(std::slice::from_ref(&limited));
    assert_eq!(expected.len(), 20_000);
    for servers in [1, 2, 5] {
        let services = loaded(folder.path(), &files, servers, |_| ());
        assert_eq!(slots(&services), expected, "{servers} servers");
    }
}
