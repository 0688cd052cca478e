//! The writer: a push appends its records in memory under a short lock. A thread that needs them durable writes them all, in order.
//!
//! ```text
//! push A ─► append … append, commit ─┐                          ┌─► one write (and one sync) for A and B ─► both answered
//! push B ─► append … append, commit ─┴─► flush: waits its turn ─┘
//! ```
//!
//! What was appended stays in memory until it is durable. If the disk fails, the same bytes are written again at the same
//! place when it works again: no push that was applied is lost by a failure, and none is acknowledged before it is durable.
//!
//! ```text
//!              a write, a sync or an allocation fails
//! Running ──────────────────────────────────────────────► Stopped { reason }: pushes are refused before they are applied
//!    ▲                                                       │
//!    └───────── all that was appended is durable ◄── retry ──┘
//!
//! Running or Stopped ── end ──► Ended: no file is touched any more
//! ```

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zagros_table::{ChangeKind, ColdError, PushOrigin, StripeChange, TableTime, UpdateLog};

use crate::log::format::RecordKind;
use crate::log::record::RecordDraft;
use crate::log::segments::{SegmentFiles, WriterConfig};
use crate::log::small_files::LogDisk;
use crate::log::{LogError, LogStopped, WindowGroup};

/// A buffer that is empty keeps this much room at most.
const KEPT_BYTES: usize = 64 << 20;
/// With more than this many bytes that are not durable a push waits until they are, before it is applied.
const WAITING_BYTES: u64 = 256 << 20;
/// While the log is stopped, lookups of ids without a row are logged up to this many bytes; beyond it they are not.
const STOPPED_BYTES: usize = 64 << 20;
/// Room that is there beyond what pushes have asked for, as a part of a segment: for what is appended without being asked for,
/// and for the end of a segment that a record did not fit into.
const SLACK_SHARE: u64 = 64;

/// What was appended and is not taken by a flush yet.
#[derive(Debug)]
struct AppendBuffer {
    /// The lsn of its first byte.
    start: u64,
    bytes: Vec<u8>,
}

/// What a flush has taken, until it is durable.
#[derive(Debug)]
struct FlushState {
    /// `None` once the log has ended.
    files: Option<SegmentFiles>,
    /// The lsn of the first byte.
    start: u64,
    bytes: Vec<u8>,
}

/// A log that is written. Any number of threads may append and flush.
#[derive(Debug)]
pub struct LogWriter {
    buffer: Mutex<AppendBuffer>,
    flushing: Mutex<FlushState>,
    /// Why it takes nothing in. `None` while it runs.
    stopped: Mutex<Option<LogStopped>>,
    /// All records before this lsn are durable.
    durable: AtomicU64,
    /// Bytes that pushes in progress may append.
    reserved: AtomicU64,
    /// Bytes that can be written before room is needed, as of the last flush.
    room: AtomicU64,
    /// Bytes of room beyond what pushes have asked for.
    slack: u64,
    keeps_steps: bool,
}

#[derive(Debug)]
pub struct LogReservation<'a> {
    log: &'a LogWriter,
    bytes: u64,
}

impl LogWriter {
    /// Goes on with the log in `folder`.
    /// A full disk is no error: the log is stopped then.
    pub fn open(folder: &Path, disk: Arc<dyn LogDisk>, config: &WriterConfig) -> Result<Self, LogError> {
        let WriterConfig { segment_bytes, next, .. } = *config;
        let files = SegmentFiles::new(folder, disk, config)?;
        let log = Self {
            buffer: Mutex::new(AppendBuffer { start: next, bytes: Vec::new() }),
            flushing: Mutex::new(FlushState { files: Some(files), start: next, bytes: Vec::new() }),
            stopped: Mutex::default(),
            durable: AtomicU64::new(next),
            reserved: AtomicU64::new(0),
            room: AtomicU64::new(0),
            slack: segment_bytes / SLACK_SHARE,
            keeps_steps: false,
        };
        // A failure stops the log, and the next push reports it.
        let _ = log.make_room();
        Ok(log)
    }

    /// The same log, which goes on in the middle of a step of several pushes ([`UpdateLog::keeps_steps`]).
    #[must_use]
    pub fn keeping_steps(self, keeps_steps: bool) -> Self {
        Self { keeps_steps, ..self }
    }

