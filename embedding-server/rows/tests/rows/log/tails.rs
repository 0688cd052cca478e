//! A process that ends at any byte of the tail, and bits that flip.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use zagros_rows::log::{
    LogError, LogRecord, LogSummary, LogTail, LogWriter, RecordHead, RecordKind, SyncMode, SystemDisk,
};

use crate::log::support::{
    FaultyDisk, LINEAGE, RecordChange, changes, mark, open, open_on, put_mark_back, read, records_of, records_read,
};

/// A log of these changes, which were flushed together.
fn written(changes: &[RecordChange]) -> (tempfile::TempDir, LogWriter) {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    changes.iter().for_each(|change| change.append(&log));
    log.flush_appended().unwrap();
    (folder, log)
}

/// Finds where a record is in a segment.
fn offset_in(first: u64, lsn: u64) -> usize {
    (64 + lsn - first) as usize
}

fn segments(folder: &std::path::Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment-")).collect();
    paths.sort();
    paths
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Several segments, several flushes, and a second process that goes on where the first ended.
    #[test]
    fn what_was_flushed_is_read_again(first in changes(60), second in changes(60), every in 1..7_usize) {
        let folder = tempfile::tempdir().unwrap();
        let log = open(folder.path());
        for (number, change) in first.iter().enumerate() {
            change.append(&log);
            if number % every == 0 {
                log.flush_appended().unwrap();
            }
        }
        log.flush_appended().unwrap();
        prop_assert_eq!(log.durable_lsn(), log.next_lsn());
        drop(log);
        let (records, tail) = read(folder.path()).unwrap();
        prop_assert_eq!(records.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), records_of(&first));
        prop_assert_eq!(tail.torn, 0);
        tail.cut_torn_end().unwrap();
        let log = open_on(folder.path(), std::sync::Arc::new(SystemDisk), SyncMode::Process, tail.end);
        second.iter().for_each(|change| change.append(&log));
        log.flush_appended().unwrap();
        let both = [first, second].concat();
        prop_assert_eq!(records_read(folder.path()), records_of(&both));
        // The second pass of recovery reads the same.
        let (records, tail) = read(folder.path()).unwrap();
        let mut again = Vec::new();
        for segment in &tail.segments {
            let keep = |head: &RecordHead, payload: &[u8]| {
                again.push((head.lsn, LogRecord::decode(head, payload).unwrap()));
                Ok::<_, LogError>(())
            };
            segment.for_each(records[1].0, |_| true, keep).unwrap();
        }
        prop_assert_eq!(&again[..], &records[1..]);
    }

    /// Ids of a tail are counted as `zagros inspect --log` shows them.
    #[test]
    fn a_summary_counts_what_is_there(made in changes(40)) {
        let (folder, _log) = written(&made);
        let summary = LogSummary::read(folder.path()).unwrap();
        let kinds = |wanted: fn(&RecordChange) -> bool| made.iter().filter(|change| wanted(change)).count() as u64;
        let counted = |kind| summary.records.get(&kind).map_or(0, |count| count.records);
        prop_assert_eq!(counted(RecordKind::Removed), kinds(|change| matches!(change, RecordChange::Removed(_))));
        let commits = kinds(|change| matches!(change, RecordChange::Commit(_)));
        prop_assert_eq!(counted(RecordKind::Commit), commits);
        prop_assert_eq!(summary.writers.values().map(|writer| writer.pushes).sum::<u64>(), commits);
        prop_assert_eq!(summary.records.values().map(|count| count.bytes).sum::<u64>(), summary.end);
        let rows: u64 = made.iter().map(|change| if let RecordChange::Rows { ids, .. } = change { ids.len() as u64 } else { 0 }).sum();
        prop_assert_eq!(summary.rows.values().sum::<u64>(), rows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    /// The process ends while the last flush is written: at each byte of it, the records before are recovered.
    #[test]
    fn a_tail_that_ends_anywhere_is_a_prefix(before in changes(6), last in changes(4)) {
        let (folder, log) = written(&before);
        let (durable, before) = (log.durable_lsn(), mark(folder.path()));
        last.iter().for_each(|change| change.append(&log));
        log.flush_appended().unwrap();
        drop(log);
        put_mark_back(folder.path(), &before);
        let (records, tail) = read(folder.path()).unwrap();
        let segment = tail.segments.last().unwrap().clone();
        let whole = fs::read(&segment.path).unwrap();
        let offset = |lsn: u64| offset_in(segment.first, lsn);
        for end in offset(durable.max(segment.first))..offset(tail.end) {
            let mut torn = whole.clone();
            torn[end..].fill(0);
            fs::write(&segment.path, &torn).unwrap();
            let (found, cut) = read(folder.path()).unwrap();
            let expected: Vec<_> = records.iter().filter(|(lsn, _)| *lsn < cut.end).cloned().collect();
            prop_assert_eq!(&found, &expected);
            let next = records.iter().map(|record| record.0).chain([tail.end]).find(|lsn| *lsn > cut.end);
            // The zeros at the end of a record are as good as written.
            let is_there = |lsn: u64| torn[..offset(lsn)] == whole[..offset(lsn)];
            prop_assert!(is_there(cut.end) && next.is_none_or(|next| !is_there(next)), "{} {}", end, cut.end);
        }
    }

    /// A bit that flips is found, and the file and the place are named, also in the last flush.
    #[test]
    fn flipped_bits_are_found(made in changes(10), place: prop::sample::Index, bit in 0..8_u32) {
        let (folder, log) = written(&made);
        drop(log);
        let (records, tail) = read(folder.path()).unwrap();
        let place = place.index(tail.end as usize) as u64;
        let segment = tail.segments.iter().find(|segment| (segment.first..segment.end).contains(&place)).unwrap();
        let mut bytes = fs::read(&segment.path).unwrap();
        bytes[offset_in(segment.first, place)] ^= 1 << bit;
        fs::write(&segment.path, &bytes).unwrap();
        let hit = records.iter().rposition(|(lsn, _)| *lsn <= place).unwrap();
        match read(folder.path()) {
            Err(LogError::Damaged { path, offset, .. }) => {
                prop_assert_eq!(path, segment.path.clone());
                prop_assert_eq!(offset, 64 + records[hit].0 - segment.first);
            }
            Err(other) => prop_assert!(false, "{}", other),
            // Padding is covered by no checksum: nothing is lost.
            Ok((found, _)) => prop_assert_eq!(found, records),
        }
    }

    /// A log that is cut off behind a whole record has nothing that shows a torn end. The mark knows better.
    #[test]
    fn a_log_that_is_cut_off_anywhere_is_damage(made in changes(30), machine: bool) {
        let folder = tempfile::tempdir().unwrap();
        let mode = if machine { SyncMode::Machine } else { SyncMode::Process };
        let log = open_on(folder.path(), std::sync::Arc::new(SystemDisk), mode, 0);
        for change in &made {
            change.append(&log);
            log.flush_appended().unwrap();
        }
        drop(log);
        let (records, tail) = read(folder.path()).unwrap();
        let segment = tail.segments.last().unwrap();
        let whole = fs::read(&segment.path).unwrap();
        for (lsn, _) in records.iter().filter(|(lsn, _)| *lsn >= segment.first) {
            let place = offset_in(segment.first, *lsn);
            for damaged in [whole[..place].to_vec(), [&whole[..place], &vec![0; whole.len() - place][..]].concat()] {
                fs::write(&segment.path, damaged).unwrap();
                let error = read(folder.path()).unwrap_err().to_string();
                let named = format!("the log ends here, at lsn {lsn}, and had been written up to lsn {}", tail.end);
                prop_assert!(error.contains(&named), "{}", error);
            }
        }
        // The mark itself is one of the files of the log.
        fs::write(&segment.path, &whole).unwrap();
        let good = mark(folder.path());
        for bit in 0..good.len() * 8 {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            put_mark_back(folder.path(), &flipped);
            let error = read(folder.path()).unwrap_err().to_string();
            prop_assert!(error.contains("written at byte "), "{}", error);
        }
    }
}

/// A log of so many commits, each of which was flushed.
fn commits(count: u64) -> (tempfile::TempDir, LogWriter) {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    for seq in 0..count {
        RecordChange::Commit(seq).append(&log);
        log.flush_appended().unwrap();
    }
    (folder, log)
}

#[test]
fn a_missing_segment_is_damage() {
    let (folder, log) = commits(400);
    drop(log);
    let paths = segments(folder.path());
    assert!(paths.len() > 5, "{paths:?}");
    // The first one, the last one, and those between: each is missed and named.
    for missing in &paths {
        let content = fs::read(missing).unwrap();
        fs::remove_file(missing).unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        let named = format!("the log is incomplete: {} is missing", missing.display());
        assert!(error.starts_with(&named) && error.contains("resume the run"), "{error}");
        fs::write(missing, content).unwrap();
    }
    assert_eq!(read(folder.path()).unwrap().0.len(), 400);
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("segment-0000000000000000.log is missing: the log is needed from lsn 0 on;"), "{error}");
}

