//! The reader of the segments: all records from an lsn on, in their order, each one checked.
//!
//! ```text
//! record │ record │ record │ half a rec          zeros          the log ends where the torn record starts
//! record │ record │ ?????? │ record (durable: ……▲ behind the bad one)      damage: the bad record had been durable
//! ```
//!
//! A record that cannot be read is *torn* if nothing shows that it had been durable: its push was never acknowledged. The end
//! of the log is then where it starts. A later record that can be read, and names a durable lsn behind it, shows that it had
//! been durable. So does a later segment, a base that was written later, and the mark `written`. Then the log is *damaged*: what is missing may have
//! been acknowledged. A segment that is missing is named: the one before it says where it starts.
//!
//! What a log holds, for a person. The folder is not locked: a server may write to it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::log::base::{BaseManifest, LogBase};
use crate::log::folder::{LineageFile, list_segments, read_lineage, segment_path};
use crate::log::format::{HEAD_BYTES, PREAMBLE_BYTES, RecordHead, SegmentPreamble, origin_of};
use crate::log::segment_reader::SegmentReader;
use crate::log::small_files::read_mark;
use crate::log::{LogError, LogRecord, RecordKind};

/// Bytes that are compared with zeros at a time.
const PAGE: usize = 4096;

/// The segments that hold the tail, before they are read. Each can be checked on a thread of its own.
#[derive(Clone, Debug)]
pub struct TailPlan {
    segments: Vec<PlannedSegment>,
    needed: Range<u64>,
    lineage: Option<u64>,
}

#[derive(Clone, Debug)]
struct PlannedSegment {
    path: PathBuf,
    /// The lsn of its first record.
    first: u64,
    /// The lsn at which the next segment starts. `None` for the last one.
    stop: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEnd {
    /// The lsn behind its last record.
    end: u64,
    /// Bytes behind it that were written and are no record.
    torn: u64,
}

/// A segment with records of the tail, all of which were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailSegment {
    pub path: PathBuf,
    /// The lsn of its first record.
    pub first: u64,
    /// The lsn behind its last record.
    pub end: u64,
}

/// The segments from some lsn on, all of whose records can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTail {
    /// In the order of the log.
    pub segments: Vec<TailSegment>,
    /// The lsn behind the last record.
    pub end: u64,
    /// Bytes of a record that was being written when the process ended. They are no part of the log.
    pub torn: u64,
}

impl TailPlan {
    /// The segments with the records from `needed.start` on, which is the lsn of a record. The log is known to have been durable
    /// up to `needed.end`, and as far as its mark says.
    pub fn new(folder: &Path, needed: Range<u64>, lineage: Option<u64>) -> Result<Self, LogError> {
        // First: a server that is asked what its log holds writes on meanwhile.
        let written = read_mark(folder, lineage)?.unwrap_or_default();
        let needed = needed.start..needed.end.max(written);
        let (all, from) = (list_segments(folder)?, needed.start);
        if all.first().is_none_or(|(first, _)| *first > from) {
            let next = |(first, _): &(u64, _)| format!("; the first that is there starts at lsn {first}");
            let why = format!("the log is needed from lsn {from} on{}", all.first().map(next).unwrap_or_default());
            return Err(LogError::missing(segment_path(folder, from), why));
        }
        // The last segment that starts at `from` or before holds its record, unless the one before ends exactly there.
        let begin = all.iter().rposition(|(first, _)| *first <= from).unwrap_or(0);
        let planned = |(number, (first, path)): (usize, &(u64, PathBuf))| {
            let stop = all.get(number + 1).map(|next| next.0);
            PlannedSegment { path: path.clone(), first: *first, stop }
        };
        let segments = all.iter().enumerate().skip(begin).map(planned).collect();
        Ok(Self { segments, needed, lineage })
    }

    /// How many segments there are: one at least.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Checks all records of a segment, and hands those that are needed to `visit` with their payload, in their order.
    pub fn check_segment(
        &self,
        number: usize,
        mut visit: impl FnMut(&RecordHead, &[u8]) -> Result<(), LogError>,
    ) -> Result<SegmentEnd, LogError> {
        let segment = &self.segments[number];
        let PlannedSegment { path, first, stop } = segment;
        let mut reader = SegmentReader::open(path)?;
        self.check_preamble(segment, reader.peek(PREAMBLE_BYTES)?)?;
        reader.skip(PREAMBLE_BYTES as u64);
        let mut lsn = *first;
        while stop.is_none_or(|stop| lsn < stop) {
            let head = match reader.read_head(lsn)? {
                Ok(head) => head,
                Err(problem) => return self.end_at(segment, lsn, problem),
            };
            match reader.read_payload(&head)? {
                Ok(payload) if lsn >= self.needed.start => visit(&head, payload)?,
                Ok(_) => {}
                Err(problem) => return self.end_at(segment, lsn, problem),
            }
            reader.skip(head.record_bytes());
            lsn = head.end_lsn();
        }
        Ok(SegmentEnd { end: lsn, torn: 0 })
    }

