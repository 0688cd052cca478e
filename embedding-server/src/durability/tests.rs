//! Servers that end at any moment, and others that go on with their logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::Registry;
use zagros_job::{DurabilityLevel, Job};
use zagros_protocol::datapath::{Access, PushRequest};
use zagros_protocol::{RefusalKind, ServerIndex};
use zagros_rows::log::{LogTail, RecordKind};
use zagros_table::Table;

use crate::durability::{LogHost, LogSizes};
use crate::testing::{FaultyDisk, Slots, even_map, job_with, lookup, lookup_of, push, push_of, read, slots};
use crate::{EmbeddingService, ServerError};

/// `item` learns with SGD at a rate of 1: a row is its first value minus what was pushed.
const ITEM: u32 = 1;

mod bounds;
mod damage;
mod full_disk;
mod loads;
mod starts;

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

    /// A fixture with its first server.
    fn started(cluster: &str) -> (Self, Arc<EmbeddingService>) {
        let home = Self::new(cluster);
        let service = home.start();
        (home, service)
    }

    fn try_start(&self) -> Result<Arc<EmbeddingService>, ServerError> {
        self.start_with(LogSizes::default())
    }

    fn start_with(&self, sizes: LogSizes) -> Result<Arc<EmbeddingService>, ServerError> {
        let host = LogHost { disk: Arc::clone(&self.disk) as _, sizes, boot: self.boot.map(ToOwned::to_owned) };
        let service = EmbeddingService::open_on_host(&self.job, ServerIndex(0), &Registry::new(), host)?;
        service.set_placement(even_map(1));
        Ok(service)
    }

    fn start(&self) -> Arc<EmbeddingService> {
        self.try_start().unwrap()
    }

    /// Ends a server as a kill does, and starts the next one.
    fn restart(&self, service: Arc<EmbeddingService>) -> Arc<EmbeddingService> {
        drop(service);
        self.start()
    }

    /// The disk works again, and the log has noticed.
    fn repair(&self, service: &EmbeddingService) {
        self.disk.fail(None);
        service.log.as_ref().unwrap().writer.retry().unwrap();
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("runs/log-server-0")
    }

    /// The end of the log, and the mark that says how far it was written.
    fn log_end(&self, service: &EmbeddingService) -> (u64, Vec<u8>) {
        (service.log.as_ref().unwrap().writer.durable_lsn(), fs::read(self.log().join("written")).unwrap())
    }

    fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.log()).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix)).collect();
        paths.sort();
        paths
    }
}

/// A log whose last segment is cut, as if the process had ended before the later records were whole.
struct TornLog<'a> {
    home: &'a LogFixture,
    segment: PathBuf,
    whole: Vec<u8>,
    mark: Vec<u8>,
    /// The records after the mark.
    records: Vec<(u64, RecordKind)>,
}

impl<'a> TornLog<'a> {
    fn new(home: &'a LogFixture, (end, mark): (u64, Vec<u8>)) -> Self {
        let segment = home.files("segment-").pop().unwrap();
        let mut whole = fs::read(&segment).unwrap();
        whole.truncate(whole.iter().rposition(|byte| *byte != 0).unwrap() + 64);
        let mut records = Vec::new();
        LogTail::scan(&home.log(), 0..0, None, |head, _| {
            records.extend((head.lsn >= end).then_some((head.lsn, head.kind)));
            Ok(())
        })
        .unwrap();
        Self { home, segment, whole, mark, records }
    }

    fn cut(&self, lsn: u64) {
        for other in self.home.files("segment-").into_iter().filter(|path| *path != self.segment) {
            fs::remove_file(other).unwrap();
        }
        let mut cut = self.whole.clone();
        cut[64 + lsn as usize..].fill(0);
        fs::write(&self.segment, cut).unwrap();
        fs::write(self.home.log().join("written"), &self.mark).unwrap();
    }
}

fn rows(service: &Arc<EmbeddingService>) -> Slots {
    slots(std::slice::from_ref(service))
}

/// An error with all its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn write_base(service: &EmbeddingService) {
    service.log.as_ref().unwrap().write_base(&service.tables, &service.windows).unwrap();
}

/// A push to both tables, and whether it was a duplicate.
fn push_both(service: &EmbeddingService, ids: &[u64], seq: u64, gradient: f32) -> bool {
    push(service, &push_of(&[(0, ids), (ITEM, ids)], seq, gradient)).unwrap().duplicate
}

