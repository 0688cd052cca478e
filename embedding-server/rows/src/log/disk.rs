//! The calls of the system that the writer depends on, as a trait: tests make them fail.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fmt, io};

use rustix::fs::{FallocateFlags, fallocate};

/// The calls are those of the system, unless an implementation replaces them.
pub trait LogDisk: Send + Sync + fmt::Debug {
    /// Makes a file, whose first `bytes` bytes then have room on the disk and are zero.
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(file),
            // A file system that cannot reserve room shows a full disk later: when it is written.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes).map(|()| file),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(error.into())
            }
        }
    }

    /// A failure may leave some of the bytes written.
    fn write_at(&self, file: &File, bytes: &[u8], place: u64) -> io::Result<()> {
        file.write_all_at(bytes, place)
    }

    /// Waits until what was written is on the disk.
    /// After a failure, what was written since the last success may be lost.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl LogDisk for SystemDisk {}

/// What makes a record durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// The system has it: it survives the end of the process.
    Process,
    /// The disk has it: it survives a loss of power.
    Machine,
}
