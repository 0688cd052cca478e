//! Reads a file of rows block by block, trusting no number in it before it is checked.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{PackError, decode_ids, decode_values};
use zagros_table::Rows;

use super::StorageError;
use super::format::{BLOCK_HEAD_BYTES, BlockHead, CRC_BYTES, END, END_BYTES, Header, MAGIC, PREAMBLE_BYTES, VERSION};

/// An open file of rows.
pub(crate) struct Reader {
    path: PathBuf,
    from: BufReader<File>,
    /// Bytes not read yet: a length that claims more is refused before memory is taken for it.
    left: u64,
    header: Header,
    blocks: u64,
    rows: u64,
}

/// A run of rows of one table.
#[derive(Debug, PartialEq)]
pub(crate) struct Block {
    /// Position among the header's tables.
    pub(crate) table: usize,
    pub(crate) rows: Rows,
}

impl Reader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When there is no such file, or it is none of ours, of another version, cut off or damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, StorageError> {
        let read = |source| StorageError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(read)?;
        let left = file.metadata().map_err(read)?.len();
        let header = Header { release: String::new(), server: 0, servers: 0, tables: Vec::new() };
        let from = BufReader::with_capacity(1 << 20, file);
        let mut reader = Self { path: path.to_owned(), from, left, header, blocks: 0, rows: 0 };
        reader.header = reader.read_header()?;
        Ok(reader)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The next block; `None` once the end was read and agrees with what came before.
    ///
    /// # Errors
    /// When the file is cut off or damaged.
    pub(crate) fn next(&mut self) -> Result<Option<Block>, StorageError> {
        let place = format!("block {}", self.blocks);
        let mark = self.take(&place, 4)?;
        if word(&mark, 0) == END {
            return self.read_end(mark).map(|()| None);
        }
        let head = [mark, self.take(&place, BLOCK_HEAD_BYTES as u64 - 4)?].concat();
        let (block, name) = self.check_head(&place, &head)?;
        let place = format!("{place} (table `{name}`)");
        let payload = self.take(&place, block.payload_bytes().unwrap_or(u64::MAX))?;
        self.check_crc(&place, &[&head, &payload])?;
        self.blocks += 1;
        self.rows += u64::from(block.rows);
        let rows = decode_rows(&block, &payload).map_err(|error| self.inconsistent(format!("{place}: {error}")))?;
        Ok(Some(Block { table: block.table as usize, rows }))
    }

    fn read_header(&mut self) -> Result<Header, StorageError> {
        const PLACE: &str = "the header";
        let preamble = self.take(PLACE, PREAMBLE_BYTES as u64)?;
        let (magic, rest) = preamble.split_at(MAGIC.len());
        if magic != MAGIC {
            let found = magic.try_into().unwrap_or_default();
            return Err(StorageError::Magic { path: self.path.clone(), found });
        }
        let version = word(rest, 0);
        if version != VERSION {
            return Err(StorageError::Version { path: self.path.clone(), found: version, expected: VERSION });
        }
        let json = self.take(PLACE, u64::from(word(rest, 1)))?;
        self.check_crc(PLACE, &[&preamble, &json])?;
        serde_json::from_slice(&json).map_err(|source| StorageError::Header { path: self.path.clone(), source })
    }

    /// The head's numbers, and the name of its table. A damaged head shows here or, at the latest, in the CRC.
    fn check_head(&self, place: &str, head: &[u8]) -> Result<(BlockHead, String), StorageError> {
        let buckets = [word(head, 1), word(head, 2)];
        let block = BlockHead { table: word(head, 0), buckets, rows: word(head, 3), stride: word(head, 4) };
        let Some(table) = self.header.tables.get(block.table as usize) else {
            let tables = self.header.tables.len();
            return Err(self.inconsistent(format!("{place} is of table {}, the header has {tables}", block.table)));
        };
        if table.stride != block.stride as usize {
            let (name, found, stated) = (&table.name, block.stride, table.stride);
            let problem = format!("{place} has {found} values a row, the header says {stated} for table `{name}`");
            return Err(self.inconsistent(problem));
        }
        Ok((block, table.name.clone()))
    }

    fn read_end(&mut self, mark: Vec<u8>) -> Result<(), StorageError> {
        const PLACE: &str = "the end";
        let counts = self.take(PLACE, END_BYTES as u64)?;
        self.check_crc(PLACE, &[&mark, &counts])?;
        let count = |index: usize| u64::from(word(&counts, 2 * index)) | u64::from(word(&counts, 2 * index + 1)) << 32;
        if [count(0), count(1)] != [self.blocks, self.rows] {
            let (blocks, rows) = (self.blocks, self.rows);
            let problem =
                format!("it should hold {} rows in {} blocks, and holds {rows} in {blocks}", count(1), count(0));
            return Err(self.inconsistent(problem));
        }
        if self.left > 0 {
            return Err(self.inconsistent(format!("{} bytes follow the end", self.left)));
        }
        Ok(())
    }

    fn take(&mut self, place: &str, bytes: u64) -> Result<Vec<u8>, StorageError> {
        if bytes > self.left {
            let (path, place) = (self.path.clone(), place.to_owned());
            return Err(StorageError::Truncated { path, place, needed: bytes, left: self.left });
        }
        let mut taken = vec![0; bytes as usize];
        let read = self.from.read_exact(&mut taken);
        read.map_err(|source: io::Error| StorageError::Read { path: self.path.clone(), source })?;
        self.left -= bytes;
        Ok(taken)
    }

    fn check_crc(&mut self, place: &str, parts: &[&[u8]]) -> Result<(), StorageError> {
        let expected = word(&self.take(place, CRC_BYTES as u64)?, 0);
        let mut crc = crc32fast::Hasher::new();
        parts.iter().for_each(|part| crc.update(part));
        let found = crc.finalize();
        if found == expected {
            return Ok(());
        }
        Err(StorageError::Corrupt { path: self.path.clone(), place: place.to_owned(), expected, found })
    }

    fn inconsistent(&self, problem: String) -> StorageError {
        StorageError::Inconsistent { path: self.path.clone(), problem }
    }
}

/// Word `index` of bytes that were read whole.
fn word(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(index).map_or(0, |word| u32::from_le_bytes(*word))
}

fn decode_rows(block: &BlockHead, payload: &[u8]) -> Result<Rows, PackError> {
    let (ids, slots) = payload.split_at(8 * block.rows as usize);
    let mut values = vec![0.0; slots.len() / 4];
    decode_values(slots, Encoding::F32 as i32, &mut values)?;
    let slots = values.into_iter().map(f32::to_bits).collect();
    Ok(Rows { ids: decode_ids(ids), slots, marks: Vec::new() })
}
