//! Reads every byte of a file, checks every checksum, and computes the hash of the file.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::{BlockContent, SavedFile, SnapshotError, SnapshotInput, SnapshotReader, SnapshotTime};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedFile {
    /// Number of blocks. Each has a CRC of its own.
    pub blocks: u64,
    pub rows: u64,
    pub bytes: u64,
    pub version: u32,
    /// SHA-256 of the file. It equals the hash in [`crate::WrittenFile`] if this is the file that was saved.
    pub sha256: [u8; 32],
    pub clock: SnapshotTime,
}

/// Checks a whole file. `passed` gets the number of bytes of each block.
pub fn verify_file(file: &SavedFile, mut passed: impl FnMut(u64)) -> Result<VerifiedFile, SnapshotError> {
    let (input, bytes) = file.open_input()?;
    let sha256 = Arc::new(Mutex::new(Sha256::new()));
    let mut reader =
        SnapshotReader::from_input(file.path(), HashedInput { input, sha256: Arc::clone(&sha256) }, bytes)?;
    let (mut before, mut clock) = (0, SnapshotTime::default());
    while let Some(block) = reader.next_block(|_| true)? {
        if let BlockContent::Clock(reported) = block.content {
            clock = reported;
        }
        passed(reader.bytes_read() - before);
        before = reader.bytes_read();
    }
    passed(reader.bytes_read() - before);
    let sha256 = sha256.lock().unwrap_or_else(PoisonError::into_inner).clone().finalize().into();
    let (blocks, rows, bytes, version) =
        (reader.blocks_read(), reader.rows_read(), reader.bytes_read(), reader.version());
    Ok(VerifiedFile { blocks, rows, bytes, version, sha256, clock })
}

struct HashedInput<I> {
    input: I,
    sha256: Arc<Mutex<Sha256>>,
}

impl<I: SnapshotInput> Read for HashedInput<I> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(to)?;
        self.sha256.lock().unwrap_or_else(PoisonError::into_inner).update(&to[..read]);
        Ok(read)
    }
}

impl<I> Seek for HashedInput<I> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::Error::new(ErrorKind::Unsupported, "a hashed file can only be read sequentially"))
    }
}
