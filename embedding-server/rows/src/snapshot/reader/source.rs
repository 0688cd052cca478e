//! A file that is read sequentially. Errors name the place in the file.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::snapshot::format::CRC_BYTES;
use crate::snapshot::{SnapshotError, SnapshotInput};

pub(super) struct FileSource {
    pub(super) path: PathBuf,
    from: BufReader<Box<dyn SnapshotInput>>,
    pub(super) offset: u64,
    /// Bytes left. A length beyond this is refused before memory is allocated for it.
    pub(super) left: u64,
}

/// A part of a file, for errors.
#[derive(Clone, Debug)]
pub(super) struct FilePlace {
    pub(super) name: String,
    pub(super) offset: u64,
}

impl FileSource {
    pub(super) fn new(path: &Path, from: impl SnapshotInput + 'static, bytes: u64) -> Self {
        let from: Box<dyn SnapshotInput> = Box::new(from);
        Self { path: path.to_owned(), from: BufReader::with_capacity(1 << 20, from), offset: 0, left: bytes }
    }

    pub(super) fn place_here(&self, name: String) -> FilePlace {
        FilePlace { name, offset: self.offset }
    }

    pub(super) fn take_bytes(&mut self, place: &FilePlace, bytes: u64) -> Result<Vec<u8>, SnapshotError> {
        self.check_left(place, bytes)?;
        self.take_up_to(bytes)
    }

    /// Reads the next `bytes` bytes, or fewer at the end of the file.
    pub(super) fn take_up_to(&mut self, bytes: u64) -> Result<Vec<u8>, SnapshotError> {
        let mut taken = vec![0; bytes.min(self.left) as usize];
        self.from.read_exact(&mut taken).map_err(|source| self.read_error(source))?;
        self.advance(taken.len() as u64);
        Ok(taken)
    }

    pub(super) fn skip_bytes(&mut self, place: &FilePlace, bytes: u64) -> Result<(), SnapshotError> {
        self.check_left(place, bytes)?;
        let distance = i64::try_from(bytes).map_err(|error| self.read_error(io::Error::other(error)))?;
        self.from.seek_relative(distance).map_err(|source| self.read_error(source))?;
        self.advance(bytes);
        Ok(())
    }

    pub(super) fn check_crc(&mut self, place: &FilePlace, parts: &[&[u8]]) -> Result<u32, SnapshotError> {
        let expected = word_at(&self.take_bytes(place, CRC_BYTES as u64)?, 0);
        let mut crc = crc32fast::Hasher::new();
        parts.iter().for_each(|part| crc.update(part));
        let found = crc.finalize();
        if found == expected {
            return Ok(found);
        }
        let (path, FilePlace { name, offset }) = (self.path.clone(), place.clone());
        Err(SnapshotError::Corrupt { path, place: name, offset, expected, found })
    }

    pub(super) fn inconsistency(&self, place: &FilePlace, problem: String) -> SnapshotError {
        let problem = format!("{} at byte {} {problem}", place.name, place.offset);
        SnapshotError::Inconsistent { path: self.path.clone(), problem }
    }

    fn check_left(&self, place: &FilePlace, needed: u64) -> Result<(), SnapshotError> {
        if needed <= self.left {
            return Ok(());
        }
        let (path, left, FilePlace { name, offset }) = (self.path.clone(), self.left, place.clone());
        Err(SnapshotError::Truncated { path, place: name, offset, needed, left })
    }

    fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
        self.left -= bytes;
    }

    fn read_error(&self, source: io::Error) -> SnapshotError {
        SnapshotError::Read { path: self.path.clone(), source }
    }
}

/// Word `index` of `bytes`. The caller has read enough bytes.
pub(super) fn word_at(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(index).map_or(0, |word| u32::from_le_bytes(*word))
}
