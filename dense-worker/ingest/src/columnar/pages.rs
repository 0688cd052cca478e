//! The pages of a column in a row group, one after another.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::codec::Codec;
use super::fault::{Fault, Result, fail};
use super::thrift::{Thrift, WireType, ends_early};

/// The largest page, uncompressed. Writers make pages of a mebibyte by default; the largest default is 100 MB.
pub(super) const MOST_PAGE_BYTES: usize = 128 << 20;

/// Bytes read at once, unless a page is larger.
const WINDOW: usize = 64 << 10;

/// The longest header: it may have the smallest and the largest value.
const MOST_HEADER: usize = 16 << 20;

/// Where the pages of a column in a row group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) codec: Codec,
}

/// Reads pages.
#[derive(Debug)]
pub(super) struct PageReader {
    file: Arc<File>,
    place: ChunkPlace,
    /// Offset of the next header.
    at: u64,
    window: Vec<u8>,
    /// Offset of the window in the file.
    window_at: u64,
    header: Option<PageHeader>,
}

/// What a page says about itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHeader {
    pub(super) kind: PageKind,
    /// Values, nulls included; entries of a dictionary.
    pub(super) values: usize,
    pub(super) encoding: i64,
    /// Encodings of the levels; only of a data page of version 1.
    pub(super) level_encodings: [i64; 2],
    /// Bytes of the repetition and definition levels; only of version 2.
    pub(super) level_bytes: [usize; 2],
    is_compressed: bool,
    size: usize,
    compressed: usize,
    checksum: Option<u32>,
    /// Bytes of the header itself.
    length: usize,
}

/// The kinds of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PageKind {
    /// Values, version 1.
    #[default]
    Data,
    /// Values, version 2: levels are not compressed.
    DataV2,
    Dictionary,
    /// Any other, which is skipped.
    Other,
}

impl PageReader {
    pub(super) fn new(file: Arc<File>, place: ChunkPlace) -> Self {
        Self { file, place, at: place.start, window: Vec::new(), window_at: 0, header: None }
    }

    /// The header of the next page; `None` at the end.
    pub(super) fn header(&mut self) -> Result<Option<PageHeader>> {
        if self.header.is_none() && self.at < self.place.end {
            self.header = Some(self.read_header()?);
        }
        Ok(self.header)
    }

    /// Goes to the page behind the next one.
    pub(super) fn skip(&mut self) {
        if let Some(header) = self.header.take() {
            self.at += (header.length + header.compressed) as u64;
        }
    }

    /// Puts the next page's bytes, uncompressed, into `out`.
    pub(super) fn load(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let Some(header) = self.header()? else { return Err(ends_early()) };
        let (at, codec) = (self.at + header.length as u64, self.place.codec);
        let bytes = self.bytes(at, header.compressed, header.compressed)?;
        if header.checksum.is_some_and(|checksum| crc32fast::hash(bytes) != checksum) {
            return fail(format!("the page at byte {at} does not have its checksum"));
        }
        out.clear();
        let levels = header.level_bytes[0] + header.level_bytes[1];
        let Some((plain, rest)) = bytes.split_at_checked(levels) else { return Err(ends_early()) };
        out.extend_from_slice(plain);
        let codec = if header.is_compressed { codec } else { Codec::None };
        match header.size - levels {
            // Only nulls: some writers then compress nothing to nothing.
            0 => {}
            size => codec.decompress(rest, size, out)?,
        }
        self.skip();
        Ok(())
    }

    fn read_header(&mut self) -> Result<PageHeader> {
        let mut wanted = 512;
        loop {
            let left = usize::try_from(self.place.end - self.at).unwrap_or(usize::MAX);
            let bytes = self.bytes(self.at, wanted.min(left), WINDOW)?;
            match PageHeader::parse(bytes) {
                Ok(header) if (header.length + header.compressed) <= left => return Ok(header),
                Ok(header) => {
                    return fail(format!(
                        "the page at byte {} claims {} bytes beyond its column",
                        self.at, header.compressed
                    ));
                }
                Err(fault) if fault == ends_early() && wanted < left.min(MOST_HEADER) => wanted *= 8,
                Err(fault) => return fail(format!("the header of the page at byte {}: {fault}", self.at)),
            }
        }
    }

