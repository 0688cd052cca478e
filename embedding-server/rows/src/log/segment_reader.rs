//! Reads a segment piece by piece. A segment of any size takes little memory, and the bytes of a record are in the
//! processor's cache when they are checked and used.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::log::LogError;
use crate::log::format::{HEAD_BYTES, HeadProblem, RecordHead};

/// Bytes that are read at once, unless a record has more. A multiple of 8, as every record's place is: numbers stay aligned.
const PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct SegmentReader {
    path: PathBuf,
    file: File,
    length: u64,
    /// Where the next byte of the caller lies in the file.
    place: u64,
    /// What was read and not yet used: `piece[start..end]`.
    piece: Vec<u8>,
    start: usize,
    end: usize,
}

impl SegmentReader {
    pub(crate) fn open(path: &Path) -> Result<Self, LogError> {
        let file = File::open(path).map_err(LogError::io("open", path))?;
        let length = file.metadata().map_err(LogError::io("read", path))?.len();
        Ok(Self { path: path.to_owned(), file, length, place: 0, piece: Vec::new(), start: 0, end: 0 })
    }

    /// The next `wanted` bytes, or fewer at the end of the file.
    pub(crate) fn peek(&mut self, wanted: usize) -> Result<&[u8], LogError> {
        if self.end - self.start < wanted {
            self.read_on(wanted).map_err(LogError::io("read", &self.path))?;
        }
        Ok(&self.piece[self.start..self.end.min(self.start + wanted)])
    }

    /// Goes on behind the next `bytes` bytes. What was not read of them is never read.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.place += bytes;
        self.start = (self.end as u64).min(self.start as u64 + bytes) as usize;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The head of the record that should lie here. What is wrong with it, in words.
    pub(crate) fn read_head(&mut self, lsn: u64) -> Result<Result<RecordHead, String>, LogError> {
        Ok(check_head(self.peek(HEAD_BYTES)?, lsn))
    }

    /// The payload of the record of this head, which lies here.
    pub(crate) fn read_payload(&mut self, head: &RecordHead) -> Result<Result<&[u8], String>, LogError> {
        let record = self.peek(HEAD_BYTES + head.length as usize)?;
        Ok(check_payload(record, head))
    }

    fn read_on(&mut self, wanted: usize) -> io::Result<()> {
        self.piece.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let left = usize::try_from(self.length.saturating_sub(self.place)).unwrap_or(usize::MAX);
        let target = wanted.max(PIECE).min(left);
        if self.piece.len() < target {
            self.piece.resize(target, 0);
        }
        while self.end < target {
            match self.file.read_at(&mut self.piece[self.end..target], self.place + self.end as u64) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The head of the record of `lsn`, at the start of `bytes`. What is wrong with it, in words.
pub(crate) fn check_head(bytes: &[u8], lsn: u64) -> Result<RecordHead, String> {
    let head = RecordHead::from_bytes(bytes).map_err(|problem| match problem {
        HeadProblem::NoHead => "no record can be read here".to_owned(),
        HeadProblem::OtherVersion(version) => format!("a record of version {version}, of a later release"),
    })?;
    let is_here = head.lsn == lsn;
    is_here.then_some(head).ok_or_else(|| format!("the record of lsn {} lies at the place of {lsn}", head.lsn))
}

fn check_payload<'a>(record: &'a [u8], head: &RecordHead) -> Result<&'a [u8], String> {
    let payload = record.get(HEAD_BYTES..HEAD_BYTES + head.length as usize).ok_or("half a record")?;
    let is_whole = crc32c::crc32c(payload) == head.payload_crc;
    is_whole.then_some(payload).ok_or_else(|| format!("a record of {} has another checksum", head.kind.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_steps_through_a_file_see_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..4 * PIECE as u64).map(|place| (place / 7 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let (mut reader, mut place) = (SegmentReader::open(&path).unwrap(), 0);
        for step in (0_usize..).map(|turn| [8, 4096, 3 * PIECE / 2, PIECE - 8, 24][turn % 5]) {
            let rest = &bytes[place..];
            for wanted in [16, step, step / 2] {
                assert_eq!(reader.peek(wanted).unwrap(), &rest[..wanted.min(rest.len())], "{wanted} at {place}");
            }
            if step > rest.len() {
                break;
            }
            // Some of it is skipped without having been read.
            reader.skip(step as u64);
            place += step;
        }
        assert!(place > 2 * PIECE);
        assert!(reader.piece.len() <= 3 * PIECE / 2);
    }
}