/// The last flush before a base looks like a torn end when the disk loses it. The base knows better.
#[test]
fn a_tail_that_ends_before_its_base_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let empty = mark(folder.path());
    for seq in 0..10 {
        RecordChange::Commit(seq).append(&log);
        log.flush_appended().unwrap();
    }
    put_mark_back(folder.path(), &empty);
    let scan = |needed: u64| LogTail::scan(folder.path(), 0..needed, None, |_, _| Ok(()));
    let end = log.durable_lsn();
    assert_eq!(scan(end).unwrap().end, end);
    let path = segments(folder.path()).pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[64 + end as usize - 20..].fill(0);
    fs::write(&path, bytes).unwrap();
    let torn = scan(0).unwrap();
    assert!(torn.torn > 0 && torn.end < end);
    let error = scan(end).unwrap_err().to_string();
    let named = format!("the log ends here, at lsn {}, and had been written up to lsn {end}", torn.end);
    assert!(error.contains(&named), "{error}");
}

/// The files are there under their names before the folder is synced, and the next try goes on from there.
#[test]
fn a_segment_whose_folder_could_not_be_synced_is_made_by_the_next_try() {
    let folder = tempfile::tempdir().unwrap();
    let disk = std::sync::Arc::new(FaultyDisk::default());
    let log = open_on(folder.path(), std::sync::Arc::clone(&disk) as _, SyncMode::Machine, 0);
    for seq in 0..200 {
        RecordChange::Commit(seq).append(&log);
        // Each call fails in its turn: that of a record, of a new segment, of the one before it.
        disk.fail_after(seq % 5);
        if log.flush_appended().is_err() {
            disk.fail_with(None);
            log.retry().unwrap();
        }
        disk.fail_with(None);
    }
    log.flush_appended().unwrap();
    assert!(segments(folder.path()).len() > 3);
    assert_eq!(records_read(folder.path()).len(), 200);
}

