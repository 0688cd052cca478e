//! Reads a file of rows block by block. Every number is checked before it is used.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use crate::snapshot::SnapshotError;
use crate::snapshot::format::{
    BlockContent, BlockHeader, BlockKind, CRC_BYTES, DELTA_VERSION, HEAD_BYTES, MAGIC, PREAMBLE_BYTES, SnapshotBlock,
    SnapshotHeader, TableHeader, VERSION,
};

pub struct SnapshotReader {
    from: FileSource,
    version: u32,
    header: SnapshotHeader,
    blocks: u64,
    rows: u64,
}

impl SnapshotReader {
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |source| SnapshotError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Self::from_input(path, file, bytes)
    }

    /// Reads the header from a source of `bytes` bytes. Errors name it `path`.
    pub fn from_input(path: &Path, input: impl SnapshotInput + 'static, bytes: u64) -> Result<Self, SnapshotError> {
        let mut from = FileSource::new(path, input, bytes);
        let (version, header) = read_header(&mut from)?;
        Ok(Self { from, version, header, blocks: 0, rows: 0 })
    }

    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn path(&self) -> &Path {
        &self.from.path
    }

    /// Bytes read or skipped so far.
    pub fn bytes_read(&self) -> u64 {
        self.from.offset
    }

    /// Blocks read or skipped so far.
    pub fn blocks_read(&self) -> u64 {
        self.blocks
    }

    /// Rows read or skipped so far.
    pub fn rows_read(&self) -> u64 {
        self.rows
    }

    pub fn find_table(&self, name: &str) -> Result<(usize, &TableHeader), SnapshotError> {
        let tables = &self.header.tables;
        tables.iter().enumerate().find(|(_, table)| table.name == name).ok_or_else(|| {
            let known = tables.iter().map(|table| table.name.clone()).collect();
            SnapshotError::UnknownTable { path: self.path().to_owned(), name: name.to_owned(), known }
        })
    }

    /// The next block for which `wanted` returns true. `None` at the end, which must agree with everything before it.
    /// Other blocks are skipped, so their CRCs are not checked.
    pub fn next_block(
        &mut self,
        wanted: impl Fn(&BlockHeader) -> bool,
    ) -> Result<Option<SnapshotBlock>, SnapshotError> {
        loop {
            let (head, bytes, place) = self.read_head()?;
            if head.kind == BlockKind::End {
                return self.read_end(&head, &bytes, &place).map(|()| None);
            }
            let content = match wanted(&head) {
                true => Some(self.read_content(&head, &bytes, &place)?),
                false => {
                    self.from.skip_bytes(&place, head.payload_bytes().saturating_add(4))?;
                    None
                }
            };
            self.blocks += 1;
            self.rows += if head.kind == BlockKind::Rows { u64::from(head.entries) } else { 0 };
            if let Some(content) = content {
                return Ok(Some(SnapshotBlock { table: head.table as usize, content }));
            }
        }
    }

    /// Reads a head. Returns it with its bytes, which the block's CRC covers, and its place.
    fn read_head(&mut self) -> Result<(BlockHeader, Vec<u8>, FilePlace), SnapshotError> {
        let mut place = self.from.place_here(format!("block {}", self.blocks));
        let (head, bytes) = self.read_head_at(&place)?;
        if !matches!(head.kind, BlockKind::Clock | BlockKind::End) {
            let table = self.check_table(&head, &place)?;
            place.name = format!("{} ({} of table `{}`)", place.name, head.kind.name(), table.name);
        }
        Ok((head, bytes, place))
    }

    fn read_head_at(&mut self, place: &FilePlace) -> Result<(BlockHeader, Vec<u8>), SnapshotError> {
        let mut bytes = self.from.take_bytes(place, HEAD_BYTES as u64)?;
        let head_place = FilePlace { name: format!("the head of {}", place.name), offset: place.offset };
        let crc = self.from.check_crc(&head_place, &[&bytes])?;
        let number = word_at(&bytes, 0);
        let Some(kind) = BlockKind::from_number(number) else {
            let problem = format!("is of kind {number}, which this release does not know");
            return Err(self.from.inconsistency(place, problem));
        };
        let [table, from, until, entries, words] = [1, 2, 3, 4, 5].map(|index| word_at(&bytes, index));
        bytes.extend(crc.to_le_bytes());
        Ok((BlockHeader { kind, table, from, until, entries, words }, bytes))
    }

    /// Checks that the head's table exists and that its rows have the size in the header.
    fn check_table(&self, head: &BlockHeader, place: &FilePlace) -> Result<&TableHeader, SnapshotError> {
        let Some(table) = self.header.tables.get(head.table as usize) else {
            let (number, tables) = (head.table, self.header.tables.len());
            let problem = format!("is of table {number}, but the header has {tables} tables");
            return Err(self.from.inconsistency(place, problem));
        };
        let expected = match head.kind {
            BlockKind::Rows => table.row_words(),
            BlockKind::Counts => 1,
            BlockKind::Removed => 0,
            _ => head.words as usize,
        };
        if head.words as usize == expected {
            return Ok(table);
        }
        let (found, name) = (head.words, &table.name);
        let problem = format!("has {found} words per entry, but the header says {expected} for table `{name}`");
        Err(self.from.inconsistency(place, problem))
    }

    fn read_content(
        &mut self,
        head: &BlockHeader,
        bytes: &[u8],
        place: &FilePlace,
    ) -> Result<BlockContent, SnapshotError> {
        let payload = self.from.take_bytes(place, head.payload_bytes())?;
        self.from.check_crc(place, &[bytes, &payload])?;
        // A clock block belongs to no table, and a file may have no tables.
        let none = TableHeader::default();
        Ok(BlockContent::decode(head, self.header.tables.get(head.table as usize).unwrap_or(&none), &payload))
    }

    fn read_end(&mut self, head: &BlockHeader, bytes: &[u8], place: &FilePlace) -> Result<(), SnapshotError> {
        let place = FilePlace { name: "the end".to_owned(), ..place.clone() };
        let BlockContent::Clock(counts) = self.read_content(head, bytes, &place)? else { return Ok(()) };
        let (blocks, rows) = (self.blocks, self.rows);
        if [counts.steps, counts.seconds] != [blocks, rows] {
            let reported = format!("says {} rows in {} blocks", counts.seconds, counts.steps);
            let problem = format!("{reported}, but there are {rows} rows in {blocks} blocks");
            return Err(self.from.inconsistency(&place, problem));
        }
        match self.from.left {
            0 => Ok(()),
            left => Err(self.from.inconsistency(&place, format!("is followed by {left} bytes"))),
        }
    }
}

