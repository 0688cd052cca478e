//! The files of the writer: the segment that is written now, room for the next ones, and when they change.
//!
//! ```text
//! segment-…0000 (closed) │ segment-…3f80 (current): records … │ room left │   spare │   spare │
//!                                                   written ▲
//! ```
//!
//! Each segment says in its preamble where the next one starts, once there is one. So the reader notices a missing segment.
//! A new log begins with an empty segment.
//!
//! A segment is preallocated, so that a full disk shows before a push is applied and not after. A record lies in one segment:
//! where the room left is too small, the next segment begins.
//!
//! A segment that is not needed any more becomes room for a later one: to write over blocks and pages that a file has already is
//! several times cheaper than to get new ones, and a sync then has no metadata to write. What such a file had before stays behind
//! the last record:
//!
//! ```text
//! … record │ record │ zeros to the end of the page │ bytes of records with smaller lsns: never taken for records of this place
//! ```

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::log::LogError;
use crate::log::folder::{list_segments, list_spares, segment_path, spare_path};
use crate::log::format::{HEAD_BYTES, PREAMBLE_BYTES, RecordHead, SegmentPreamble};
use crate::log::small_files::{LogDisk, SyncMode};
use crate::log::small_files::{WrittenMark, mark_path, sync_folder};

pub const SEGMENT_BYTES: u64 = 64 << 20;

/// The system caches and writes files in pieces of so many bytes. A write ends with a whole one: the system need not read what
/// the rest of it was.
const PAGE: u64 = 4096;
/// As many files are kept as room at most.
const MOST_SPARES: usize = 16;

#[derive(Debug)]
struct OpenSegment {
    path: PathBuf,
    file: File,
    /// The lsn of its first record.
    first: u64,
    /// Bytes for records.
    room: u64,
}

#[derive(Debug)]
struct SpareSegment {
    path: PathBuf,
    file: File,
    room: u64,
}

#[derive(Clone, Debug)]
pub struct WriterConfig {
    pub mode: SyncMode,
    /// Named in each segment.
    pub lineage: u64,
    /// Bytes of a segment, unless a record needs more; [`SEGMENT_BYTES`] but for tests.
    pub segment_bytes: u64,
    /// The lsn of the next record: 0, or what recovery found.
    pub next: u64,
}

#[derive(Debug)]
pub(crate) struct SegmentFiles {
    folder: PathBuf,
    disk: Arc<dyn LogDisk>,
    config: WriterConfig,
    current: Option<OpenSegment>,
    spares: VecDeque<SpareSegment>,
    next_spare: u64,
    /// All records before this lsn are written.
    written: u64,
    mark: WrittenMark,
}

impl SegmentFiles {
    /// The files of a log. The first segment is made when it is needed.
    pub(crate) fn new(folder: &Path, disk: Arc<dyn LogDisk>, config: &WriterConfig) -> Result<Self, LogError> {
        let next = config.next;
        for (_, path) in list_spares(folder)? {
            crate::log::folder::remove_file(&path)?;
        }
        let current = match list_segments(folder)?.pop() {
            Some((first, path)) => {
                let opened = File::options().read(true).write(true).open(&path);
                let file = opened.map_err(LogError::io("open", &path))?;
                // No room is left: recovery has cut it behind its last record.
                Some(OpenSegment { path, file, first, room: next.saturating_sub(first) })
            }
            None => None,
        };
        Ok(Self {
            folder: folder.to_owned(),
            disk,
            config: config.clone(),
            current,
            spares: VecDeque::new(),
            next_spare: 0,
            written: next,
            mark: WrittenMark::open(folder, config.lineage, next)?,
        })
    }

    /// Bytes that can be written before room is needed.
    pub(crate) fn room_left(&self) -> u64 {
        let current = self.current.as_ref().map_or(0, |segment| segment.first + segment.room - self.written);
        current + self.spares.iter().map(|spare| spare.room).sum::<u64>()
    }

    /// Makes room for this many bytes more than there is.
    pub(crate) fn add_room(&mut self, bytes: u64) -> io::Result<()> {
        let (path, room) = (spare_path(&self.folder, self.next_spare), bytes.max(self.config.segment_bytes));
        let file = self.disk.allocate(&path, PREAMBLE_BYTES as u64 + room).map_err(|error| naming(&path, error))?;
        self.next_spare += 1;
        self.spares.push_back(SpareSegment { path, file, room });
        Ok(())
    }

    /// Writes whole records, the first of which has the lsn `start`. What is in the files already is written again at the same
    /// place: an earlier try may have failed half-way.
    pub(crate) fn write(&mut self, records: &mut Vec<u8>, start: u64) -> io::Result<()> {
        // A try that failed may have come further than the last success.
        self.written = self.written.max(start);
        let first = self.current.as_ref().map_or(start, |segment| segment.first);
        let mut place = (first.max(start) - start) as usize;
        while place < records.len() {
            let end = self.fitting(records, place, start);
            if end > place {
                self.write_piece(records, place..end, start)?;
                place = end;
                self.written = start + place as u64;
            } else {
                self.sync()?;
                self.roll(start + place as u64, head_at(records, place).map_or(0, |head| head.record_bytes()))?;
            }
        }
        self.sync()?;
        // Last: whatever lies before the mark is there.
        let marked = self.mark.set(self.disk.as_ref(), start + records.len() as u64);
        marked.map_err(|error| naming(&mark_path(&self.folder), error))
    }