#[test]
fn segments_of_another_log_are_refused() {
    let (folder, _log) = written(&[RecordChange::Commit(1)]);
    let scanned = LogTail::scan(folder.path(), 0..0, Some(1), |_, _| Ok(()));
    assert!(scanned.unwrap_err().to_string().contains("another log"));
}

#[test]
fn segments_before_an_lsn_are_deleted_and_the_others_stay() {
    let (folder, log) = commits(400);
    let (records, tail) = read(folder.path()).unwrap();
    let from = records[300].0;
    let left = log.delete_before(from).unwrap();
    assert!(left < tail.segments.len() && left == segments(folder.path()).len());
    let mut seen = Vec::new();
    LogTail::scan(folder.path(), from..from, None, |head, _| {
        seen.push(head.lsn);
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, records[300..].iter().map(|record| record.0).collect::<Vec<_>>());
}

/// Files are used again: what they had before is behind the last record, and is never read as one. Here every record has the same
/// bytes but for its lsn, so the old ones begin where new ones could.
#[test]
fn what_a_file_had_before_is_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let (mut reused, mut expected) = (0, Vec::new());
    let inodes = |folder: &std::path::Path| {
        let inode = |path: &PathBuf| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        segments(folder).iter().map(inode).collect::<std::collections::BTreeSet<_>>()
    };
    let mut seen = inodes(folder.path());
    for seq in 0..2000 {
        let old_count = segments(folder.path()).len();
        RecordChange::Commit(seq).append(&log);
        expected.push(seq);
        log.flush_appended().unwrap();
        if segments(folder.path()).len() > old_count {
            let now = inodes(folder.path());
            let newest = fs::metadata(segments(folder.path()).pop().unwrap()).unwrap();
            reused += usize::from(!seen.insert(std::os::unix::fs::MetadataExt::ino(&newest)) && now.len() > 1);
        }
        if seq % 300 == 299 {
            log.delete_before(log.durable_lsn()).unwrap();
            expected.drain(..expected.len() - 1);
        }
        if seq % 37 == 0 {
            let from = fs::read(segments(folder.path()).first().unwrap()).unwrap();
            let from = u64::from_le_bytes(from[24..32].try_into().unwrap());
            let mut found = Vec::new();
            let tail = LogTail::scan(folder.path(), from..log.durable_lsn(), Some(LINEAGE), |head, payload| {
                if let LogRecord::Commit { origin, .. } = LogRecord::decode(head, payload).unwrap() {
                    found.push(origin.seq);
                }
                Ok(())
            })
            .unwrap();
            assert_eq!((tail.end, tail.torn), (log.durable_lsn(), 0));
            assert!(found.ends_with(&expected) && found.is_sorted(), "{found:?} {expected:?}");
        }
    }
    assert!(reused > 10, "{reused} files were used again");
}
