//! A Parquet file as the crate `parquet` reads pages from it.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::parquet::basic::CompressionCodec;
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::Bytes;

/// The largest page as it is in the file. Writers make pages of a mebibyte by default; the largest default is 100 MB.
const MOST_PAGE_BYTES: usize = 128 << 20;

/// Bytes read at once for the header of a page, which has a few dozen, and more if it has the smallest and largest value.
const HEADER_BYTES: usize = 512;

/// Where the pages of a column in a row group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) codec: CompressionCodec,
}

/// Reads a file at any offset, and has no position that readers of its columns would share.
#[derive(Clone, Debug)]
pub(super) struct PageFile {
    pub(super) file: Arc<File>,
}

/// Reads on from an offset.
#[derive(Debug)]
pub(super) struct ReadFrom {
    file: Arc<File>,
    at: u64,
}

impl Read for ReadFrom {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(out, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Length for PageFile {
    fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }
}

impl ChunkReader for PageFile {
    type T = BufReader<ReadFrom>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let from = ReadFrom { file: Arc::clone(&self.file), at: start };
        Ok(BufReader::with_capacity(HEADER_BYTES, from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length > MOST_PAGE_BYTES {
            let text =
                format!("a page of {length} bytes, the most is {MOST_PAGE_BYTES}; write the file with smaller pages");
            return Err(ParquetError::General(text));
        }
        let mut page = vec![0; length];
        match self.file.read_exact_at(&mut page, start) {
            Ok(()) => Ok(page.into()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(ParquetError::General(format!("the file ends before the page at byte {start} does")))
            }
            Err(error) => Err(ParquetError::General(format!("cannot read at byte {start}: {error}"))),
        }
    }
}
