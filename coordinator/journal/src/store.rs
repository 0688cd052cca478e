//! The journal in its folder: appends, snapshots, recovery.

use std::path::{Path, PathBuf};

use rocksdb::{DB, Direction, IteratorMode, Options, WriteBatch, WriteOptions};
use zagros_coordinator_core::{Core, CoreInput};
use zagros_plumbing::boot_id;

use crate::JournalError;
use crate::record::{JournalTime, decode, encode};

/// Version of the keys, the records and the snapshot.
const FORMAT: u32 = 7;
/// Bytes of inputs after which a snapshot is due, at least: replaying them takes well under a second.
const SNAPSHOT_BYTES: u64 = 4 << 20;

/// Release and format of the writer.
const RELEASE: &[u8] = b"release";
/// Which start of which machine the writer was on.
const BOOT: &[u8] = b"boot";
/// In place of the machine, once the writer has ended in order: every input is on the disk.
const HANDED_OVER: &[u8] = b"handed over";
/// The state before the first input that is kept.
const SNAPSHOT: &[u8] = b"snapshot";
/// Begins the keys of inputs; their number follows, big endian.
const INPUT: u8 = b'i';
/// After the keys of all inputs.
const AFTER_INPUTS: &[u8] = b"j";

/// The inputs of one run.
pub struct InputJournal {
    db: DB,
    folder: PathBuf,
    /// Number of the next input.
    next: u64,
    /// Bytes of inputs since the snapshot.
    bytes: u64,
    /// Bytes of the snapshot.
    snapshot: u64,
}

/// Whether the journal has every input that took effect. It survives the end of its process. The system writes it to the disk
/// later, so a loss of power may take the newest inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The machine has run since the first input; or the process before has handed the journal over.
    Same,
    /// The machine was started again after the first input, or it is another machine, or nothing tells which it is.
    StartedAgain,
}

/// What a process finds that another one has left.
#[derive(Debug)]
pub struct RecoveredCore {
    /// Its state.
    pub core: Core,
    /// When it was last called.
    pub time: JournalTime,
    /// How many inputs were replayed.
    pub inputs: u64,
    /// Whether inputs may be missing at the end.
    pub machine: Machine,
}

impl InputJournal {
    /// Opens the journal in a folder, which is made if need be, and replays what another process has left there. `None` where
    /// nothing is there: call [`Self::begin`] then.
    ///
    /// # Errors
    /// When another process holds the folder, it cannot be read, or another release has written it.
    pub fn open(folder: &Path) -> Result<(Self, Option<RecoveredCore>), JournalError> {
        let made = std::fs::create_dir_all(folder);
        made.map_err(|source| JournalError::Folder { folder: folder.into(), doing: "made", source })?;
        let db = DB::open(&options(), folder);
        let db = db.map_err(|source| JournalError::Store { folder: folder.into(), doing: "opened", source })?;
        let mut journal = Self { db, folder: folder.into(), next: 0, bytes: 0, snapshot: 0 };
        let recovered = journal.recover()?;
        Ok((journal, recovered))
    }