    /// `length` bytes from offset `at` on; reads `ahead` at once.
    fn bytes(&mut self, at: u64, length: usize, ahead: usize) -> Result<&[u8]> {
        let inside = at.checked_sub(self.window_at).map(|skipped| usize::try_from(skipped).unwrap_or(usize::MAX));
        let inside = inside.filter(|start| start.saturating_add(length) <= self.window.len());
        let start = match inside {
            Some(start) => start,
            None => {
                let left = usize::try_from(self.place.end.saturating_sub(at)).unwrap_or(usize::MAX);
                self.window.resize(length.max(ahead).min(left), 0);
                self.window_at = at;
                self.file.read_exact_at(&mut self.window, at).map_err(|error| unreadable(at, &error))?;
                0
            }
        };
        self.window.get(start..start + length).ok_or_else(ends_early)
    }
}

fn unreadable(at: u64, error: &std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Fault::new(format!("the file ends before the page at byte {at} does")),
        _ => Fault::new(format!("cannot read at byte {at}: {error}")),
    }
}

impl PageHeader {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut header = Self { is_compressed: true, ..Self::default() };
        let mut thrift = Thrift::new(bytes);
        thrift.structure(|id, kind, thrift| {
            match (id, kind) {
                (1, WireType::Integer) => header.kind = PageKind::new(thrift.integer()?),
                (2, WireType::Integer) => header.size = page_bytes(thrift.size()?)?,
                (3, WireType::Integer) => header.compressed = page_bytes(thrift.size()?)?,
                (4, WireType::Integer) => header.checksum = Some(thrift.integer()? as u32),
                (5 | 7, WireType::Struct) => header.read_data(thrift)?,
                (8, WireType::Struct) => header.read_data_v2(thrift)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        header.length = thrift.position();
        if header.level_bytes[0].saturating_add(header.level_bytes[1]) > header.size {
            return fail("levels larger than the page");
        }
        Ok(header)
    }

    /// The header of a data page of version 1, or of a dictionary.
    fn read_data(&mut self, thrift: &mut Thrift<'_>) -> Result<()> {
        thrift.structure(|id, kind, thrift| {
            match (id, kind) {
                (1, WireType::Integer) => self.values = count(thrift.size()?)?,
                (2, WireType::Integer) => self.encoding = thrift.integer()?,
                (3, WireType::Integer) => self.level_encodings[1] = thrift.integer()?,
                (4, WireType::Integer) => self.level_encodings[0] = thrift.integer()?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    fn read_data_v2(&mut self, thrift: &mut Thrift<'_>) -> Result<()> {
        thrift.structure(|id, kind, thrift| {
            match (id, kind) {
                (1, WireType::Integer) => self.values = count(thrift.size()?)?,
                (4, WireType::Integer) => self.encoding = thrift.integer()?,
                (5, WireType::Integer) => self.level_bytes[1] = page_bytes(thrift.size()?)?,
                (6, WireType::Integer) => self.level_bytes[0] = page_bytes(thrift.size()?)?,
                (7, kind) => {
                    self.is_compressed = kind == WireType::True;
                    return Ok(false);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })
    }
}

impl PageKind {
    fn new(number: i64) -> Self {
        match number {
            0 => Self::Data,
            2 => Self::Dictionary,
            3 => Self::DataV2,
            _ => Self::Other,
        }
    }
}

fn page_bytes(bytes: u64) -> Result<usize> {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= MOST_PAGE_BYTES => Ok(bytes),
        _ => fail(format!("a page of {bytes} bytes, the most is {MOST_PAGE_BYTES}; write the file with smaller pages")),
    }
}

fn count(values: u64) -> Result<usize> {
    match u32::try_from(values) {
        Ok(values) => Ok(values as usize),
        Err(_) => fail(format!("a page of {values} values")),
    }
}