/// A push to `item`, and whether it was a duplicate.
fn push_items(service: &EmbeddingService, ids: &[u64], seq: u64, gradient: f32) -> bool {
    push(service, &push_of(&[(ITEM, ids)], seq, gradient)).unwrap().duplicate
}

/// Pushes to so many ids of both tables.
fn push_many(service: &EmbeddingService, ids: u64, first_seq: u64) {
    for first in (0..ids).step_by(2000) {
        push_both(service, &(first..first + 2000).collect::<Vec<_>>(), first_seq + first, 1.0);
    }
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
                    let named: BTreeSet<u64> = (0..40).map(|row| (row * 31 + seq * 17 + thread) % ids).collect();
                    let named: Vec<u64> = named.into_iter().collect();
                    let parts = [(0, &named[..]), (ITEM, &named[..])];
                    lookup(service, &lookup_of(&parts, Access::Train)).unwrap();
                    let request = push_of(&parts, seq, (seq % 5) as f32 - 2.0);
                    assert!(!push(service, &PushRequest { writer: thread, ..request }).unwrap().duplicate);
                }
            });
        }
    });
}

/// Invariant DU-1.
#[test]
fn what_was_acknowledged_is_there_again_bit_for_bit_and_is_not_applied_again() {
    let (home, service) = LogFixture::started("");
    assert!(!service.has_recovered());
    let lineage = service.lineage().unwrap();
    train(&service, 4, 50, 300);
    let expected = rows(&service);
    let service = home.restart(service);
    assert!(service.has_recovered());
    assert_eq!((service.lineage(), rows(&service)), (Some(lineage), expected.clone()));
    for (writer, seq) in (0..4).flat_map(|thread| [(thread, 1), (thread, 50)]) {
        let request = PushRequest { writer, ..push_of(&[(ITEM, &[1])], seq, 1.0) };
        assert!(push(&service, &request).unwrap().duplicate, "push {seq} of writer {writer}");
    }
    assert_eq!(rows(&service), expected);
    // The second process logs as well.
    push(&service, &push_of(&[(0, &[5]), (ITEM, &[5, 1000])], 1, 1.0)).unwrap();
    let expected = rows(&service);
    assert_eq!(rows(&home.restart(service)), expected);
}

/// The process ends while a push is appended: at each record of it, its retry changes what is left and nothing twice.
#[test]
fn a_push_that_died_half_way_is_applied_once() {
    let (home, service) = LogFixture::started("");
    let ids: Vec<u64> = (0..30).collect();
    push_both(&service, &ids, 1, 1.0);
    let end = home.log_end(&service);
    push_both(&service, &ids, 2, 3.0);
    let expected = rows(&service);
    drop(service);
    let log = TornLog::new(&home, end);
    let records = &log.records;
    assert!(records.len() > 30 && records.last().unwrap().1 == RecordKind::Commit, "{records:?}");
    for (lsn, _) in records {
        log.cut(*lsn);
        let service = home.start();
        assert!(push_both(&service, &ids, 1, 1.0) && !push_both(&service, &ids, 2, 3.0));
        assert_eq!(rows(&service), expected, "cut at {lsn}");
        assert!(push_both(&service, &ids, 2, 3.0));
        // The rest of the push and its commit are in the log too.
        let service = home.restart(service);
        assert_eq!(rows(&service), expected, "cut at {lsn}, and recovered again");
        assert!(push_both(&service, &ids, 2, 3.0));
    }
}

/// A base carries what is known of a push that died: its retry may come after the segments are gone.
#[test]
fn a_base_keeps_what_is_applied_of_a_push_that_died() {
    let (home, service) = LogFixture::started("");
    let ids: Vec<u64> = (0..30).collect();
    push_items(&service, &ids, 1, 1.0);
    let end = home.log_end(&service);
    let middle = end.0 + 2000;
    push_items(&service, &ids, 2, 3.0);
    let expected = rows(&service);
    drop(service);
    let log = TornLog::new(&home, end);
    log.cut(log.records.iter().rev().find(|record| record.0 < middle).unwrap().0);
    let service = home.start();
    assert_ne!(rows(&service), expected);
    write_base(&service);
    let service = home.restart(service);
    assert!(!push_items(&service, &ids, 2, 3.0));
    assert_eq!(rows(&service), expected);
}