    /// Forgets whatever is there: a run begins in this state.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn begin(&mut self, core: &Core, time: JournalTime) -> Result<(), JournalError> {
        self.next = 0;
        let mut batch = WriteBatch::default();
        batch.put(RELEASE, release());
        batch.put(BOOT, this_boot());
        self.write_snapshot(core, time, batch)
    }

    /// Appends an input, before it takes effect. It survives the end of this process once this returns.
    ///
    /// # Errors
    /// When it cannot be written: it must not take effect then.
    pub fn append(&mut self, time: JournalTime, input: &CoreInput) -> Result<(), JournalError> {
        let bytes = encode(time, input);
        self.db.put(key(self.next), &bytes).map_err(|source| self.failed("written", source))?;
        self.next += 1;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Whether the inputs since the snapshot are long: more than the snapshot, and more than a few MiB.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.bytes > SNAPSHOT_BYTES.max(self.snapshot)
    }

    /// Replaces all inputs by the state that they led to.
    ///
    /// # Errors
    /// When it cannot be written: the inputs stay then.
    pub fn snapshot(&mut self, core: &Core, time: JournalTime) -> Result<(), JournalError> {
        self.write_snapshot(core, time, WriteBatch::default())
    }

    /// The last call of a process that ends in order: every input is on the disk, so a process on any machine may go on.
    ///
    /// # Errors
    /// When the disk cannot be written.
    pub fn hand_over(&mut self) -> Result<(), JournalError> {
        self.put_boot(HANDED_OVER)
    }

    /// What is written before is on the disk too.
    fn put_boot(&self, boot: &[u8]) -> Result<(), JournalError> {
        let mut now = WriteOptions::default();
        now.set_sync(true);
        self.db.put_opt(BOOT, boot, &now).map_err(|source| self.failed("written", source))
    }

    /// Deletes the journal: nobody will ask for this run any more.
    ///
    /// # Errors
    /// When the folder cannot be deleted.
    pub fn delete(self) -> Result<(), JournalError> {
        let Self { db, folder, .. } = self;
        drop(db);
        std::fs::remove_dir_all(&folder).map_err(|source| JournalError::Folder { folder, doing: "deleted", source })
    }

    fn write_snapshot(&mut self, core: &Core, time: JournalTime, mut batch: WriteBatch) -> Result<(), JournalError> {
        let state = postcard::to_allocvec(core);
        let state = state.map_err(|error| self.damaged(format!("the snapshot, which has no bytes: {error}")))?;
        let mut bytes = encode(time, &CoreInput::Tick);
        bytes.extend(self.next.to_le_bytes());
        bytes.extend(state);
        self.snapshot = bytes.len() as u64;
        batch.delete_range(&key(0)[..], AFTER_INPUTS);
        batch.put(SNAPSHOT, bytes);
        self.db.write(batch).map_err(|source| self.failed("written", source))?;
        self.bytes = 0;
        Ok(())
    }

    /// The state of the process before.
    fn recover(&mut self) -> Result<Option<RecoveredCore>, JournalError> {
        let read = |key: &[u8]| self.db.get(key).map_err(|source| self.failed("read", source));
        let Some(snapshot) = read(SNAPSHOT)? else { return Ok(None) };
        self.check_release(read(RELEASE)?)?;
        let (mut core, mut time, first) =
            of_snapshot(&snapshot).map_err(|why| self.damaged(format!("the snapshot: {why}")))?;
        let mut inputs = 0;
        let mut bytes = 0;
        for entry in self.db.iterator(IteratorMode::From(&key(first), Direction::Forward)) {
            let (at, record) = entry.map_err(|source| self.failed("read", source))?;
            if at[..] != key(first + inputs) {
                break;
            }
            let (came, input) = decode(&record).map_err(|why| self.damaged(format!("input {inputs}: {why}")))?;
            input.replay(&mut core, came.at);
            time = came;
            inputs += 1;
            bytes += record.len() as u64;
        }
        let boot = read(BOOT)?.unwrap_or_default();
        let machine = machine(&boot, boot_id().as_deref());
        if boot == HANDED_OVER {
            self.put_boot(&this_boot())?;
        }
        (self.next, self.bytes, self.snapshot) = (first + inputs, bytes, snapshot.len() as u64);
        Ok(Some(RecoveredCore { core, time, inputs, machine }))
    }

    fn check_release(&self, found: Option<Vec<u8>>) -> Result<(), JournalError> {
        let found = String::from_utf8_lossy(&found.unwrap_or_default()).into_owned();
        if found == release() {
            return Ok(());
        }
        Err(JournalError::Release { folder: self.folder.clone(), found, expected: release() })
    }

    fn failed(&self, doing: &'static str, source: rocksdb::Error) -> JournalError {
        JournalError::Store { folder: self.folder.clone(), doing, source }
    }

    fn damaged(&self, what: String) -> JournalError {
        JournalError::Damaged { folder: self.folder.clone(), what }
    }
}

