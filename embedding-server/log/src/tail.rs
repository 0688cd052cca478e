//! The reader of the segments: all records from an lsn on, in their order, each one checked.
//!
//! ```text
//! record │ record │ record │ half a rec          zeros          the log ends where the torn record starts
//! record │ record │ ?????? │ record (durable: ……▲ behind the bad one)      damage: the bad record had been durable
//! ```
//!
//! A record that cannot be read is *torn* if nothing shows that it had been durable: its push was never acknowledged. The end
//! of the log is then where it starts. A later record that can be read, and names a durable lsn behind it, shows that it had
//! been durable. So does a later segment, and a base that was written later. Then the log is *damaged*: what is missing may have
//! been acknowledged. A segment that is missing is named: the one before it says where it starts.

use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::folder::{segment_path, segments};
use crate::format::{HEAD_BYTES, HeadProblem, PREAMBLE_BYTES, Preamble, RecordHead};
use crate::{LogError, LogRecord};

/// Bytes that are compared with zeros at a time.
const PAGE: usize = 4096;

/// A segment with records of the tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailSegment {
    /// Its file.
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

impl LogTail {
    /// Reads and checks all records from `needed.start` on, the lsn of a record, and hands each one to `visit` with its payload.
    /// The log is known to have been durable up to `needed.end`.
    ///
    /// # Errors
    /// When a file cannot be read, or something that had been durable is missing.
    pub fn scan(
        folder: &Path,
        needed: Range<u64>,
        lineage: Option<u64>,
        mut visit: impl FnMut(&RecordHead, &[u8]) -> Result<(), LogError>,
    ) -> Result<Self, LogError> {
        let (all, from) = (segments(folder)?, needed.start);
        if all.first().is_none_or(|(first, _)| *first > from) {
            let next = all
                .first()
                .map_or(String::new(), |(first, _)| format!("; the first that is there starts at lsn {first}"));
            let why = format!("the log is needed from lsn {from} on{next}");
            return Err(LogError::missing(segment_path(folder, from), why));
        }
        // The last segment that starts at `from` or before holds its record, unless the one before ends exactly there.
        let begin = all.iter().rposition(|(first, _)| *first <= from).unwrap_or(0);
        let (mut tail, mut bytes) = (Self { end: from, ..Self::default() }, Vec::new());
        for (number, (first, path)) in all.iter().enumerate().skip(begin) {
            let is_last = number + 1 == all.len();
            if number > begin && *first != tail.end {
                let problem = format!("it starts at lsn {first}, and the log before it ends at {}", tail.end);
                return Err(LogError::damaged(path, 0, problem));
            }
            read_into(path, &mut bytes)?;
            let preamble = Preamble::from_bytes(&bytes).map_err(|problem| LogError::damaged(path, 0, problem))?;
            if preamble.first != *first || lineage.is_some_and(|lineage| lineage != preamble.lineage) {
                return Err(LogError::damaged(path, 0, "it is a segment of another log or another place"));
            }
            let stop = all.get(number + 1).map(|next| next.0);
            if let Some(next) = preamble.next.filter(|next| stop != Some(*next)) {
                let why = format!("{} says that the log goes on there", path.display());
                return Err(LogError::missing(segment_path(folder, next), why));
            }
            let segment = SegmentBytes { path, bytes: &bytes, first: *first };
            let (end, torn) = segment.scan(from, stop, is_last, &mut visit)?;
            if is_last && end < needed.end {
                let problem = format!(
                    "it ends at lsn {end}, and had been durable up to {} when the base was written",
                    needed.end
                );
                return Err(LogError::damaged(path, segment.offset(end) as u64, problem));
            }
            (tail.end, tail.torn) = (end.max(from), torn);
            tail.segments.push(TailSegment { path: path.clone(), first: *first, end });
        }
        Ok(tail)
    }

    /// Cuts what is torn off, so that it is not read again once the log goes on behind it.
    ///
    /// # Errors
    /// When the last file cannot be shortened.
    pub fn cut(&self) -> Result<(), LogError> {
        let Some(last) = self.segments.last() else { return Ok(()) };
        let file = fs::OpenOptions::new().write(true).open(&last.path).map_err(LogError::io("open", &last.path))?;
        let cut = file.set_len(PREAMBLE_BYTES as u64 + last.end - last.first).and_then(|()| file.sync_all());
        cut.map_err(LogError::io("shorten", &last.path))
    }
}

/// The bytes of a segment that was scanned, for a second pass without checks.
#[derive(Debug)]
pub struct CheckedSegment {
    bytes: Vec<u8>,
    path: PathBuf,
    first: u64,
    end: u64,
}