    /// Writes a part of the records into the current segment. Zeros follow the last one.
    fn write_piece(&self, records: &mut Vec<u8>, part: Range<usize>, start: u64) -> io::Result<()> {
        let segment = self.current.as_ref().ok_or_else(|| io::Error::other("no segment is open"))?;
        let offset = |place: usize| PREAMBLE_BYTES as u64 + start + place as u64 - segment.first;
        let (length, limit) = (records.len(), PREAMBLE_BYTES as u64 + segment.room);
        if part.end == length {
            let end = offset(length);
            // There is no head behind the last record.
            let padded = (end + HEAD_BYTES as u64).next_multiple_of(PAGE).min(limit);
            records.resize(length + (padded - end) as usize, 0);
        }
        let last = if part.end == length { records.len() } else { part.end };
        let written = self.disk.write_at(&segment.file, &records[part.start..last], offset(part.start));
        records.truncate(length);
        written.map_err(|error| naming(&segment.path, error))
    }

    /// Where the records end that fit into the current segment, from `place` on.
    fn fitting(&self, records: &[u8], place: usize, start: u64) -> usize {
        let Some(segment) = &self.current else { return place };
        let limit = segment.first + segment.room;
        if start + records.len() as u64 <= limit {
            return records.len();
        }
        let mut end = place;
        while let Some(head) = head_at(records, end).filter(|head| start + end as u64 + head.record_bytes() <= limit) {
            end += head.record_bytes() as usize;
        }
        end
    }

    /// Goes on in the next segment, whose first record has the lsn `first` and takes `span` bytes.
    fn roll(&mut self, first: u64, span: u64) -> io::Result<()> {
        while self.spares.front().is_none_or(|spare| spare.room < span) {
            // A spare that is too small for the record gives way to a new one.
            if let Some(small) = self.spares.pop_front() {
                let _ = fs::remove_file(&small.path);
            }
            self.add_room(span)?;
        }
        let Some(spare) = self.spares.front_mut() else { return Err(io::Error::other("no spare segment")) };
        let preamble = SegmentPreamble { lineage: self.config.lineage, first, next: None }.to_bytes();
        self.disk.write_at(&spare.file, &preamble, 0).map_err(|error| naming(&spare.path, error))?;
        if self.config.mode == SyncMode::Machine {
            self.disk.sync(&spare.file).map_err(|error| naming(&spare.path, error))?;
        }
        let path = segment_path(&self.folder, first);
        fs::rename(&spare.path, &path).map_err(|error| naming(&path, error))?;
        // What follows may fail. The next try then finds the file under its new name.
        spare.path.clone_from(&path);
        if self.config.mode == SyncMode::Machine {
            sync_folder(&self.folder).map_err(|error| naming(&self.folder, error))?;
        }
        self.name_next(first)?;
        if let Some(SpareSegment { file, room, .. }) = self.spares.pop_front() {
            let closed = self.current.replace(OpenSegment { path, file, first, room });
            // The room behind its last record goes back to the system. If that fails it is only lost for a while.
            let _ = closed.map(|closed| closed.file.set_len(PREAMBLE_BYTES as u64 + first - closed.first));
        }
        Ok(())
    }

    /// The current segment says that the next one starts at `next`. An empty segment is replaced and not followed.
    fn name_next(&self, next: u64) -> io::Result<()> {
        let Some(closed) = self.current.as_ref().filter(|closed| closed.first < next) else { return Ok(()) };
        let preamble =
            SegmentPreamble { lineage: self.config.lineage, first: closed.first, next: Some(next) }.to_bytes();
        self.disk.write_at(&closed.file, &preamble, 0).map_err(|error| naming(&closed.path, error))?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        match &self.current {
            Some(segment) if self.config.mode == SyncMode::Machine => {
                self.disk.sync(&segment.file).map_err(|error| naming(&segment.path, error))
            }
            _ => Ok(()),
        }
    }

    /// Gives up segments whose records all lie before `lsn`: they become room, or are deleted. Answers how many are left.
    pub(crate) fn delete_before(&mut self, lsn: u64) -> Result<usize, LogError> {
        let all = list_segments(&self.folder)?;
        let mut left = all.len();
        for pair in all.windows(2) {
            if pair[1].0 <= lsn {
                self.reuse(&pair[0].1)?;
                left -= 1;
            }
        }
        Ok(left)
    }

    /// Makes room of a segment. One that has become much shorter than others is deleted.
    fn reuse(&mut self, segment: &Path) -> Result<(), LogError> {
        let path = spare_path(&self.folder, self.next_spare);
        let opened = File::options().read(true).write(true).open(segment);
        let opened = opened.and_then(|file| file.metadata().map(|data| (file, data.len())));
        let least = PREAMBLE_BYTES as u64 + self.config.segment_bytes / 2;
        match opened {
            Ok((file, length)) if length >= least && self.spares.len() < MOST_SPARES => {
                fs::rename(segment, &path).map_err(LogError::io("rename", segment))?;
                self.next_spare += 1;
                self.spares.push_back(SpareSegment { path, file, room: length - PREAMBLE_BYTES as u64 });
                Ok(())
            }
            _ => crate::log::folder::remove_file(segment),
        }
    }
}

fn head_at(records: &[u8], place: usize) -> Option<RecordHead> {
    RecordHead::from_bytes(records.get(place..)?).ok()
}

fn naming(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
