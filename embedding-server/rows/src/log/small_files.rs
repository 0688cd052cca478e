//! Small files of a log: those that are written whole or not at all, and the mark.
//!
//! The mark `written`: how far the log was written when a push was last acknowledged. The last records of a log cannot show that
//! more of them were there.
//!
//! ```text
//! written := magic [8] · log u64 · lsn u64 · 0 u32 · crc u32      32 bytes, little-endian
//! ```
//!
//! It is written in place after each flush, and never synced: a loss of power may leave an older one, which is still true of what
//! the log had. The kernel writes it together with the records that a process has written, so it is exact after the end of a process.
//!
//! The calls of the system that the writer depends on, as a trait: tests make them fail.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use serde::de::DeserializeOwned;

use crate::log::LogError;
use crate::log::format::{u32_at, u64_at};

/// Writes a small file so that it has all of the content or is unchanged: temporary file, sync, rename, sync of the folder
/// (invariant CK-1).
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Whether a file that is open is the one that has this path now.
pub(crate) fn is_file_at(file: &File, path: &Path) -> bool {
    let place = |data: &fs::Metadata| (data.dev(), data.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(held), Ok(there)) if place(&held) == place(&there))
}

/// Makes a file if need be, and locks it for as long as it is open. `None` while another process holds it.
pub(crate) fn lock_file(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        // The process before may have deleted the file since it was opened: the lock is then another one.
        Ok(()) => Ok(is_file_at(&file, path).then_some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Writes JSON. The last line is its checksum, in 8 hexadecimal digits.
pub(crate) fn write_json(path: &Path, mut json: Vec<u8>) -> Result<(), LogError> {
    let checksum = crc32c::crc32c(&json);
    json.extend(format!("\n{checksum:08x}\n").bytes());
    write_whole(path, &json).map_err(LogError::io("write", path))
}

/// The value in a file of [`write_json`]. Files of earlier releases have no checksum.
pub(crate) fn parse_json<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, LogError> {
    let (json, checksum) = split_checksum(text);
    if checksum.is_some_and(|checksum| checksum != crc32c::crc32c(json)) {
        return Err(LogError::damaged(path, 0, "it has another checksum"));
    }
    serde_json::from_slice(json).map_err(|error| LogError::damaged(path, 0, error.to_string()))
}

/// JSON without the line of its checksum, if it has one.
pub(crate) fn split_checksum(text: &[u8]) -> (&[u8], Option<u32>) {
    let line = |digits: &[u8]| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let split = text.split_last_chunk::<10>().and_then(|(json, end)| match end {
        [b'\n', digits @ .., b'\n'] => Some((json, Some(line(digits)?))),
        _ => None,
    });
    split.unwrap_or((text, None))
}

const MAGIC: [u8; 8] = *b"ZLOGMARK";
const BYTES: usize = 32;

#[derive(Debug)]
pub(crate) struct WrittenMark {
    file: File,
    log: u64,
}

impl WrittenMark {
    /// The mark of a log that is written up to `lsn`. A log of an earlier release has none yet.
    pub(crate) fn open(folder: &Path, log: u64, lsn: u64) -> Result<Self, LogError> {
        let path = mark_path(folder);
        if !path.exists() {
            create_mark(folder, log, lsn)?;
        }
        let file = File::options().write(true).open(&path).map_err(LogError::io("open", &path))?;
        Ok(Self { file, log })
    }

    pub(crate) fn set(&self, disk: &dyn LogDisk, lsn: u64) -> io::Result<()> {
        disk.write_at(&self.file, &to_bytes(self.log, lsn), 0)
    }
}

pub(crate) fn create_mark(folder: &Path, log: u64, lsn: u64) -> Result<(), LogError> {
    let path = mark_path(folder);
    write_whole(&path, &to_bytes(log, lsn)).map_err(LogError::io("write", &path))
}

/// How far the log was written at least. `None` for a log without a mark.
pub(crate) fn read_mark(folder: &Path, log: Option<u64>) -> Result<Option<u64>, LogError> {
    let path = mark_path(folder);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LogError::io("read", &path)(error)),
    };
    let is_whole = bytes.len() == BYTES && bytes[..8] == MAGIC && crc32c::crc32c(&bytes[..28]) == u32_at(&bytes, 28);
    match is_whole {
        true if log.is_none_or(|log| log == u64_at(&bytes, 8)) => Ok(Some(u64_at(&bytes, 16))),
        true => Err(LogError::damaged(&path, 8, "it is the mark of another log")),
        false => Err(LogError::damaged(&path, 0, "it is not what was written")),
    }
}

pub(crate) fn mark_path(folder: &Path) -> PathBuf {
    folder.join("written")
}

fn to_bytes(log: u64, lsn: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&log.to_le_bytes());
    bytes[16..24].copy_from_slice(&lsn.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

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
