//! A Parquet file as the crate `parquet` reads pages from it: on a disk, or a column of a row group in a store.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::parquet::basic::CompressionCodec;
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::{Bytes, BytesMut};
use zagros_store::ObjectRange;

/// The largest page as it is in the file. Writers make pages of a mebibyte by default; the largest default is 100 MB.
const MOST_PAGE_BYTES: usize = 128 << 20;

/// Bytes read at once for the header of a page, which has a few dozen, and more if it has the smallest and largest value.
const HEADER_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) codec: CompressionCodec,
}

/// Reads a file at any offset, and has no position that readers of its columns would share.
#[derive(Clone, Debug)]
pub(crate) enum PageFile {
    Disk(Arc<File>),
    /// The pages of one column in a row group of an object.
    Object(Arc<ObjectRange>),
}

#[derive(Debug)]
pub(crate) struct ReadFrom {
    file: PageFile,
    at: u64,
}

impl PageFile {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Self::Disk(file) => file.read_at(out, at),
            Self::Object(range) => {
                let bytes = range.bytes_at(at).map_err(io::Error::other)?;
                let taken = bytes.len().min(out.len());
                out[..taken].copy_from_slice(&bytes[..taken]);
                Ok(taken)
            }
        }
    }

    fn bytes(&self, start: u64, length: usize) -> io::Result<Bytes> {
        match self {
            Self::Disk(file) => {
                let mut page = vec![0; length];
                file.read_exact_at(&mut page, start)?;
                Ok(page.into())
            }
            Self::Object(range) => {
                let mut bytes = range.bytes_at(start).map_err(io::Error::other)?;
                if bytes.len() >= length {
                    return Ok(bytes.split_to(length));
                }
                let mut page = BytesMut::new();
                while page.len() < length && !bytes.is_empty() {
                    page.extend_from_slice(&bytes[..bytes.len().min(length - page.len())]);
                    bytes = range.bytes_at(start + page.len() as u64).map_err(io::Error::other)?;
                }
                if page.len() < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(page.freeze()) }
            }
        }
    }
}

impl Read for ReadFrom {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(out, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Length for PageFile {
    fn len(&self) -> u64 {
        match self {
            Self::Disk(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            Self::Object(range) => range.byte_range().end,
        }
    }
}

impl ChunkReader for PageFile {
    type T = BufReader<ReadFrom>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let from = ReadFrom { file: self.clone(), at: start };
        Ok(BufReader::with_capacity(HEADER_BYTES, from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length > MOST_PAGE_BYTES {
            let text =
                format!("a page of {length} bytes, the most is {MOST_PAGE_BYTES}; write the file with smaller pages");
            return Err(ParquetError::General(text));
        }
        match self.bytes(start, length) {
            Ok(page) => Ok(page),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ParquetError::General(format!("the file ends before the page at byte {start} does")))
            }
            Err(error) => Err(ParquetError::General(format!("cannot read at byte {start}: {error}"))),
        }
    }
}
