//! Reads every byte of a file and checks every checksum.

use std::io::{BufRead, BufReader};

use crate::{SavedFile, SnapshotError};

/// A file that is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks, each with a CRC of its own.
    pub blocks: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Version of its format.
    pub version: u32,
}

/// Checks a whole file; `passed` is told the bytes that each block took.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(file: &SavedFile, mut passed: impl FnMut(u64)) -> Result<Checked, SnapshotError> {
    let mut reader = file.open()?;
    let mut before = 0;
    while reader.next(|_| true)?.is_some() {
        passed(reader.position() - before);
        before = reader.position();
    }
    passed(reader.position() - before);
    Ok(Checked { blocks: reader.blocks(), rows: reader.rows(), bytes: reader.position(), version: reader.version() })
}

/// CRC-32 (IEEE) of a whole file, whatever it holds: that of [`crate::Written`].
///
/// # Errors
/// When it cannot be read.
pub fn file_crc(file: &SavedFile) -> Result<u32, SnapshotError> {
    let read = |source| SnapshotError::Read { path: file.path().to_owned(), source };
    let mut content = BufReader::with_capacity(1 << 20, file.input()?.0);
    let mut crc = crc32fast::Hasher::new();
    loop {
        let bytes = content.fill_buf().map_err(read)?;
        if bytes.is_empty() {
            return Ok(crc.finalize());
        }
        crc.update(bytes);
        let passed = bytes.len();
        content.consume(passed);
    }
}
