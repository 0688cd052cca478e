//! Servers that end at any moment, and others that go on with their logs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus::Registry;
use zagros_job::Job;
use zagros_protocol::datapath::Access;
use zagros_protocol::{BucketMap, Generation, RefusalKind, ServerIndex};
use zagros_rows::log::{LogDisk, LogTail, RecordKind, SystemDisk};
use zagros_table::{RowBatch, Table};

use crate::durability::{LogHost, LogSizes};
use crate::testing::{BUCKETS, job_with, lookup, lookup_of, push, push_of, read};
use crate::{EmbeddingService, ServerError};

/// `item` learns with SGD at a rate of 1: a row is its first value minus what was pushed.
const ITEM: u32 = 1;

mod bounds;
mod damage;
mod full_disk;
mod loads;
mod starts;
mod steps;

#[derive(Debug, Default)]
struct FaultyDisk(Mutex<Option<&'static str>>);

impl FaultyDisk {
    fn fail(&self, call: Option<&'static str>) {
        *self.0.lock() = call;
    }

    fn check(&self, call: &str) -> io::Result<()> {
        match *self.0.lock() {
            Some(failing) if failing == call => Err(io::Error::other(format!("{call} failed"))),
            _ => Ok(()),
        }
    }
}

impl LogDisk for FaultyDisk {
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<File> {
        self.check("allocate")?;
        SystemDisk.allocate(path, bytes)
    }

    fn write_at(&self, file: &File, bytes: &[u8], place: u64) -> io::Result<()> {
        self.check("write")?;
        SystemDisk.write_at(file, bytes, place)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.check("sync")?;
        SystemDisk.sync(file)
    }
}

/// A folder for logs, and servers that use it one after another.
struct LogFixture {
    folder: tempfile::TempDir,
    job: Job,
    disk: Arc<FaultyDisk>,
    boot: Option<&'static str>,
}

impl LogFixture {
    fn new(cluster: &str) -> Self {
        Self::with_change(cluster, |_| ())
    }

    fn with_change(cluster: &str, change: impl FnOnce(&mut Job)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut job = job_with(1, &format!("durability = \"process\"\n{cluster}"));
        job.output.folder = folder.path().join("runs");
        change(&mut job);
        Self { folder, job, disk: Arc::default(), boot: Some("first") }
    }

    fn try_start(&self) -> Result<Arc<EmbeddingService>, ServerError> {
        self.start_with(LogSizes::default())
    }

    fn start_with(&self, sizes: LogSizes) -> Result<Arc<EmbeddingService>, ServerError> {
        let host = LogHost { disk: Arc::clone(&self.disk) as _, sizes, boot: self.boot.map(ToOwned::to_owned) };
        let service = EmbeddingService::open_on_host(&self.job, ServerIndex(0), &Registry::new(), host)?;
        service.set_placement(Arc::new(BucketMap::split_evenly(Generation(1), BUCKETS, 1)));
        Ok(service)
    }

    fn start(&self) -> Arc<EmbeddingService> {
        self.try_start().unwrap()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("runs/log-server-0")
    }

    /// The mark that says how far the log was written. A test that writes it back makes up a process that ended before the later
    /// records were whole.
    fn mark(&self) -> Vec<u8> {
        fs::read(self.log().join("written")).unwrap()
    }

    fn put_mark_back(&self, mark: &[u8]) {
        fs::write(self.log().join("written"), mark).unwrap();
    }

    fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.log()).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix)).collect();
        paths.sort();
        paths
    }
}

/// Slots of all rows, in memory and in the cold tier.
fn rows(service: &EmbeddingService) -> BTreeMap<(usize, u64), Vec<u32>> {
    let snapshot = service.tables.take_snapshot().unwrap();
    let mut all = BTreeMap::new();
    for (number, table) in service.tables.iter().enumerate() {
        for stripe in 0..table.stripes() {
            let mut batch = RowBatch::default();
            snapshot.read_stripe(number as u32, stripe, &mut batch).unwrap();
            for (position, id) in batch.ids.iter().enumerate() {
                let width = table.stride();
                all.insert((number, *id), batch.slots[position * width..][..width].to_vec());
            }
        }
    }
    all
}

/// Threads that look up and push the same ids at the same time.
fn train(service: &Arc<EmbeddingService>, threads: u64, pushes: u64, ids: u64) {
    train_on(service, threads, 1..=pushes, ids);
}

