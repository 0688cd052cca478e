//! The journal in its folder: appends, snapshots, recovery.

use std::io;
use std::path::{Path, PathBuf};

use rocksdb::{DB, DBRecoveryMode, Direction, IteratorMode, Options, WriteBatch};
use zagros_coordinator_core::{Core, CoreInput};
use zagros_plumbing::boot_id;

use crate::journal::record::{END_FILE, EndFile, EndMark, InputsEnd, JournalTime, decode, encode};

/// Version of the keys, the records and the snapshot.
const FORMAT: u32 = 9;
/// Bytes of inputs after which a snapshot is due, at least: replaying them takes well under a second.
const SNAPSHOT_BYTES: u64 = 4 << 20;

const RELEASE: &[u8] = b"release";
/// In place of the machine, once the writer has ended in order: every input is on the disk.
const HANDED_OVER: &[u8] = b"handed over";
/// The state before the first input that is kept.
const SNAPSHOT: &[u8] = b"snapshot";
/// Begins the keys of inputs; their number follows, big endian.
const INPUT: u8 = b'i';
/// After the keys of all inputs.
const AFTER_INPUTS: &[u8] = b"j";

pub struct InputJournal {
    db: DB,
    folder: PathBuf,
    end_file: EndFile,
    /// Which start of which machine the journal was begun on.
    boot: Vec<u8>,
    /// The number of the next input, and what those before it add up to.
    end: InputsEnd,
    /// Bytes of inputs since the snapshot.
    bytes: u64,
    snapshot: u64,
}

/// Whether the journal has every input that took effect. It survives the end of its process. The system writes it to the disk
/// later, so a loss of power may take the newest inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineStart {
    /// The machine has run since the first input; or the process before has handed the journal over.
    Same,
    /// The machine was started again after the first input, or it is another machine, or nothing tells which it is.
    StartedAgain,
}

/// What a process finds that another one has left.
#[derive(Debug)]
pub struct RecoveredCore {
    pub core: Core,
    /// When it was last called.
    pub time: JournalTime,
    pub inputs: u64,
    /// Whether inputs may be missing at the end.
    pub machine: MachineStart,
}

impl InputJournal {
    /// Opens the journal in a folder, which is made if need be, and replays what another process has left there. `None` where
    /// nothing is there: call [`Self::begin_run`] then.
    pub fn open(folder: &Path) -> Result<(Self, Option<RecoveredCore>), JournalError> {
        std::fs::create_dir_all(folder).map_err(folder_error(folder, "made"))?;
        let end_file = EndFile::open(folder).map_err(mark_error(folder, "opened"))?;
        let db = DB::open(&options(!end_file.names_inputs()), folder).map_err(store_error(folder, "opened"))?;
        let (folder, end) = (folder.into(), InputsEnd::default());
        let mut journal = Self { db, folder, end_file, boot: this_boot(), end, bytes: 0, snapshot: 0 };
        let recovered = journal.recover()?;
        Ok((journal, recovered))
    }

    /// Forgets whatever is there: a run begins in this state.
    pub fn begin_run(&mut self, core: &Core, time: JournalTime) -> Result<(), JournalError> {
        // Until the snapshot is there, the end mark says that nothing in the folder counts.
        self.boot = this_boot();
        self.forget_end()?;
        self.end = InputsEnd::new(core.config().run);
        self.take_snapshot(core, time)?;
        self.put_boot(this_boot())
    }

