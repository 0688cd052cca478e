//! A saved file of rows, on a disk or in another store.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::snapshot::{BlockContent, SnapshotError, SnapshotInput, SnapshotReader, TableTime};

/// Opens a file. Also returns its size in bytes.
type OpenFile = dyn Fn() -> io::Result<(Box<dyn SnapshotInput>, u64)> + Send + Sync;

/// A file of rows that is opened again for each read.
#[derive(Clone)]
pub struct SavedFile {
    path: PathBuf,
    open: Arc<OpenFile>,
}

impl SavedFile {
    pub fn on_disk(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let file = path.clone();
        Self::new(path, move || {
            let file = File::open(&file)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        })
    }

    /// A file in any store. Errors name it `path`. `open` returns its content and its size in bytes.
    pub fn new<I: SnapshotInput + 'static>(
        path: impl Into<PathBuf>,
        open: impl Fn() -> io::Result<(I, u64)> + Send + Sync + 'static,
    ) -> Self {
        let open = move || open().map(|(input, bytes)| (Box::new(input) as Box<dyn SnapshotInput>, bytes));
        Self { path: path.into(), open: Arc::new(open) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content from the start, and the size in bytes.
    pub fn open_input(&self) -> Result<(Box<dyn SnapshotInput>, u64), SnapshotError> {
        (self.open)().map_err(|source| SnapshotError::Read { path: self.path.clone(), source })
    }

    pub fn open(&self) -> Result<SnapshotReader, SnapshotError> {
        let (input, bytes) = self.open_input()?;
        SnapshotReader::from_input(&self.path, input, bytes)
    }
}

impl fmt::Debug for SavedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SavedFile").field(&self.path).finish()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedFile {
    /// Number of blocks. Each has a CRC of its own.
    pub blocks: u64,
    pub rows: u64,
    pub bytes: u64,
    pub version: u32,
    /// SHA-256 of the file. It equals the hash in [`crate::snapshot::WrittenFile`] if this is the file that was saved.
    pub sha256: [u8; 32],
    pub clock: TableTime,
}

/// Checks a whole file. `passed` gets the number of bytes of each block.
pub fn verify_file(file: &SavedFile, mut passed: impl FnMut(u64)) -> Result<VerifiedFile, SnapshotError> {
    let (input, bytes) = file.open_input()?;
    let sha256 = Arc::new(Mutex::new(Sha256::new()));
    let mut reader =
        SnapshotReader::from_input(file.path(), HashedInput { input, sha256: Arc::clone(&sha256) }, bytes)?;
    let (mut before, mut clock) = (0, TableTime::default());
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Cursor;

    use super::*;
    use crate::snapshot::testing::{header, rows_of, write_test_file};
    use crate::snapshot::verify_file;

    #[test]
    fn a_file_can_be_read_repeatedly_from_any_store() {
        let (_folder, path) = write_test_file(&header(8), |writer| writer.write_rows(0, &rows_of(0..3, 4, false)));
        let bytes = fs::read(&path).unwrap();
        let content = bytes.clone();
        let elsewhere =
            SavedFile::new("s3://a/b.zrows", move || Ok((Cursor::new(content.clone()), content.len() as u64)));
        let here = SavedFile::on_disk(&path);
        assert_eq!(verify_file(&elsewhere, |_| ()).unwrap(), verify_file(&here, |_| ()).unwrap());
        assert_eq!(elsewhere.open_input().unwrap().1, bytes.len() as u64);
    }

    #[test]
    fn errors_name_a_file_that_cannot_be_opened_or_is_damaged() {
        let away = SavedFile::new("s3://a/b.zrows", || Err::<(Cursor<Vec<u8>>, u64), _>(io::Error::other("away")));
        let reported = away.open().err().unwrap().to_string();
        assert_eq!(reported, "cannot read s3://a/b.zrows: away");
        let other = SavedFile::new("s3://a/c.zrows", || Ok((Cursor::new(b"no rows at all".to_vec()), 14)));
        let reported = other.open().err().unwrap().to_string();
        assert!(reported.starts_with("s3://a/c.zrows is not a file of rows"), "{reported}");
    }
}
