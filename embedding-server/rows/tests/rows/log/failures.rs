//! Full and failing disks: what was appended is kept, and nothing is durable before it is.
//! Bases: whole or not at all.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use zagros_rows::log::{BaseDraft, BaseManifest, LogBase, LogError, LogRecord, LogStopped, LogWriter, SyncMode};
use zagros_table::{FrequencyCounts, RowBatch};

use crate::log::support::{
    DiskFault, FaultyDisk, LINEAGE, RecordChange, SEGMENT, changes, open_on, records_of, records_read,
};

fn log_on(folder: &std::path::Path, mode: SyncMode) -> (Arc<FaultyDisk>, LogWriter) {
    let disk = Arc::new(FaultyDisk::default());
    let log = open_on(folder, Arc::clone(&disk) as _, mode, 0);
    (disk, log)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Faults come and go between flushes. In the end the log has every change once, in order.
    #[test]
    fn what_could_not_be_written_is_written_later(
        made in changes(120),
        faults in prop::collection::vec(0..8_u8, 120),
        machine: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mode = if machine { SyncMode::Machine } else { SyncMode::Process };
        let (disk, log) = log_on(folder.path(), mode);
        for (number, change) in made.iter().enumerate() {
            change.append(&log);
            disk.fail_with(match faults[number] {
                0 => Some(DiskFault::NoRoom),
                1 => Some(DiskFault::HalfWrites),
                2 => Some(DiskFault::Syncs),
                _ => None,
            });
            let old_durable = log.durable_lsn();
            match log.flush_appended() {
                Ok(()) => prop_assert_eq!(log.durable_lsn(), log.next_lsn()),
                Err(stopped) => {
                    prop_assert_eq!(log.durable_lsn(), old_durable);
                    prop_assert_eq!(log.check_running(), Err(stopped));
                }
            }
            if faults[number] > 4 {
                prop_assert_eq!((log.retry(), log.check_running()), (Ok(()), Ok(())));
            }
        }
        disk.fail_with(None);
        log.retry().unwrap();
        log.flush_appended().unwrap();
        prop_assert_eq!(records_read(folder.path()), records_of(&made));
    }
}

#[test]
fn a_log_on_a_full_disk_opens_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    disk.fail_with(Some(DiskFault::NoRoom));
    let log = open_on(folder.path(), Arc::clone(&disk) as _, SyncMode::Process, 0);
    assert!(log.check_running().is_err() && log.reserve_room(1).is_err());
    disk.fail_with(None);
    assert_eq!((log.retry(), log.check_running()), (Ok(()), Ok(())));
}

#[test]
fn pushes_that_wait_share_one_sync() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, log) = log_on(folder.path(), SyncMode::Machine);
    log.flush_appended().unwrap();
    let threads = 8_u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let log = &log;
            scope.spawn(move || {
                for seq in 0..50 {
                    RecordChange::Commit(thread * 50 + seq).append(log);
                    log.flush_appended().unwrap();
                }
            });
        }
    });
    let records = records_read(folder.path()).len() as u64;
    let syncs = disk.syncs.load(Ordering::Relaxed);
    assert_eq!(records, threads * 50);
    // One thread alone would need one each, and two for each segment.
    assert!(syncs <= records + 3 * records * 104 / SEGMENT + 3, "{syncs} syncs for {records} records");
}

/// The process goes on for a moment after its run is over, while the next server makes a log in the same folder.
#[test]
fn a_log_that_has_ended_touches_no_file_of_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (_, ended) = log_on(folder.path(), SyncMode::Process);
    RecordChange::Commit(1).append(&ended);
    ended.flush_appended().unwrap();
    let held = ended.reserve_room(1).unwrap();
    RecordChange::Commit(2).append(&ended);
    ended.end_writing();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let next = open_on(folder.path(), Arc::new(FaultyDisk::default()), SyncMode::Process, 0);
    assert_eq!(ended.flush_appended(), Err(LogStopped::Ended));
    assert_eq!(ended.reserve_room(64 * SEGMENT * SEGMENT).map(drop), Err(LogStopped::Ended));
    assert_eq!((ended.retry(), ended.check_running()), (Err(LogStopped::Ended), Err(LogStopped::Ended)));
    assert_eq!(ended.delete_before(u64::MAX).unwrap(), 0);
    drop(held);
    RecordChange::Commit(3).append(&next);
    next.flush_appended().unwrap();
    assert_eq!(records_read(folder.path()), records_of(&[RecordChange::Commit(3)]));
}