/// Each of `threads` writers makes the pushes with these sequence numbers.
fn train_on(service: &Arc<EmbeddingService>, threads: u64, pushes: RangeInclusive<u64>, ids: u64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let pushes = pushes.clone();
            scope.spawn(move || {
                for seq in pushes {
                    let named: Vec<u64> = (0..40).map(|row| (row * 31 + seq * 17 + thread) % ids).collect();
                    let named: Vec<u64> =
                        named.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
                    let parts = [(0, &named[..]), (ITEM, &named[..])];
                    lookup(service, &lookup_of(&parts, Access::Train)).unwrap();
                    let mut request = push_of(&parts, seq, (seq % 5) as f32 - 2.0);
                    request.writer = thread;
                    assert!(!push(service, &request).unwrap().duplicate);
                }
            });
        }
    });
}

/// Invariant DU-1.
#[test]
fn what_was_acknowledged_is_there_again_bit_for_bit_and_is_not_applied_again() {
    let home = LogFixture::new("");
    let service = home.start();
    assert!(!service.has_recovered());
    let lineage = service.lineage().unwrap();
    train(&service, 4, 50, 300);
    let expected = rows(&service);
    drop(service);
    let service = home.start();
    assert!(service.has_recovered());
    assert_eq!(service.lineage(), Some(lineage));
    assert_eq!(rows(&service), expected);
    for thread in 0..4 {
        for seq in [1, 50] {
            let mut request = push_of(&[(ITEM, &[1])], seq, 1.0);
            request.writer = thread;
            assert!(push(&service, &request).unwrap().duplicate, "push {seq} of writer {thread}");
        }
    }
    assert_eq!(rows(&service), expected);
    // The second process logs as well.
    push(&service, &push_of(&[(0, &[5]), (ITEM, &[5, 1000])], 1, 1.0)).unwrap();
    let expected = rows(&service);
    drop(service);
    assert_eq!(rows(&home.start()), expected);
}

/// The process ends while a push is appended: at each record of it, its retry changes what is left and nothing twice.
#[test]
fn a_push_that_died_half_way_is_applied_once() {
    let home = LogFixture::new("");
    let ids: Vec<u64> = (0..30).collect();
    let service = home.start();
    push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 1, 1.0)).unwrap();
    let (before, mark) = (service.log.as_ref().unwrap().writer.durable_lsn(), home.mark());
    push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 2, 3.0)).unwrap();
    let expected = rows(&service);
    drop(service);
    let segment = home.files("segment-").pop().unwrap();
    let mut whole = fs::read(&segment).unwrap();
    whole.truncate(whole.iter().rposition(|byte| *byte != 0).unwrap() + 64);
    let mut places = Vec::new();
    LogTail::scan(&home.log(), 0..0, None, |head, _| {
        places.extend((head.lsn >= before).then_some((head.lsn, head.kind)));
        Ok(())
    })
    .unwrap();
    assert!(places.len() > 30 && places.last().unwrap().1 == RecordKind::Commit, "{places:?}");
    for (lsn, _) in places {
        for other in home.files("segment-").into_iter().filter(|path| *path != segment) {
            fs::remove_file(other).unwrap();
        }
        let mut cut = whole.clone();
        cut[64 + lsn as usize..].fill(0);
        fs::write(&segment, cut).unwrap();
        home.put_mark_back(&mark);
        let service = home.start();
        assert!(push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 1, 1.0)).unwrap().duplicate);
        assert!(!push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 2, 3.0)).unwrap().duplicate);
        assert_eq!(rows(&service), expected, "cut at {lsn}");
        assert!(push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 2, 3.0)).unwrap().duplicate);
        // The rest of the push and its commit are in the log too.
        drop(service);
        let service = home.start();
        assert_eq!(rows(&service), expected, "cut at {lsn}, and recovered again");
        assert!(push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 2, 3.0)).unwrap().duplicate);
    }
}

