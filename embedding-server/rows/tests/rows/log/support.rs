//! A log in a folder of its own, random changes, what is read of it, and a disk that fails on request.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;
use zagros_rows::log::{LogDisk, LogError, LogRecord, LogTail, LogWriter, SyncMode, SystemDisk, WriterConfig};
use zagros_table::{ChangeKind, PushOrigin, RowBatch, StripeChange, TableTime, UpdateLog};

pub(crate) const LINEAGE: u64 = 77;
/// Small, so that a test of some hundred records has several.
pub(crate) const SEGMENT: u64 = 4096;

#[derive(Clone, Debug)]
pub(crate) enum RecordChange {
    Rows { ids: Vec<u64>, width: usize, pushed: bool },
    Removed(Vec<u64>),
    Seen(Vec<u64>),
    Cleared,
    Commit(u64),
}

pub(crate) fn changes(most: usize) -> impl Strategy<Value = Vec<RecordChange>> {
    let ids = || prop::collection::vec(any::<u64>(), 1..20);
    let rows =
        (ids(), 1..40_usize, any::<bool>()).prop_map(|(ids, width, pushed)| RecordChange::Rows { ids, width, pushed });
    let change = prop_oneof![
        4 => rows,
        1 => ids().prop_map(RecordChange::Removed),
        1 => ids().prop_map(RecordChange::Seen),
        1 => Just(RecordChange::Cleared),
        2 => (0..1000_u64).prop_map(RecordChange::Commit),
    ];
    prop::collection::vec(change, 1..most)
}

pub(crate) fn origin(seq: u64) -> PushOrigin {
    PushOrigin { writer: 5, incarnation: 2, seq }
}

impl RecordChange {
    fn rows(ids: &[u64], width: usize) -> RowBatch {
        let slots = ids.iter().flat_map(|id| (0..width as u32).map(move |word| *id as u32 ^ word)).collect();
        RowBatch { ids: ids.to_vec(), slots, access: ids.iter().map(|id| *id as u32).collect() }
    }

    /// What the log should say of it.
    pub(crate) fn record(&self) -> LogRecord {
        match self {
            Self::Rows { ids, width, pushed } => LogRecord::Rows(pushed.then(|| origin(1)), Self::rows(ids, *width)),
            Self::Removed(ids) => LogRecord::Removed(ids.clone()),
            Self::Seen(ids) => LogRecord::Seen(ids.clone()),
            Self::Cleared => LogRecord::Cleared,
            Self::Commit(seq) => {
                let time = TableTime { steps: *seq, seconds: 3 };
                LogRecord::Commit { origin: origin(*seq), step: seq + 1, time, groups: Vec::new() }
            }
        }
    }

    pub(crate) fn append(&self, log: &LogWriter) {
        let change =
            |kind, origin: Option<&PushOrigin>| log.append(&StripeChange { table: 1, stripe: 2, origin, kind });
        match self {
            Self::Rows { ids, width, pushed } => {
                let RowBatch { ids, slots, access } = Self::rows(ids, *width);
                let pushed = pushed.then(|| origin(1));
                change(ChangeKind::Rows { ids: &ids, slots: &slots, access: &access }, pushed.as_ref());
            }
            Self::Removed(ids) => change(ChangeKind::Removed(ids), None),
            Self::Seen(ids) => change(ChangeKind::Seen(ids), None),
            Self::Cleared => log.cleared(),
            Self::Commit(seq) => log.append_commit(&origin(*seq), seq + 1, TableTime { steps: *seq, seconds: 3 }, &[]),
        }
    }
}

pub(crate) fn open(folder: &Path) -> LogWriter {
    open_on(folder, Arc::new(SystemDisk), SyncMode::Process, 0)
}

pub(crate) fn open_on(folder: &Path, disk: Arc<dyn LogDisk>, mode: SyncMode, next: u64) -> LogWriter {
    let config = WriterConfig { mode, lineage: LINEAGE, segment_bytes: SEGMENT, next };
    LogWriter::open(folder, disk, &config).unwrap()
}

pub(crate) fn read(folder: &Path) -> Result<(Vec<(u64, LogRecord)>, LogTail), LogError> {
    let mut records = Vec::new();
    let tail = LogTail::scan(folder, 0..0, Some(LINEAGE), |head, payload| {
        records.push((head.lsn, LogRecord::decode(head, payload).unwrap()));
        Ok(())
    })?;
    Ok((records, tail))
}

pub(crate) fn records_of(changes: &[RecordChange]) -> Vec<LogRecord> {
    changes.iter().map(RecordChange::record).collect()
}

pub(crate) fn records_read(folder: &Path) -> Vec<LogRecord> {
    read(folder).unwrap().0.into_iter().map(|(_, record)| record).collect()
}

/// The mark that says how far the log was written, as it is now. A test that writes it back makes up a process that ended before
/// the later records were whole.
pub(crate) fn mark(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("written")).unwrap()
}

pub(crate) fn put_mark_back(folder: &Path, mark: &[u8]) {
    std::fs::write(folder.join("written"), mark).unwrap();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFault {
    NoRoom,
    /// Writes fail after half of their bytes.
    HalfWrites,
    /// What was written is not on the disk.
    Syncs,
}

#[derive(Debug, Default)]
pub(crate) struct FaultyDisk {
    fault: Mutex<Option<DiskFault>>,
    pub(crate) syncs: AtomicU64,
    /// Syncs that succeed before all others fail, plus one. 0 for no such fault.
    good_syncs: AtomicU64,
}

impl FaultyDisk {
    /// Syncs fail after so many good ones.
    pub(crate) fn fail_after(&self, syncs: u64) {
        self.good_syncs.store(syncs + 1, Ordering::Relaxed);
    }

    pub(crate) fn fail_with(&self, fault: Option<DiskFault>) {
        self.good_syncs.store(0, Ordering::Relaxed);
        *self.fault.lock() = fault;
    }

    fn fails(&self, with: DiskFault) -> bool {
        *self.fault.lock() == Some(with)
    }
}

impl LogDisk for FaultyDisk {
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<File> {
        if self.fails(DiskFault::NoRoom) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        SystemDisk.allocate(path, bytes)
    }

    fn write_at(&self, file: &File, bytes: &[u8], place: u64) -> io::Result<()> {
        if self.fails(DiskFault::HalfWrites) {
            SystemDisk.write_at(file, &bytes[..bytes.len() / 2], place)?;
            return Err(io::Error::other("input/output error"));
        }
        SystemDisk.write_at(file, bytes, place)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let last = self.good_syncs.load(Ordering::Relaxed);
        self.good_syncs.store(if last > 1 { last - 1 } else { last }, Ordering::Relaxed);
        if self.fails(DiskFault::Syncs) || last == 1 {
            return Err(io::Error::other("input/output error"));
        }
        SystemDisk.sync(file)
    }
}