    /// Room for a push that appends at most `bytes`.
    /// On an error nothing needs to be applied.
    pub fn reserve_room(&self, bytes: u64) -> Result<LogReservation<'_>, LogStopped> {
        self.check_running()?;
        if self.next_lsn().saturating_sub(self.durable_lsn()) > WAITING_BYTES {
            self.flush_appended()?;
        }
        self.reserved.fetch_add(bytes, Ordering::AcqRel);
        let reservation = LogReservation { log: self, bytes };
        self.make_room()?;
        Ok(reservation)
    }

    pub fn check_running(&self) -> Result<(), LogStopped> {
        self.stopped.lock().clone().map_or(Ok(()), Err)
    }

    /// Touches the files no more, from the moment this returns: another process may make a log in the same folder. What is not
    /// durable is lost, and pushes are refused.
    pub fn end_writing(&self) {
        self.flushing.lock().files = None;
        *self.stopped.lock() = Some(LogStopped::Ended);
    }

    /// Appends the end of a push to these window groups. None are named for group 0 alone.
    pub fn append_commit(&self, origin: &PushOrigin, step: u64, time: TableTime, groups: &[u32]) {
        self.append_draft(&RecordDraft::commit(origin, step, time, groups));
    }

    /// Appends that buckets have other windows from now on.
    pub fn append_window_group(&self, group: &WindowGroup) {
        self.append_draft(&RecordDraft::window_group(group, &group.window_words()));
    }

    /// Appends that rows of a saved model follow. Until [`Self::complete_load`], recovery finds a part of a model.
    pub fn start_load(&self) {
        self.append_draft(&RecordDraft::mark(RecordKind::LoadStarted));
    }

    /// Appends that all rows of the load before are in the log, or none.
    pub fn complete_load(&self) {
        self.append_draft(&RecordDraft::mark(RecordKind::LoadComplete));
    }

    /// Makes all records before `lsn` durable.
    /// After a failure the records stay in memory, and the next call tries again.
    pub fn flush_to(&self, lsn: u64) -> Result<(), LogStopped> {
        if self.durable_lsn() >= lsn {
            return Ok(());
        }
        let mut flushing = self.flushing.lock();
        // Another thread may have flushed these records while this one waited.
        if self.durable_lsn() >= lsn {
            return Ok(());
        }
        self.flush_all(&mut flushing)
    }

    /// Makes all records durable that were appended before.
    pub fn flush_appended(&self) -> Result<(), LogStopped> {
        self.flush_to(self.next_lsn())
    }

    /// Tries again if the log is stopped, and has room ready for the next segment.
    pub fn retry(&self) -> Result<(), LogStopped> {
        if self.check_running().is_ok() {
            return self.make_room();
        }
        let mut flushing = self.flushing.lock();
        self.flush_all(&mut flushing)?;
        drop(flushing);
        self.room.store(0, Ordering::Release);
        self.make_room()?;
        let mut stopped = self.stopped.lock();
        if *stopped == Some(LogStopped::Ended) {
            return Err(LogStopped::Ended);
        }
        *stopped = None;
        Ok(())
    }

    pub fn durable_lsn(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub fn next_lsn(&self) -> u64 {
        let buffer = self.buffer.lock();
        buffer.start + buffer.bytes.len() as u64
    }

    /// Deletes segments whose records all lie before `lsn`. Answers how many are left.
    pub fn delete_before(&self, lsn: u64) -> Result<usize, LogError> {
        self.flushing.lock().files.as_mut().map_or(Ok(0), |files| files.delete_before(lsn))
    }

    fn append_draft(&self, draft: &RecordDraft<'_>) {
        let mut buffer = self.buffer.lock();
        let lsn = buffer.start + buffer.bytes.len() as u64;
        draft.append_to(&mut buffer.bytes, lsn, self.durable_lsn());
    }

    /// Whether what lookups append may be skipped: the log is stopped for so long that memory would grow without end.
    fn is_overfull(&self) -> bool {
        self.check_running().is_err() && self.buffer.lock().bytes.len() > STOPPED_BYTES
    }

    fn flush_all(&self, flushing: &mut FlushState) -> Result<(), LogStopped> {
        {
            let mut buffer = self.buffer.lock();
            buffer.start += buffer.bytes.len() as u64;
            if flushing.bytes.is_empty() {
                std::mem::swap(&mut flushing.bytes, &mut buffer.bytes);
            } else {
                flushing.bytes.append(&mut buffer.bytes);
            }
        }
        let FlushState { files, start, bytes } = flushing;
        let Some(files) = files else { return Err(LogStopped::Ended) };
        let written = files.write(bytes, *start);
        self.room.store(files.room_left(), Ordering::Release);
        match written {
            Ok(()) => {
                *start += bytes.len() as u64;
                bytes.clear();
                bytes.shrink_to(KEPT_BYTES);
                self.durable.store(*start, Ordering::Release);
                Ok(())
            }
            Err(error) => Err(self.stop(&error)),
        }
    }

    /// Has room for all that may be appended.
    fn make_room(&self) -> Result<(), LogStopped> {
        let wanted = || {
            // Another thread may flush between the two.
            let waiting = self.next_lsn().saturating_sub(self.durable_lsn());
            self.reserved.load(Ordering::Acquire) + waiting + self.slack
        };
        if self.room.load(Ordering::Acquire) >= wanted() {
            return Ok(());
        }
        let mut flushing = self.flushing.lock();
        let Some(files) = &mut flushing.files else { return Err(LogStopped::Ended) };
        let (room, wanted) = (files.room_left(), wanted());
        let made = if room >= wanted { Ok(()) } else { files.add_room(wanted - room) };
        self.room.store(files.room_left(), Ordering::Release);
        made.map_err(|error| self.stop(&error))
    }

    fn stop(&self, error: &std::io::Error) -> LogStopped {
        let failure = LogStopped::Disk { reason: error.to_string() };
        let mut stopped = self.stopped.lock();
        if *stopped != Some(LogStopped::Ended) {
            *stopped = Some(failure.clone());
        }
        failure
    }
}