    /// Appends an input, before it takes effect. It survives the end of this process once this returns.
    /// An input that cannot be written must not take effect.
    pub fn append(&mut self, time: JournalTime, input: &CoreInput) -> Result<(), JournalError> {
        let bytes = encode(&(time, input));
        let mut bytes = bytes.map_err(|error| self.damaged(format!("an input, which has no bytes: {error}")))?;
        let end = self.end.append(&bytes);
        bytes.extend(end.checksum.to_le_bytes());
        self.db.put(key(self.end.next), &bytes).map_err(store_error(&self.folder, "written"))?;
        // After the input: an input that the mark counts is surely there.
        let marked = self.end_file.write(&EndMark { inputs: Some(end), boot: self.boot.clone() });
        marked.map_err(mark_error(&self.folder, "written"))?;
        self.end = end;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Whether the inputs since the snapshot are long: more than the snapshot, and more than a few MiB.
    pub fn is_long(&self) -> bool {
        self.bytes > SNAPSHOT_BYTES.max(self.snapshot)
    }

    /// The last call of a process that ends in order: every input is on the disk, so a process on any machine may go on.
    pub fn hand_over(&mut self) -> Result<(), JournalError> {
        self.put_boot(HANDED_OVER.to_vec())
    }

    /// What is written before is on the disk too.
    fn put_boot(&mut self, boot: Vec<u8>) -> Result<(), JournalError> {
        self.db.flush_wal(true).map_err(store_error(&self.folder, "written"))?;
        let marked = self.end_file.write_durably(&EndMark { inputs: Some(self.end), boot: boot.clone() });
        marked.map_err(mark_error(&self.folder, "written"))?;
        self.boot = boot;
        Ok(())
    }

    /// Nothing in the folder counts from now on.
    fn forget_end(&self) -> Result<(), JournalError> {
        let marked = self.end_file.write_durably(&EndMark { inputs: None, boot: self.boot.clone() });
        marked.map_err(mark_error(&self.folder, "written"))
    }

    /// Deletes the journal: no process will ask for this run any more.
    pub fn delete(self) -> Result<(), JournalError> {
        // A process that is killed half-way leaves a folder of which nothing counts.
        self.forget_end()?;
        self.db.delete(SNAPSHOT).map_err(store_error(&self.folder, "written"))?;
        let Self { db, folder, .. } = self;
        // Away while it is still held: the next process may begin its own journal there as soon as it is not.
        let moved = folder.with_extension("deleted");
        let _ = std::fs::remove_dir_all(&moved);
        let folder = if std::fs::rename(&folder, &moved).is_ok() { moved } else { folder };
        drop(db);
        std::fs::remove_dir_all(&folder).map_err(folder_error(&folder, "deleted"))
    }

    /// Deletes the journal that another process has left in a folder, in whatever state. `false` while that process holds it.
    pub fn discard(folder: &Path) -> Result<bool, JournalError> {
        match DB::destroy(&options(false), folder) {
            // RocksDB has no kind of error for it.
            Err(source) if source.as_ref().contains("lock") => return Ok(false),
            destroyed => destroyed.map_err(store_error(folder, "deleted"))?,
        }
        // The end mark, and what is not RocksDB's.
        match std::fs::remove_dir_all(folder) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(folder_error(folder, "deleted")(source)),
            _ => Ok(true),
        }
    }

    /// Replaces all inputs by the state that they led to.
    /// If it cannot be written, the inputs stay.
    pub fn take_snapshot(&mut self, core: &Core, time: JournalTime) -> Result<(), JournalError> {
        let bytes = encode(&(time, self.end, core));
        let mut bytes = bytes.map_err(|error| self.damaged(format!("the snapshot, which has no bytes: {error}")))?;
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        self.snapshot = bytes.len() as u64;
        let mut batch = WriteBatch::default();
        batch.put(RELEASE, release());
        batch.delete_range(&key(0)[..], AFTER_INPUTS);
        batch.put(SNAPSHOT, bytes);
        self.db.write(batch).map_err(store_error(&self.folder, "written"))?;
        self.bytes = 0;
        Ok(())
    }

    fn recover(&mut self) -> Result<Option<RecoveredCore>, JournalError> {
        let snapshot = self.read(SNAPSHOT)?;
        if snapshot.is_some() {
            self.check_release(self.read(RELEASE)?)?;
        }
        let mark = self.end_file.read().map_err(|why| self.damaged(format!("its file {END_FILE}: {why}")))?;
        let (snapshot, expected, boot) = match (snapshot, mark) {
            (None, None) | (_, Some(EndMark { inputs: None, .. })) => return Ok(None),
            (Some(_), None) => return Err(self.damaged(format!("its file {END_FILE}, which is missing or empty"))),
            (None, Some(_)) => return Err(self.damaged("the snapshot, which is missing".to_owned())),
            (Some(snapshot), Some(EndMark { inputs: Some(expected), boot })) => (snapshot, expected, boot),
        };
        let machine = machine(&boot, boot_id().as_deref());
        // A loss of power takes what it takes.
        let expected = Some(expected).filter(|_| machine == MachineStart::Same);
        let taken = verify_checksum(&snapshot, crc32c::crc32c).and_then(decode);
        let taken = taken.map_err(|why| self.damaged(format!("the snapshot: {why}")))?;
        let recovered = self.replay(taken, expected, machine)?;
        self.snapshot = snapshot.len() as u64;
        self.boot = boot;
        if self.boot == HANDED_OVER {
            self.put_boot(this_boot())?;
        }
        Ok(Some(recovered))
    }

    /// Replays the inputs after a snapshot, up to `expected` at least.
    fn replay(
        &mut self,
        (mut time, first, mut core): (JournalTime, InputsEnd, Core),
        expected: Option<InputsEnd>,
        machine: MachineStart,
    ) -> Result<RecoveredCore, JournalError> {
        let (mut end, mut bytes) = (first, 0);
        self.check_end(end, expected)?;
        for entry in self.db.iterator(IteratorMode::From(&key(first.next), Direction::Forward)) {
            let (at, record) = entry.map_err(store_error(&self.folder, "read"))?;
            if at[..] != key(end.next) {
                break;
            }
            let (after, came, input) =
                read_input(end, &record).map_err(|why| self.damaged(format!("input {}: {why}", end.next)))?;
            self.check_end(after, expected)?;
            input.replay(&mut core, came.at);
            (end, time) = (after, came);
            bytes += record.len() as u64;
        }
        if let Some(expected) = expected.filter(|expected| end.next < expected.next) {
            let what = format!("input {}: {} inputs took effect, and this one cannot be read", end.next, expected.next);
            return Err(self.damaged(what));
        }
        (self.end, self.bytes) = (end, bytes);
        Ok(RecoveredCore { core, time, inputs: end.next - first.next, machine })
    }