/// The state, when it was taken, and the number of the first input after it.
fn of_snapshot(bytes: &[u8]) -> Result<(Core, JournalTime, u64), String> {
    /// A tick says the time; the number of the first input follows.
    const TICK: usize = 17;
    let (tick, rest) = bytes.split_at_checked(TICK).ok_or("it is too short")?;
    let (first, state) = rest.split_at_checked(8).ok_or("it is too short")?;
    let (time, _) = decode(tick)?;
    let first = first.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (core, left) = postcard::take_from_bytes(state).map_err(|error| error.to_string())?;
    if !left.is_empty() {
        return Err(format!("{} bytes follow its end", left.len()));
    }
    Ok((core, time, first))
}

fn this_boot() -> Vec<u8> {
    boot_id().map_or_else(|| b"unknown".to_vec(), String::into_bytes)
}

/// A start of the machine that cannot be read is the same as no other.
fn machine(then: &[u8], now: Option<&str>) -> Machine {
    let is_same = then == HANDED_OVER || now.is_some_and(|now| now.as_bytes() == then);
    if is_same { Machine::Same } else { Machine::StartedAgain }
}

fn key(number: u64) -> [u8; 9] {
    let mut key = [INPUT; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

fn release() -> String {
    format!("{} (journal format {FORMAT})", env!("CARGO_PKG_VERSION"))
}

/// A journal is small: it needs little memory and one file at a time.
fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_write_buffer_size(8 << 20);
    options.set_max_open_files(16);
    options.set_keep_log_file_num(2);
    options.set_compression_type(rocksdb::DBCompressionType::None);
    options
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zagros_coordinator_core::{CoreConfig, MemberSlot, RunOutcome, SplitOrder};
    use zagros_protocol::control::{HeartbeatRequest, JoinRequest, Progress};
    use zagros_protocol::{PROTOCOL_VERSION, RunId};

    use super::*;

    fn core() -> Core {
        Core::new(CoreConfig {
            run: RunId(7),
            job: "test".to_owned(),
            servers: 1,
            min_servers: 1,
            workers: 1,
            min_workers: 1,
            max_workers: 1,
            fixed_workers: None,
            buckets: 16,
            epochs: 1,
            fixed_splits: false,
            order: SplitOrder::AsInFiles,
            asynchronous: false,
            staleness: 0,
            checkpoint_every: None,
            lease: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            fingerprint: 3,
        })
    }

    fn at(millis: u64) -> JournalTime {
        JournalTime { at: Duration::from_millis(millis), wall_ms: 1_000_000 + millis }
    }

    /// A server joins, and is heard again and again.
    fn inputs(beats: u64) -> Vec<(JournalTime, CoreInput)> {
        let server = MemberSlot::server(0);
        let join = JoinRequest {
            role: server.role.to_wire(),
            address: "127.0.0.1:1".to_owned(),
            job_fingerprint: 3,
            protocol_version: PROTOCOL_VERSION,
            ..JoinRequest::default()
        };
        let beat = |step| HeartbeatRequest {
            member: server.member(),
            incarnation: 1,
            progress: Some(Progress { step, loss: f64::NAN, ..Progress::default() }),
            ..HeartbeatRequest::default()
        };
        let beats = (1..=beats).map(|step| (at(step * 100), CoreInput::Heartbeat(beat(step))));
        [(at(0), CoreInput::Join(join))].into_iter().chain(beats).collect()
    }

    fn bytes(core: &Core) -> Vec<u8> {
        postcard::to_allocvec(core).unwrap()
    }

    fn play(journal: &mut InputJournal, core: &mut Core, inputs: &[(JournalTime, CoreInput)]) {
        for (time, input) in inputs {
            journal.append(*time, input).unwrap();
            input.replay(core, time.at);
        }
    }

    #[test]
    fn a_process_finds_the_state_that_the_one_before_has_left() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("journal");
        let (mut journal, nothing) = InputJournal::open(&folder).unwrap();
        assert!(nothing.is_none());
        let mut live = core();
        journal.begin(&live, at(0)).unwrap();
        let inputs = inputs(50);
        // Killed after the inputs, after a snapshot, and after more inputs.
        for part in [&inputs[..20], &[], &inputs[20..]] {
            play(&mut journal, &mut live, part);
            if part.is_empty() {
                journal.snapshot(&live, at(2000)).unwrap();
            }
            drop(journal);
            let recovered;
            (journal, recovered) = InputJournal::open(&folder).unwrap();
            let recovered = recovered.expect("the run");
            assert_eq!(bytes(&recovered.core), bytes(&live));
            assert_eq!(recovered.inputs, part.len() as u64);
        }
        assert_eq!(journal.next, 51);
        // Another run in the same folder has none of it.
        journal.begin(&core(), at(9000)).unwrap();
        drop(journal);
        let (journal, recovered) = InputJournal::open(&folder).unwrap();
        let recovered = recovered.expect("the new run");
        assert_eq!((bytes(&recovered.core), recovered.inputs, recovered.time), (bytes(&core()), 0, at(9000)));
        journal.delete().unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn a_journal_of_an_earlier_start_of_the_machine_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
        journal.begin(&core(), at(0)).unwrap();
        drop(journal);
        let found = || InputJournal::open(folder.path()).unwrap().1.expect("the run").machine;
        assert_eq!(found(), Machine::Same);
        let db = DB::open(&options(), folder.path()).unwrap();
        db.put(BOOT, "0d5f8b5c-0000-0000-0000-000000000000").unwrap();
        drop(db);
        assert_eq!(found(), Machine::StartedAgain);
    }

    #[test]
    fn a_start_of_the_machine_that_cannot_be_read_is_no_other_one() {
        let found = [(&b"a"[..], Some("a")), (b"a", Some("b")), (b"a", None), (b"", None), (b"unknown", None)];
        let same = found.map(|(then, now)| machine(then, now) == Machine::Same);
        assert_eq!(same, [true, false, false, false, false]);
        assert_eq!(machine(HANDED_OVER, None), Machine::Same);
    }

    /// A pod moves to another machine with its disk.
    #[test]
    fn a_journal_that_was_handed_over_goes_on_on_any_machine_and_then_belongs_to_that_machine() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
        journal.begin(&core(), at(0)).unwrap();
        journal.db.put(BOOT, "another machine").unwrap();
        journal.hand_over().unwrap();
        drop(journal);
        let (journal, recovered) = InputJournal::open(folder.path()).unwrap();
        assert_eq!(recovered.expect("the run").machine, Machine::Same);
        assert_eq!(journal.db.get(BOOT).unwrap(), Some(this_boot()), "a loss of power is recognised from now on");
    }

    #[test]
    fn a_long_journal_is_cut_and_its_end_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
        let mut live = core();
        journal.begin(&live, at(0)).unwrap();
        let mut cuts = 0;
        // A heartbeat takes 38 bytes at least.
        let beats = SNAPSHOT_BYTES / 32;
        for (time, input) in inputs(beats) {
            play(&mut journal, &mut live, &[(time, input)]);
            if journal.is_long() {
                journal.snapshot(&live, time).unwrap();
                cuts += 1;
            }
        }
        play(&mut journal, &mut live, &[(at(beats * 100 + 1), CoreInput::End(RunOutcome::Finished))]);
        drop(journal);
        let (_, recovered) = InputJournal::open(folder.path()).unwrap();
        let recovered = recovered.unwrap();
        assert!(cuts >= 1 && recovered.inputs < beats, "{cuts} cuts, {} inputs", recovered.inputs);
        assert_eq!((bytes(&recovered.core), recovered.core.outcome()), (bytes(&live), Some(&RunOutcome::Finished)));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
        let held = InputJournal::open(folder.path()).err().expect("one process at a time").to_string();
        assert!(held.contains("cannot be opened") && held.contains("another coordinator"), "{held}");
        journal.begin(&core(), at(0)).unwrap();
        journal.db.put(key(0), [99; 20]).unwrap();
        drop(journal);
        let damaged = InputJournal::open(folder.path()).err().expect("damaged").to_string();
        assert!(damaged.contains("damaged at input 0: input of kind 99"), "{damaged}");
        let db = DB::open(&options(), folder.path()).unwrap();
        db.put(RELEASE, "0.0.1 (journal format 1)").unwrap();
        drop(db);
        let other = InputJournal::open(folder.path()).err().expect("another release").to_string();
        assert!(other.contains("written by release 0.0.1 (journal format 1)"), "{other}");
    }
}
