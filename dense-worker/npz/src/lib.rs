//! Takes the place of the crate `zip` below tch, which names it for `.npz` files (`Tensor::read_npz`, `write_npz`).
//!
//! Zagros reads and writes no such files, and the real crate brings zstd, bzip2 and AES, which are compiled twice: once for tch
//! and once for the build script of torch-sys (docs/adr/0002). Every function here that would open an archive returns
//! [`result::ZipError`]. An archive therefore never exists, and its type has no value.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::path::PathBuf;

use self::result::ZipError;

pub mod result {
    //! The error.

    use std::fmt;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ZipError;

    impl fmt::Display for ZipError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Zagros is built without zip archives: .npz files cannot be read or written")
        }
    }

    impl std::error::Error for ZipError {}
}

pub mod write {
    //! Options of a file in an archive.

    use super::CompressionMethod;

    #[derive(Clone, Copy, Debug, Default)]
    pub struct FileOptions;

    impl FileOptions {
        #[must_use]
        pub fn compression_method(self, _method: CompressionMethod) -> Self {
            self
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionMethod {
    Stored,
}

/// An archive to read, of which there is none.
#[derive(Debug)]
pub struct ZipArchive<R> {
    none: Infallible,
    source: PhantomData<R>,
}

impl<R> ZipArchive<R> {
    pub fn new(_source: R) -> Result<Self, ZipError> {
        Err(ZipError)
    }

    #[expect(clippy::len_without_is_empty, reason = "tch and torch-sys call this alone")]
    pub fn len(&self) -> usize {
        match self.none {}
    }

    pub fn by_index(&mut self, _index: usize) -> Result<ZipFile, ZipError> {
        match self.none {}
    }
}

/// A file of an archive, of which there is none.
#[derive(Debug)]
pub struct ZipFile {
    none: Infallible,
}

impl ZipFile {
    pub fn name(&self) -> &str {
        match self.none {}
    }

    /// Its name as a path below the folder that it is extracted to.
    pub fn mangled_name(&self) -> PathBuf {
        match self.none {}
    }

    /// Its bytes, uncompressed.
    pub fn size(&self) -> u64 {
        match self.none {}
    }
}

impl Read for ZipFile {
    fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
        match self.none {}
    }
}

/// An archive to write, which refuses every file.
#[derive(Debug)]
pub struct ZipWriter<W> {
    target: PhantomData<W>,
}

impl<W> ZipWriter<W> {
    pub fn new(_target: W) -> Self {
        Self { target: PhantomData }
    }

    pub fn start_file(&mut self, _name: impl Into<String>, _options: write::FileOptions) -> Result<(), ZipError> {
        Err(ZipError)
    }
}

impl<W> Write for ZipWriter<W> {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::Error::other(ZipError))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
