//! A disk that fails on request.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zagros_log::{LogDisk, SystemDisk};

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
            return Err(io::Error::from(io::ErrorKind::StorageFull));
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
