//! Writes a file of rows.

use std::io::{self, Write};

use sha2::{Digest, Sha256};
use zagros_table::RowBatch;
use zagros_zip::ZipEq;

use crate::block::Clock;
use crate::format::{BLOCK_BYTES, BlockHead, Header, Kind, MAGIC, TableHeader, VERSION};
use crate::run::{Order, RowRange};

/// A file in the making. Where it goes is the caller's matter, and that it appears whole or not at all.
pub struct Writer<W> {
    to: Summed<W>,
    header: Header,
    blocks: u64,
    rows: u64,
    /// A payload in the making, kept from block to block.
    payload: Vec<u8>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// SHA-256 of the file. Its CRC-32 would say nothing: each part ends in its own, and that of a text with its CRC depends
    /// on the length alone.
    pub sha256: [u8; 32],
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn start(to: W, header: Header) -> io::Result<Self> {
        let mut to = Summed { to, bytes: 0, sha256: Sha256::new() };
        let json = serde_json::to_vec(&header)?;
        let length = u32::try_from(json.len()).map_err(io::Error::other)?;
        let preamble = [&MAGIC[..], &VERSION.to_le_bytes(), &length.to_le_bytes()].concat();
        to.write_with_crc(&[&preamble, &json])?;
        Ok(Self { to, header, blocks: 0, rows: 0, payload: Vec::new() })
    }

    /// Writes a run of rows of a table, in any order. The larger the run, the fewer buckets in a block.
    ///
    /// # Errors
    /// Those of `to`, and when a column has another length than the table's rows need.
    pub fn rows(&mut self, table: u32, rows: &RowBatch) -> io::Result<()> {
        let header = self.table(table)?;
        let (width, words, number) = (header.width, header.row_words(), header.number);
        check("slots", rows.slots.len(), rows.ids.len() * width)?;
        check("values of access metadata", rows.access.len(), rows.ids.len() * (words - width))?;
        let order = Order::of(number, self.header.buckets.max(1), &rows.ids);
        for range in order.ranges(BLOCK_BYTES / (8 + 4 * words)) {
            self.keyed(Kind::Rows, table, words, &range, &order)?;
            for position in order.positions(&range) {
                put_words(&mut self.payload, &rows.slots[position * width..][..width]);
            }
            if words > width {
                order
                    .positions(&range)
                    .for_each(|position| put_words(&mut self.payload, &rows.access[position..=position]));
            }
            self.finish_block(block_of(Kind::Rows, table, words, &range))?;
            self.rows += range.rows.len() as u64;
        }
        Ok(())
    }

    /// Writes how often ids without a row were counts.
    ///
    /// # Errors
    /// Those of `to`, and when there is not one count for each id.
    pub fn counts(&mut self, table: u32, ids: &[u64], counts: &[u32]) -> io::Result<()> {
        check("counts", counts.len(), ids.len())?;
        let order = Order::of(self.table(table)?.number, self.header.buckets.max(1), ids);
        for range in order.ranges(BLOCK_BYTES / 12) {
            self.keyed(Kind::Counts, table, 1, &range, &order)?;
            order.positions(&range).for_each(|position| put_words(&mut self.payload, &counts[position..=position]));
            self.finish_block(block_of(Kind::Counts, table, 1, &range))?;
        }
        Ok(())
    }

    /// Writes the sketch that one stripe of a table counts frequency counts with.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn sketch(&mut self, table: u32, stripe: u32, cells: &[u32]) -> io::Result<()> {
        self.table(table)?;
        self.payload.clear();
        put_words(&mut self.payload, cells);
        let words = u32::try_from(cells.len()).map_err(io::Error::other)?;
        self.finish_block(BlockHead { kind: Kind::Sketch, table, from: stripe, until: stripe + 1, entries: 1, words })
    }

    /// Writes the time that marks are reported by.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn clock(&mut self, clock: Clock) -> io::Result<()> {
        self.numbers(Kind::Clock, [clock.steps, clock.seconds])
    }

    /// Writes the end.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn finish(mut self) -> io::Result<Written> {
        self.numbers(Kind::End, [self.blocks, self.rows])?;
        Ok(Written { rows: self.rows, bytes: self.to.bytes, sha256: self.to.sha256.finalize().into() })
    }

    fn table(&self, table: u32) -> io::Result<&TableHeader> {
        let tables = self.header.tables.len();
        let unknown = || io::Error::other(format!("a block of table {table} in a file of {tables} tables"));
        self.header.tables.get(table as usize).ok_or_else(unknown)
    }

    /// Starts the payload of a block with its ids.
    fn keyed(&mut self, kind: Kind, table: u32, words: usize, range: &RowRange, order: &Order) -> io::Result<()> {
        let bytes = block_of(kind, table, words, range).payload_bytes();
        self.payload.clear();
        self.payload.reserve(usize::try_from(bytes).map_err(io::Error::other)?);
        order.ids(range).for_each(|id| self.payload.extend(id.to_le_bytes()));
        Ok(())
    }

    fn numbers(&mut self, kind: Kind, numbers: [u64; 2]) -> io::Result<()> {
        self.payload.clear();
        numbers.iter().for_each(|number| self.payload.extend(number.to_le_bytes()));
        self.finish_block(BlockHead { kind, table: 0, from: 0, until: 0, entries: 1, words: 4 })
    }

    fn finish_block(&mut self, head: BlockHead) -> io::Result<()> {
        let head = head.to_bytes();
        let head = [&head[..], &crc32fast::hash(&head).to_le_bytes()].concat();
        self.to.write_with_crc(&[&head, &self.payload])?;
        self.blocks += 1;
        Ok(())
    }
}

fn block_of(kind: Kind, table: u32, words: usize, range: &RowRange) -> BlockHead {
    let (entries, words) = (range.rows.len() as u32, words as u32);
    BlockHead { kind, table, from: range.buckets.start, until: range.buckets.end, entries, words }
}

fn check(what: &str, found: usize, expected: usize) -> io::Result<()> {
    let differs = || io::Error::other(format!("{found} {what} to write, expected {expected}"));
    if found == expected { Ok(()) } else { Err(differs()) }
}

fn put_words(payload: &mut Vec<u8>, words: &[u32]) {
    let start = payload.len();
    payload.resize(start + 4 * words.len(), 0);
    // Four bytes for each word, by the line above.
    for (bytes, word) in payload[start..].as_chunks_mut::<4>().0.iter_mut().zip_eq(words) {
        *bytes = word.to_le_bytes();
    }
}

/// Counts and sums what passes.
struct Summed<W> {
    to: W,
    bytes: u64,
    sha256: Sha256,
}

impl<W: Write> Summed<W> {
    fn write_with_crc(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut crc = crc32fast::Hasher::new();
        parts.iter().for_each(|part| crc.update(part));
        parts.iter().try_for_each(|part| self.write(part))?;
        self.write(&crc.finalize().to_le_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sha256.update(bytes);
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}