    /// Checks that the inputs up to an end are those that the mark counts.
    fn check_end(&self, end: InputsEnd, expected: Option<InputsEnd>) -> Result<(), JournalError> {
        match expected.filter(|expected| expected.next == end.next && expected.checksum != end.checksum) {
            Some(_) => Err(self.damaged(format!("its file {END_FILE}: it is of other inputs"))),
            None => Ok(()),
        }
    }

    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, JournalError> {
        self.db.get(key).map_err(store_error(&self.folder, "read"))
    }

    fn check_release(&self, found: Option<Vec<u8>>) -> Result<(), JournalError> {
        let found = String::from_utf8_lossy(&found.unwrap_or_default()).into_owned();
        if found == release() {
            return Ok(());
        }
        Err(JournalError::Release { folder: self.folder.clone(), found, expected: release() })
    }

    fn damaged(&self, what: String) -> JournalError {
        JournalError::Damaged { folder: self.folder.clone(), what }
    }
}

/// An input that follows others, with the end after it.
fn read_input(before: InputsEnd, record: &[u8]) -> Result<(InputsEnd, JournalTime, CoreInput), String> {
    let content = verify_checksum(record, |content| before.append(content).checksum)?;
    let (came, input) = decode(content)?;
    Ok((before.append(content), came, input))
}

/// What is before a checksum, if that is right.
fn verify_checksum(bytes: &[u8], checksum: impl FnOnce(&[u8]) -> u32) -> Result<&[u8], String> {
    let (content, found) = bytes.split_last_chunk().ok_or("it is too short")?;
    if u32::from_le_bytes(*found) == checksum(content) { Ok(content) } else { Err("its checksum is wrong".to_owned()) }
}

fn store_error(folder: &Path, doing: &'static str) -> impl FnOnce(rocksdb::Error) -> JournalError {
    move |source| JournalError::Store { folder: folder.into(), doing, source }
}

fn folder_error(folder: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> JournalError {
    move |source| JournalError::Folder { folder: folder.into(), doing, source }
}

/// Of the file that says how far the inputs go.
fn mark_error(folder: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> JournalError {
    move |source| JournalError::Folder { folder: folder.join(END_FILE), doing, source }
}

fn this_boot() -> Vec<u8> {
    boot_id().map_or_else(|| b"unknown".to_vec(), String::into_bytes)
}

/// A start of the machine that cannot be read is the same as no other.
fn machine(then: &[u8], now: Option<&str>) -> MachineStart {
    let is_same = then == HANDED_OVER || now.is_some_and(|now| now.as_bytes() == then);
    if is_same { MachineStart::Same } else { MachineStart::StartedAgain }
}

fn key(number: u64) -> [u8; 9] {
    let mut key = [INPUT; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

fn release() -> String {
    format!("{} (journal format {FORMAT})", env!("CARGO_PKG_VERSION"))
}

/// A journal is small: it needs little memory and one file at a time. What it lost is no reason to begin anew (`is_new`).
fn options(is_new: bool) -> Options {
    let mut options = Options::default();
    options.create_if_missing(is_new);
    // A record that was torn when its process ended is dropped, and all behind a damaged one: the end mark tells them apart.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_write_buffer_size(8 << 20);
    options.set_max_open_files(16);
    options.set_keep_log_file_num(2);
    options.set_compression_type(rocksdb::DBCompressionType::None);
    options
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(
        "the coordinator's journal in {} cannot be {doing}: {source}; is the disk full, or does another coordinator hold the \
         folder?", folder.display()
    )]
    Store {
        folder: PathBuf,
        /// `opened`, `read`, `written`, `deleted`.
        doing: &'static str,
        source: rocksdb::Error,
    },
    /// The folder cannot be made or deleted, or the file of its end not be opened or written.
    #[error("the coordinator's journal in {} cannot be {doing}: {source}", folder.display())]
    Folder {
        folder: PathBuf,
        /// `made`, `deleted`, `opened`, `written`.
        doing: &'static str,
        source: std::io::Error,
    },
    /// It was written by another release, or in another format.
    #[error(
        "the coordinator's journal in {} was written by release {found}, and this is {expected}: a coordinator comes back as \
         the same release; delete the folder and start the run again", folder.display()
    )]
    Release { folder: PathBuf, found: String, expected: String },
    #[error("the coordinator's journal in {} is damaged at {what}; delete the folder and start the run again", folder.display())]
    Damaged {
        folder: PathBuf,
        /// Which entry, and why.
        what: String,
    },
}

#[cfg(test)]
mod tests;