/// A base carries what is known of a push that died: its retry may come after the segments are gone.
#[test]
fn a_base_keeps_what_is_applied_of_a_push_that_died() {
    let home = LogFixture::new("");
    let ids: Vec<u64> = (0..30).collect();
    let service = home.start();
    push(&service, &push_of(&[(ITEM, &ids)], 1, 1.0)).unwrap();
    let (before, mark) = (service.log.as_ref().unwrap().writer.durable_lsn(), home.mark());
    push(&service, &push_of(&[(ITEM, &ids)], 2, 3.0)).unwrap();
    let expected = rows(&service);
    drop(service);
    let segment = home.files("segment-").pop().unwrap();
    let mut cut = fs::read(&segment).unwrap();
    let mut middle = 0;
    LogTail::scan(&home.log(), before..before, None, |head, _| {
        middle = if head.lsn < before + 2000 { head.lsn } else { middle };
        Ok(())
    })
    .unwrap();
    cut[64 + middle as usize..].fill(0);
    fs::write(&segment, cut).unwrap();
    home.put_mark_back(&mark);
    let service = home.start();
    assert_ne!(rows(&service), expected);
    service.log.as_ref().unwrap().write_base(&service.tables, &service.windows).unwrap();
    drop(service);
    let service = home.start();
    assert!(!push(&service, &push_of(&[(ITEM, &ids)], 2, 3.0)).unwrap().duplicate);
    assert_eq!(rows(&service), expected);
}

#[test]
fn a_base_is_written_while_pushes_go_on_and_the_log_before_it_is_deleted() {
    let home = LogFixture::new("");
    let service = home.start();
    let bases = AtomicU64::new(0);
    let newest = std::thread::scope(|scope| {
        // However slow the machine is, two bases are written while pushes go on.
        let training = scope.spawn(|| {
            let mut newest = 0;
            while bases.load(Ordering::Acquire) < 2 {
                train_on(&service, 3, newest + 1..=newest + 400, 3000);
                newest += 400;
            }
            newest
        });
        while !training.is_finished() {
            service.log.as_ref().unwrap().write_base(&service.tables, &service.windows).unwrap();
            bases.fetch_add(1, Ordering::Release);
        }
        training.join().expect("training ends well")
    });
    let expected = rows(&service);
    drop(service);
    assert_eq!(home.files("base-").len(), 1);
    let service = home.start();
    assert_eq!(rows(&service), expected);
    let mut retry = push_of(&[(ITEM, &[1])], newest, 1.0);
    retry.writer = 2;
    assert!(push(&service, &retry).unwrap().duplicate, "the windows are in the base");
}

#[test]
fn a_full_disk_refuses_pushes_before_they_are_applied_and_lookups_go_on() {
    let home = LogFixture::new("");
    let service = home.start();
    let first = read(&service, &[(ITEM, &[1])]);
    home.disk.fail(Some("allocate"));
    // Until what is preallocated is used up, nothing fails.
    let ids: Vec<u64> = (0..200_000).collect();
    let mut seq = 0;
    let refusal = loop {
        seq += 1;
        match push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)) {
            Ok(_) => assert!(seq < 100, "64 MiB hold no more"),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.kind, RefusalKind::Disk);
    assert!(
        refusal.message.contains("the log cannot be written") && refusal.message.contains("allocate failed"),
        "{refusal}"
    );
    let held = read(&service, &[(ITEM, &[1])]);
    let is_after = |row: &[f32], pushes: u64| (row[0] - first[0] + pushes as f32).abs() < 0.01;
    assert!(is_after(&held, seq - 1), "the refused push is not applied: {held:?}");
    assert!(service.check_ready().unwrap_err().contains("accepts no pushes"));
    home.disk.fail(None);
    service.log.as_ref().unwrap().writer.retry().unwrap();
    assert_eq!(service.check_ready(), Ok(()));
    assert!(!push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)).unwrap().duplicate);
    let expected = read(&service, &[(ITEM, &[1])]);
    assert!(is_after(&expected, seq), "{expected:?}");
    drop(service);
    assert_eq!(read(&home.start(), &[(ITEM, &[1])]), expected);
}

#[test]
fn a_push_that_could_not_be_written_is_not_acknowledged_and_its_retry_is_a_duplicate() {
    for (durability, call) in [("process", "write"), ("machine", "sync")] {
        let mut home = LogFixture::new("");
        home.job.cluster.durability = match durability {
            "machine" => zagros_job::DurabilityLevel::Machine,
            _ => zagros_job::DurabilityLevel::Process,
        };
        let service = home.start();
        let first = read(&service, &[(ITEM, &[1])]);
        push(&service, &push_of(&[(ITEM, &[1])], 1, 1.0)).unwrap();
        home.disk.fail(Some(call));
        let refusal = push(&service, &push_of(&[(ITEM, &[1])], 2, 1.0)).unwrap_err();
        assert!(refusal.kind.is_retryable() && refusal.message.contains(call), "{refusal}");
        assert!(push(&service, &push_of(&[(ITEM, &[1])], 3, 1.0)).is_err(), "refused before it is applied");
        home.disk.fail(None);
        service.log.as_ref().unwrap().writer.retry().unwrap();
        assert!(push(&service, &push_of(&[(ITEM, &[1])], 2, 1.0)).unwrap().duplicate);
        let held = read(&service, &[(ITEM, &[1])]);
        assert_eq!(held[0], first[0] - 2.0);
        drop(service);
        assert_eq!(read(&home.start(), &[(ITEM, &[1])]), held, "{durability}");
    }
}