impl CheckedSegment {
    /// Reads a segment into the buffer of an earlier one.
    ///
    /// # Errors
    /// When the file cannot be read, or has become shorter.
    pub fn read(segment: &TailSegment, buffer: Vec<u8>) -> Result<Self, LogError> {
        let TailSegment { path, first, end } = segment.clone();
        let mut bytes = buffer;
        read_into(&path, &mut bytes)?;
        if (bytes.len() as u64) < PREAMBLE_BYTES as u64 + end - first {
            return Err(LogError::damaged(&path, bytes.len() as u64, "it has become shorter while it was read"));
        }
        Ok(Self { bytes, path, first, end })
    }

    /// Its memory, for the next segment.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// Its records from `from` on, in their order, whose heads `wants` accepts.
    ///
    /// # Errors
    /// Those of `visit`, and when a record's lengths disagree.
    pub fn for_each(
        &self,
        from: u64,
        wants: impl Fn(&RecordHead) -> bool,
        mut visit: impl FnMut(&RecordHead, LogRecord) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let mut lsn = self.first;
        while lsn < self.end {
            let offset = PREAMBLE_BYTES + (lsn - self.first) as usize;
            let head = RecordHead::from_bytes(&self.bytes[offset..]);
            let head =
                head.map_err(|_| LogError::damaged(&self.path, offset as u64, "it has changed while it was read"))?;
            if lsn >= from && wants(&head) {
                let payload = &self.bytes[offset + HEAD_BYTES..][..head.length as usize];
                let record = LogRecord::decode(&head, payload);
                visit(&head, record.map_err(|problem| LogError::damaged(&self.path, offset as u64, problem))?)?;
            }
            lsn = head.end();
        }
        Ok(())
    }
}

/// Reads a whole file into memory that is used again: fresh memory for each segment costs more than the reading.
fn read_into(path: &Path, bytes: &mut Vec<u8>) -> Result<(), LogError> {
    bytes.clear();
    let mut file = fs::File::open(path).map_err(LogError::io("open", path))?;
    file.read_to_end(bytes).map(drop).map_err(LogError::io("read", path))
}

struct SegmentBytes<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    first: u64,
}

impl SegmentBytes<'_> {
    /// Answers the lsn behind the last record, and the bytes that are torn behind it.
    fn scan(
        &self,
        from: u64,
        stop: Option<u64>,
        is_last: bool,
        visit: &mut impl FnMut(&RecordHead, &[u8]) -> Result<(), LogError>,
    ) -> Result<(u64, u64), LogError> {
        let mut lsn = self.first;
        while stop.is_none_or(|stop| lsn < stop) {
            match self.record_at(lsn) {
                Ok((head, payload)) => {
                    if lsn >= from {
                        visit(&head, payload)?;
                    }
                    lsn = head.end();
                }
                Err(_) if is_last && !self.was_durable(lsn) => return Ok((lsn, self.torn_bytes(lsn))),
                Err(problem) => {
                    let next =
                        stop.map_or(String::new(), |stop| format!(", and the next segment starts at lsn {stop}"));
                    return Err(LogError::damaged(self.path, self.offset(lsn) as u64, problem + &next));
                }
            }
        }
        Ok((lsn, 0))
    }

    fn offset(&self, lsn: u64) -> usize {
        PREAMBLE_BYTES + (lsn - self.first) as usize
    }

    fn record_at(&self, lsn: u64) -> Result<(RecordHead, &[u8]), String> {
        let bytes = self.bytes.get(self.offset(lsn)..).unwrap_or_default();
        let head = RecordHead::from_bytes(bytes).map_err(|problem| match problem {
            HeadProblem::NoHead => "no record can be read here".to_owned(),
            HeadProblem::OtherVersion(version) => format!("a record of version {version}, of a later release"),
        })?;
        if head.lsn != lsn {
            return Err(format!("the record of lsn {} lies at the place of {lsn}", head.lsn));
        }
        let payload = bytes.get(HEAD_BYTES..HEAD_BYTES + head.length as usize).ok_or("half a record")?;
        if crc32c::crc32c(payload) != head.payload_crc {
            return Err(format!("a record of {} has another checksum", head.kind.name()));
        }
        Ok((head, payload))
    }

    /// Whether a later record shows that the one at `lsn` had been durable.
    fn was_durable(&self, lsn: u64) -> bool {
        let mut offset = self.offset(lsn) + 8;
        // Behind the last byte that was written there are zeros, to the end of what is preallocated.
        let end = self.offset(lsn) + self.torn_bytes(lsn) as usize;
        while offset + HEAD_BYTES <= self.bytes.len() && offset < end {
            let later = RecordHead::from_bytes(&self.bytes[offset..]).ok();
            if later.is_some_and(|head| self.offset(head.lsn.max(self.first)) == offset && head.durable > lsn) {
                return true;
            }
            offset += 8;
        }
        false
    }

    /// Bytes from `lsn` to the last one that is not zero.
    fn torn_bytes(&self, lsn: u64) -> u64 {
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