impl Drop for LogReservation<'_> {
    fn drop(&mut self) {
        self.log.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl UpdateLog for LogWriter {
    fn append(&self, change: &StripeChange<'_>) {
        let place = [change.table, change.stripe];
        let draft = match change.kind {
            ChangeKind::Rows { ids, slots, access } => RecordDraft::rows(place, change.origin, ids, slots, access),
            ChangeKind::StepRows(rows) => RecordDraft::step_rows(place, &rows),
            ChangeKind::Removed(ids) => RecordDraft::ids(RecordKind::Removed, place, ids),
            ChangeKind::Seen(_) if self.is_overfull() => return,
            ChangeKind::Seen(ids) => RecordDraft::ids(RecordKind::Seen, place, ids),
            ChangeKind::CountsAdded(ids, counts) => RecordDraft::counts_added(place, ids, counts),
            ChangeKind::SketchAdded { from, cells } => RecordDraft::sketch_added(place, from, cells),
            ChangeKind::Pending { id, step, gradient } => {
                let Some(origin) = change.origin else { return };
                RecordDraft::pending(place, origin, step, id, gradient)
            }
        };
        self.append_draft(&draft);
    }

    fn cleared(&self) {
        self.append_draft(&RecordDraft::mark(RecordKind::Cleared));
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.flush_appended()
            .map_err(|stopped| ColdError { doing: "write before the log", reason: stopped.to_string() })
    }

    fn keeps_steps(&self) -> bool {
        self.keeps_steps
    }

    fn position(&self) -> u64 {
        self.next_lsn()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{SEGMENT_BYTES, SyncMode, SystemDisk};

    /// A move or a stalled disk makes the buffers long once. They are not that long for ever.
    #[test]
    fn a_buffer_that_was_long_gives_its_memory_back() {
        let folder = tempfile::tempdir().unwrap();
        let config = WriterConfig { mode: SyncMode::Process, lineage: 1, segment_bytes: SEGMENT_BYTES, next: 0 };
        let log = LogWriter::open(folder.path(), Arc::new(SystemDisk), &config).unwrap();
        let ids = vec![7; 1 << 20];
        for _ in 0..12 {
            log.append(&StripeChange { table: 0, stripe: 0, origin: None, kind: ChangeKind::Removed(&ids) });
        }
        log.flush_appended().unwrap();
        let kept = log.buffer.lock().bytes.capacity() + log.flushing.lock().bytes.capacity();
        assert!(kept <= 2 * KEPT_BYTES, "{kept} bytes are kept");
    }
}