fn read_header(from: &mut FileSource) -> Result<(u32, SnapshotHeader), SnapshotError> {
    let place = from.place_here("the header".to_owned());
    let preamble = from.take_up_to(PREAMBLE_BYTES as u64)?;
    if !preamble.starts_with(&MAGIC) {
        return Err(SnapshotError::Magic { path: from.path.to_owned() });
    }
    if preamble.len() < PREAMBLE_BYTES {
        let needed = (PREAMBLE_BYTES - preamble.len()) as u64;
        return from.take_bytes(&place, needed).and(Err(from.inconsistency(&place, "is short".to_owned())));
    }
    let (version, length) = (word_at(&preamble, 2), word_at(&preamble, 3));
    let json = from.take_bytes(&place, u64::from(length))?;
    from.check_crc(&place, &[&preamble, &json])?;
    let header = match version {
        VERSION | DELTA_VERSION => serde_json::from_slice(&json),
        found => return Err(other_version(&from.path, found, &json)),
    };
    let header: SnapshotHeader =
        header.map_err(|source| SnapshotError::Header { path: from.path.to_owned(), source })?;
    if header.follows.is_some() != (version == DELTA_VERSION) {
        let problem = format!("says otherwise than version {version} whether this is a delta");
        return Err(from.inconsistency(&place, problem));
    }
    let unplaced = (header.buckets == 0).then(|| "states no buckets".to_owned());
    match header.tables.iter().find_map(TableHeader::find_problem).or(unplaced) {
        Some(problem) => Err(from.inconsistency(&place, problem)),
        None => Ok((version, header)),
    }
}

fn other_version(path: &Path, found: u32, json: &[u8]) -> SnapshotError {
    let header: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let release = header.get("release").and_then(serde_json::Value::as_str).unwrap_or("(unknown)").to_owned();
    SnapshotError::Version { path: path.to_owned(), found, newest: DELTA_VERSION, release }
}

/// The source of a file's bytes.
pub trait SnapshotInput: Read + Seek + Send {}

impl<T: Read + Seek + Send> SnapshotInput for T {}

struct FileSource {
    path: PathBuf,
    from: BufReader<Box<dyn SnapshotInput>>,
    offset: u64,
    /// Bytes left. A length beyond this is refused before memory is allocated for it.
    left: u64,
}

#[derive(Clone, Debug)]
struct FilePlace {
    name: String,
    offset: u64,
}

impl FileSource {
    fn new(path: &Path, from: impl SnapshotInput + 'static, bytes: u64) -> Self {
        let from: Box<dyn SnapshotInput> = Box::new(from);
        Self { path: path.to_owned(), from: BufReader::with_capacity(1 << 20, from), offset: 0, left: bytes }
    }

    fn place_here(&self, name: String) -> FilePlace {
        FilePlace { name, offset: self.offset }
    }

    fn take_bytes(&mut self, place: &FilePlace, bytes: u64) -> Result<Vec<u8>, SnapshotError> {
        self.check_left(place, bytes)?;
        self.take_up_to(bytes)
    }

    /// Reads the next `bytes` bytes, or fewer at the end of the file.
    fn take_up_to(&mut self, bytes: u64) -> Result<Vec<u8>, SnapshotError> {
        let mut taken = vec![0; bytes.min(self.left) as usize];
        self.from.read_exact(&mut taken).map_err(|source| self.read_error(source))?;
        self.advance(taken.len() as u64);
        Ok(taken)
    }

    fn skip_bytes(&mut self, place: &FilePlace, bytes: u64) -> Result<(), SnapshotError> {
        self.check_left(place, bytes)?;
        let distance = i64::try_from(bytes).map_err(|error| self.read_error(io::Error::other(error)))?;
        self.from.seek_relative(distance).map_err(|source| self.read_error(source))?;
        self.advance(bytes);
        Ok(())
    }

    fn check_crc(&mut self, place: &FilePlace, parts: &[&[u8]]) -> Result<u32, SnapshotError> {
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

    fn inconsistency(&self, place: &FilePlace, problem: String) -> SnapshotError {
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
fn word_at(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(index).map_or(0, |word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests;