#[test]
fn a_base_is_written_while_pushes_go_on_and_the_log_before_it_is_deleted() {
    let (home, service) = LogFixture::started("");
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
            write_base(&service);
            bases.fetch_add(1, Ordering::Release);
        }
        training.join().expect("training ends well")
    });
    let expected = rows(&service);
    drop(service);
    assert_eq!(home.files("base-").len(), 1);
    let service = home.start();
    assert_eq!(rows(&service), expected);
    let retry = PushRequest { writer: 2, ..push_of(&[(ITEM, &[1])], newest, 1.0) };
    assert!(push(&service, &retry).unwrap().duplicate, "the windows are in the base");
}

#[test]
fn a_push_that_could_not_be_written_is_not_acknowledged_and_its_retry_is_a_duplicate() {
    for (durability, call) in [(DurabilityLevel::Process, "write"), (DurabilityLevel::Machine, "sync")] {
        let mut home = LogFixture::new("");
        home.job.cluster.durability = durability;
        let service = home.start();
        let first = read(&service, &[(ITEM, &[1])]);
        push_items(&service, &[1], 1, 1.0);
        home.disk.fail(Some(call));
        let refusal = push(&service, &push_of(&[(ITEM, &[1])], 2, 1.0)).unwrap_err();
        assert!(refusal.kind.is_retryable() && refusal.message.contains(call), "{refusal}");
        assert!(push(&service, &push_of(&[(ITEM, &[1])], 3, 1.0)).is_err(), "refused before it is applied");
        home.repair(&service);
        assert!(push_items(&service, &[1], 2, 1.0));
        let held = read(&service, &[(ITEM, &[1])]);
        assert_eq!(held[0], first[0] - 2.0);
        assert_eq!(read(&home.restart(service), &[(ITEM, &[1])]), held, "{call} failed");
    }
}

#[test]
fn rows_of_the_cold_tier_are_there_again_with_the_folder_and_missed_without() {
    let (home, service) = LogFixture::started("memory = \"8MiB\"");
    train(&service, 3, 100, 200_000);
    push_many(&service, 60_000, 1000);
    let evicted: u64 = service.tables.iter().map(|table| table.event_counts().evicted).sum();
    assert!(evicted > 1000, "{evicted} rows left memory");
    write_base(&service);
    push_both(&service, &(0..500).collect::<Vec<_>>(), 90_000, 1.0);
    let expected = rows(&service);
    let service = home.restart(service);
    let found = rows(&service);
    // Rows that a lookup alone made, and that had not left memory, are made again when they are asked for.
    assert!(found.iter().all(|(key, slot)| expected.get(key) == Some(slot)));
    for key in expected.keys().filter(|key| !found.contains_key(key)) {
        let (table, id) = *key;
        lookup(&service, &lookup_of(&[(table, &[id])], Access::Train)).unwrap();
        assert_eq!(rows(&service).get(key), expected.get(key), "row {id} of table {table}");
    }
    drop(service);
    fs::remove_dir_all(home.folder.path().join("runs/cold-server-0")).unwrap();
    let error = home.try_start().err().unwrap().to_string();
    assert!(error.contains("cold tier") && error.contains("resume the run"), "{error}");
}

#[test]
fn rows_of_another_run_are_forgotten_and_never_come_back() {
    let (home, service) = LogFixture::started("");
    train(&service, 2, 20, 100);
    let lineage = service.lineage();
    let service = home.restart(service);
    service.start_empty().unwrap();
    assert!(!service.has_recovered() && service.lineage() != lineage && service.lineage().is_some());
    assert_eq!(rows(&service).len(), 0);
    assert!(!push_items(&service, &[7], 1, 1.0));
    let expected = (rows(&service), service.lineage());
    let service = home.restart(service);
    assert_eq!((rows(&service), service.lineage()), expected);
    // Writer 0 pushed number 1 in the other run.
    let request = PushRequest { writer: 0, ..push_of(&[(ITEM, &[7])], 1, 1.0) };
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
    write_base(&service);
    see(&service, 1);
    assert_eq!(rows(&service).len(), 0);
    // A lookup waits for nothing: the next push makes it durable.
    push(&service, &push_of(&[(0, &[9])], 1, 1.0)).unwrap();
    let service = home.restart(service);
    assert_eq!(rows(&service).len(), 0);
    see(&service, 1);
    assert_eq!(rows(&service).len(), 2, "the third use since the start");
    assert_eq!(service.tables.iter().map(Table::row_count).sum::<usize>(), 2);
}