#[test]
fn rows_of_the_cold_tier_are_there_again_with_the_folder_and_missed_without() {
    let home = LogFixture::new("memory = \"8MiB\"");
    let service = home.start();
    train(&service, 3, 100, 200_000);
    for first in (0..60_000).step_by(2000) {
        let ids: Vec<u64> = (first..first + 2000).collect();
        push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 1000 + first, 1.0)).unwrap();
    }
    let evicted: u64 = service.tables.iter().map(|table| table.event_counts().evicted).sum();
    assert!(evicted > 1000, "{evicted} rows left memory");
    service.log.as_ref().unwrap().write_base(&service.tables, &service.windows).unwrap();
    let ids: Vec<u64> = (0..500).collect();
    push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], 90_000, 1.0)).unwrap();
    let expected = rows(&service);
    drop(service);
    let service = home.start();
    let found = rows(&service);
    // Rows that a lookup alone made, and that had not left memory, are made again when they are asked for.
    assert!(found.iter().all(|(key, slot)| expected.get(key) == Some(slot)));
    let missing: Vec<_> = expected.keys().filter(|key| !found.contains_key(key)).collect();
    for (table, id) in missing {
        let named = [*id];
        let parts = [(*table as u32, &named[..])];
        lookup(&service, &lookup_of(&parts, Access::Train)).unwrap();
        assert_eq!(rows(&service).get(&(*table, *id)), expected.get(&(*table, *id)), "row {id} of table {table}");
    }
    drop(service);
    fs::remove_dir_all(home.folder.path().join("runs/cold-server-0")).unwrap();
    let error = home.try_start().err().unwrap().to_string();
    assert!(error.contains("cold tier") && error.contains("resume the run"), "{error}");
}

#[test]
fn rows_of_another_run_are_forgotten_and_never_come_back() {
    let home = LogFixture::new("");
    let service = home.start();
    train(&service, 2, 20, 100);
    let lineage = service.lineage();
    drop(service);
    let service = home.start();
    service.start_empty().unwrap();
    assert!(!service.has_recovered() && service.lineage() != lineage && service.lineage().is_some());
    assert_eq!(rows(&service).len(), 0);
    let (own, lineage) = (push_of(&[(ITEM, &[7])], 1, 1.0), service.lineage());
    assert!(!push(&service, &own).unwrap().duplicate);
    let expected = rows(&service);
    drop(service);
    let service = home.start();
    assert_eq!((rows(&service), service.lineage()), (expected, lineage));
    // Writer 0 pushed number 1 in the other run.
    let mut request = push_of(&[(ITEM, &[7])], 1, 1.0);
    request.writer = 0;
    assert!(!push(&service, &request).unwrap().duplicate);
}

#[test]
fn counts_of_ids_without_a_row_go_on() {
    let home = LogFixture::with_change("", |job| {
        for table in &mut job.tables {
            table.admission =
                zagros_job::AdmissionPolicy::Count { threshold: 3, counter: zagros_job::FrequencyCounter::Exact };
        }
    });
    let service = home.start();
    let see = |service: &EmbeddingService, times: usize| {
        for _ in 0..times {
            lookup(service, &lookup_of(&[(ITEM, &[1, 2])], Access::Train)).unwrap();
        }
    };
    see(&service, 1);
    service.log.as_ref().unwrap().write_base(&service.tables, &service.windows).unwrap();
    see(&service, 1);
    assert_eq!(rows(&service).len(), 0);
    // A lookup waits for nothing: the next push makes it durable.
    push(&service, &push_of(&[(0, &[9])], 1, 1.0)).unwrap();
    drop(service);
    let service = home.start();
    assert_eq!(rows(&service).len(), 0);
    see(&service, 1);
    assert_eq!(rows(&service).len(), 2, "the third use since the start");
    assert_eq!(service.tables.iter().map(Table::row_count).sum::<usize>(), 2);
}