    /// The whole tail, from the ends of all segments in their order.
    pub fn finish(self, ends: &[SegmentEnd]) -> Result<LogTail, LogError> {
        let mut tail = LogTail { end: self.needed.start, ..LogTail::default() };
        for (number, SegmentEnd { end, torn }) in ends.iter().enumerate() {
            let PlannedSegment { path, first, .. } = &self.segments[number];
            if number > 0 && *first != tail.end {
                let problem = format!("it starts at lsn {first}, and the log before it ends at {}", tail.end);
                return Err(LogError::damaged(path, 0, problem));
            }
            (tail.end, tail.torn) = ((*end).max(self.needed.start), *torn);
            tail.segments.push(TailSegment { path: path.clone(), first: *first, end: *end });
        }
        Ok(tail)
    }

    fn check_preamble(&self, segment: &PlannedSegment, bytes: &[u8]) -> Result<(), LogError> {
        let PlannedSegment { path, first, stop } = segment;
        let preamble = SegmentPreamble::from_bytes(bytes).map_err(|problem| LogError::damaged(path, 0, problem))?;
        if preamble.first != *first || self.lineage.is_some_and(|lineage| lineage != preamble.lineage) {
            return Err(LogError::damaged(path, 0, "it is a segment of another log or another place"));
        }
        match preamble.next.filter(|next| *stop != Some(*next)) {
            Some(next) => {
                let why = format!("{} says that the log goes on there", path.display());
                let folder = path.parent().unwrap_or(Path::new("."));
                Err(LogError::missing(segment_path(folder, next), why))
            }
            None => Ok(()),
        }
    }

    /// The record at `lsn` cannot be read. The log ends there if nothing shows that it had been durable.
    fn end_at(&self, segment: &PlannedSegment, lsn: u64, problem: String) -> Result<SegmentEnd, LogError> {
        let PlannedSegment { path, first, stop } = segment;
        let damaged = |problem: String| Err(LogError::damaged(path, PREAMBLE_BYTES as u64 + lsn - first, problem));
        if let Some(stop) = stop {
            return damaged(format!("{problem}, and the next segment starts at lsn {stop}"));
        }
        let mut bytes = Vec::new();
        let mut file = fs::File::open(path).map_err(LogError::io("open", path))?;
        file.read_to_end(&mut bytes).map_err(LogError::io("read", path))?;
        let segment = SegmentBytes { bytes: &bytes, first: *first };
        if segment.was_durable(lsn) {
            return damaged(problem);
        }
        if lsn < self.needed.end {
            let durable = self.needed.end;
            return damaged(format!("the log ends here, at lsn {lsn}, and had been written up to lsn {durable}"));
        }
        Ok(SegmentEnd { end: lsn, torn: segment.torn_bytes(lsn) })
    }
}

impl LogTail {
    /// Reads and checks all records from `needed.start` on, one after the other: [`TailPlan`] for a caller with one thread.
    pub fn scan(
        folder: &Path,
        needed: Range<u64>,
        lineage: Option<u64>,
        mut visit: impl FnMut(&RecordHead, &[u8]) -> Result<(), LogError>,
    ) -> Result<Self, LogError> {
        let plan = TailPlan::new(folder, needed, lineage)?;
        let ends: Result<Vec<SegmentEnd>, LogError> =
            (0..plan.segment_count()).map(|number| plan.check_segment(number, &mut visit)).collect();
        plan.finish(&ends?)
    }

    /// Cuts what is torn off, so that it is not read again once the log goes on behind it.
    pub fn cut_torn_end(&self) -> Result<(), LogError> {
        let Some(last) = self.segments.last() else { return Ok(()) };
        let file = fs::OpenOptions::new().write(true).open(&last.path).map_err(LogError::io("open", &last.path))?;
        let cut = file.set_len(PREAMBLE_BYTES as u64 + last.end - last.first).and_then(|()| file.sync_all());
        cut.map_err(LogError::io("shorten", &last.path))
    }
}

impl TailSegment {
    /// Its records from `from` on, in their order, whose heads `wants` accepts. Payloads are not checked again. An error of `visit`
    /// ends the reading.
    pub fn for_each<E: From<LogError>>(
        &self,
        from: u64,
        wants: impl Fn(&RecordHead) -> bool,
        mut visit: impl FnMut(&RecordHead, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut reader = SegmentReader::open(&self.path)?;
        reader.skip(PREAMBLE_BYTES as u64);
        let mut lsn = self.first;
        while lsn < self.end {
            let offset = PREAMBLE_BYTES as u64 + lsn - self.first;
            let changed = || LogError::damaged(&self.path, offset, "it has changed while it was read");
            let head = reader.read_head(lsn)?.map_err(|_| changed())?;
            if lsn >= from && wants(&head) {
                let record = reader.peek(HEAD_BYTES + head.length as usize)?;
                let payload = record.get(HEAD_BYTES..HEAD_BYTES + head.length as usize).ok_or_else(changed)?;
                visit(&head, payload)?;
            }
            reader.skip(head.record_bytes());
            lsn = head.end_lsn();
        }
        Ok(())
    }
}

/// A whole segment, to find out why a record of it cannot be read.
struct SegmentBytes<'a> {
    bytes: &'a [u8],
    first: u64,
}