fn make(folder: &Path, start: u64) -> LogBase {
    let draft = BaseDraft::new(folder, start, LINEAGE).unwrap();
    let (mut rows, mut bytes) = (0, 0);
    for part in 0..2 {
        let mut file = draft.create_part(part).unwrap();
        for stripe in [part, part + 2] {
            let ids: Vec<u64> = (0..50).map(|id| id * 4 + u64::from(stripe)).collect();
            let slots: Vec<u32> = ids.iter().flat_map(|id| [*id as u32; 3]).collect();
            file.append_rows([7, stripe], &ids, &slots, &[]).unwrap();
            let counts = FrequencyCounts { ids: vec![9], counts: vec![u32::from(stripe == 1)], cells: vec![] };
            file.append_stripe_counts([7, stripe], start + 5, &counts).unwrap();
        }
        let size = file.finish().unwrap();
        (rows, bytes) = (rows + size.rows, bytes + size.bytes);
    }
    let manifest =
        BaseManifest { start, end: start + 9, parts: 2, rows, bytes, time: [3, 4], ..BaseManifest::default() };
    draft.finish(manifest).unwrap()
}

fn read(base: &LogBase) -> Result<(usize, usize), LogError> {
    let (mut rows, mut counts) = (0, 0);
    for part in 0..base.manifest.parts {
        base.read_part(part, |head, payload| {
            assert_eq!(head.table, 7);
            match LogRecord::decode(head, payload).unwrap() {
                LogRecord::Rows(None, RowBatch { ids, slots, .. }) => {
                    assert!(ids.iter().all(|id| *id % 4 == u64::from(head.stripe)));
                    assert_eq!(slots.len(), 3 * ids.len());
                    rows += ids.len();
                }
                LogRecord::StripeCounts { lsn, .. } => {
                    assert_eq!(lsn, base.manifest.start + 5);
                    counts += 1;
                }
                other => panic!("{other:?}"),
            }
            Ok::<_, LogError>(())
        })?;
    }
    Ok((rows, counts))
}

#[test]
fn the_newest_whole_base_counts_and_others_go() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(LogBase::find_newest(folder.path()).unwrap(), None);
    make(folder.path(), 100);
    let base = make(folder.path(), 0x2000);
    assert_eq!((base.manifest.rows, base.file_bytes().unwrap()), (200, base.manifest.bytes));
    // One that was being written when the process ended.
    BaseDraft::new(folder.path(), 0x3000, LINEAGE).unwrap().create_part(0).unwrap();
    let newest = LogBase::find_newest(folder.path()).unwrap().unwrap();
    assert_eq!((fs::read_dir(folder.path()).unwrap().count(), &newest), (3, &base), "reading deletes nothing");
    LogBase::delete_others(Some(&newest), folder.path()).unwrap();
    assert_eq!(read(&newest).unwrap(), (200, 4));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_part_that_was_shortened_or_changed_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let base = make(folder.path(), 1);
    let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path().join("part-1.log");
    let whole = fs::read(&path).unwrap();
    for end in [0, 63, 64, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..end]).unwrap();
        assert!(matches!(read(&base), Err(LogError::Damaged { .. })), "{end} bytes of {}", whole.len());
    }
    for place in (0..whole.len()).step_by(41) {
        let mut flipped = whole.clone();
        flipped[place] ^= 1;
        fs::write(&path, &flipped).unwrap();
        match read(&base) {
            Err(LogError::Damaged { path: named, .. }) => assert_eq!(named, path),
            Err(other) => panic!("{other}"),
            Ok(found) => assert_eq!(found, (200, 4), "padding is covered by no checksum"),
        }
    }
}