impl SegmentBytes<'_> {
    fn offset(&self, lsn: u64) -> usize {
        PREAMBLE_BYTES + (lsn - self.first) as usize
    }

    /// Whether a later record shows that the one at `lsn` had been durable. What an earlier segment has left here names smaller
    /// lsns, which lie at other places.
    fn was_durable(&self, lsn: u64) -> bool {
        let mut offset = self.offset(lsn) + 8;
        // Behind the last byte that was written there are zeros, to the end of what is preallocated.
        let end = self.offset(lsn) + self.written_bytes(lsn) as usize;
        while offset + HEAD_BYTES <= self.bytes.len() && offset < end {
            let later = RecordHead::from_bytes(&self.bytes[offset..]).ok();
            if later.is_some_and(|head| self.offset(head.lsn.max(self.first)) == offset && head.durable > lsn) {
                return true;
            }
            offset += 8;
        }
        false
    }

    /// Bytes that a torn record has at most. None are torn where zeros follow the last record.
    fn torn_bytes(&self, lsn: u64) -> u64 {
        let rest = self.bytes.get(self.offset(lsn)..).unwrap_or_default();
        let head = &rest[..rest.len().min(HEAD_BYTES)];
        if head.iter().all(|byte| *byte == 0) { 0 } else { self.written_bytes(lsn) }
    }

    /// Bytes from `lsn` to the last one that is not zero.
    fn written_bytes(&self, lsn: u64) -> u64 {
        let mut rest = self.bytes.get(self.offset(lsn)..).unwrap_or_default();
        // Page by page: most of a segment is room that was never written.
        while let Some((before, page)) = rest.split_last_chunk::<PAGE>()
            && *page == [0; PAGE]
        {
            rest = before;
        }
        rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogSummary {
    pub lineage: Option<LineageFile>,
    pub base: Option<BaseManifest>,
    pub segments: usize,
    /// The lsn of its first record.
    pub first: u64,
    /// The lsn behind its last record.
    pub end: u64,
    /// Bytes of a record that was being written.
    pub torn: u64,
    pub records: BTreeMap<RecordKind, RecordCount>,
    /// By writer and incarnation.
    pub writers: BTreeMap<(u64, u32), WriterSummary>,
    /// Rows that are in the tail, each as often as it changed, by table.
    pub rows: BTreeMap<u32, u64>,
    /// Pushes whose end is not in the log.
    pub partial: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCount {
    pub records: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterSummary {
    /// Pushes whose end is in the log.
    pub pushes: u64,
    pub newest: u64,
    pub step: u64,
}

impl LogSummary {
    /// Reads all records of the tail and checks them.
    pub fn read(folder: &Path) -> Result<Self, LogError> {
        let base = LogBase::find_newest(folder)?.map(|base| base.manifest);
        let oldest = list_segments(folder)?.first().map_or(0, |segment| segment.0);
        let first = base.as_ref().map_or(oldest, |base| base.start);
        let reached = base.as_ref().map_or(first, |base| base.end);
        let mut summary = Self { lineage: read_lineage(folder)?, base, first, end: first, ..Self::default() };
        let mut open = BTreeSet::new();
        let tail = LogTail::scan(folder, first..reached, None, |head, payload| {
            let count = summary.records.entry(head.kind).or_default();
            (count.records, count.bytes) = (count.records + 1, count.bytes + head.record_bytes());
            let record = LogRecord::decode(head, payload);
            match record.map_err(|problem| LogError::damaged(folder, head.lsn, problem))? {
                LogRecord::Rows(_, rows) => *summary.rows.entry(head.table).or_default() += rows.ids.len() as u64,
                LogRecord::Commit { origin, step, .. } => {
                    let writer = summary.writers.entry((origin.writer, origin.incarnation)).or_default();
                    *writer = WriterSummary { pushes: writer.pushes + 1, newest: writer.newest.max(origin.seq), step };
                    open.remove(&origin);
                }
                _ => {}
            }
            if let (RecordKind::PushedRows, Some((origin, _))) = (head.kind, origin_of(payload)) {
                open.insert(origin);
            }
            Ok(())
        })?;
        summary.partial = open.len() as u64;
        (summary.segments, summary.end, summary.torn) = (tail.segments.len(), tail.end, tail.torn);
        Ok(summary)
    }
}
