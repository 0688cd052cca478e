//! Writes a file of rows.

use std::io::{self, Write};
use std::ops::Range;

use sha2::{Digest, Sha256};
use zagros_protocol::{RowKey, TableId, bucket_of};
use zagros_table::{RowBatch, TableTime};
use zagros_zip::ZipEq;

use crate::snapshot::format::{
    BLOCK_BYTES, BlockContent, BlockHeader, BlockKind, DELTA_VERSION, MAGIC, SnapshotHeader, TableHeader, VERSION,
};

/// A file that is being written. The caller chooses the target and makes the file appear whole or not at all.
pub struct SnapshotWriter<W> {
    to: SummedOutput<W>,
    header: SnapshotHeader,
    blocks: u64,
    rows: u64,
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenFile {
    pub rows: u64,
    pub bytes: u64,
    /// SHA-256 of the file. A CRC-32 of the whole file would show nothing: each part ends with its own CRC, and the CRC
    /// of data followed by its CRC depends on the length alone.
    pub sha256: [u8; 32],
}

impl<W: Write> SnapshotWriter<W> {
    pub fn start(to: W, header: SnapshotHeader) -> io::Result<Self> {
        let mut summed = SummedOutput { to, bytes: 0, sha256: Sha256::new() };
        let json = serde_json::to_vec(&header)?;
        let length = u32::try_from(json.len()).map_err(io::Error::other)?;
        let version = if header.follows.is_some() { DELTA_VERSION } else { VERSION };
        let preamble = [&MAGIC[..], &version.to_le_bytes(), &length.to_le_bytes()].concat();
        summed.write_with_crc(&[&preamble, &json])?;
        Ok(Self { to: summed, header, blocks: 0, rows: 0, payload: Vec::new() })
    }

    pub fn write_content(&mut self, table: u32, content: &BlockContent) -> io::Result<()> {
        match content {
            BlockContent::Rows(rows) => self.write_rows(table, rows),
            BlockContent::Counts { ids, counts } => self.write_counts(table, ids, counts),
            BlockContent::Sketch { stripe, cells } => self.write_sketch(table, *stripe, cells),
            BlockContent::Clock(clock) => self.write_clock(*clock),
            BlockContent::Removed(ids) => self.write_removed_ids(table, ids),
        }
    }

    /// Writes a run of rows of a table, in any order. In a larger run, a block has fewer buckets.
    pub fn write_rows(&mut self, table: u32, rows: &RowBatch) -> io::Result<()> {
        let header = self.table_header(table)?;
        let (width, words) = (header.width, header.row_words());
        check_length("slots", rows.slots.len(), rows.ids.len() * width)?;
        check_length("values of access metadata", rows.access.len(), rows.ids.len() * (words - width))?;
        self.write_keyed(BlockKind::Rows, (table, words), &rows.ids, |payload, order, range| {
            for position in order.positions(range) {
                put_words(payload, &rows.slots[position * width..][..width]);
            }
            if words > width {
                order.positions(range).for_each(|position| put_words(payload, &rows.access[position..=position]));
            }
        })?;
        self.rows += rows.ids.len() as u64;
        Ok(())
    }

    pub fn write_counts(&mut self, table: u32, ids: &[u64], counts: &[u32]) -> io::Result<()> {
        check_length("counts", counts.len(), ids.len())?;
        self.write_keyed(BlockKind::Counts, (table, 1), ids, |payload, order, range| {
            order.positions(range).for_each(|position| put_words(payload, &counts[position..=position]));
        })
    }

    /// Writes the ids of rows that are gone, in a delta.
    pub fn write_removed_ids(&mut self, table: u32, ids: &[u64]) -> io::Result<()> {
        self.write_keyed(BlockKind::Removed, (table, 0), ids, |_, _, _| ())
    }

    pub fn write_sketch(&mut self, table: u32, stripe: u32, cells: &[u32]) -> io::Result<()> {
        self.table_header(table)?;
        self.payload.clear();
        put_words(&mut self.payload, cells);
        let words = u32::try_from(cells.len()).map_err(io::Error::other)?;
        let (kind, from, until) = (BlockKind::Sketch, stripe, stripe + 1);
        self.finish_block(BlockHeader { kind, table, from, until, entries: 1, words })
    }

    pub fn write_clock(&mut self, clock: TableTime) -> io::Result<()> {
        self.write_numbers(BlockKind::Clock, [clock.steps, clock.seconds])
    }

    pub fn finish(self) -> io::Result<WrittenFile> {
        Ok(self.finish_into()?.0)
    }

    /// As [`Self::finish`], for an owned target: gives it back, to be flushed and synced.
    pub fn finish_into(mut self) -> io::Result<(WrittenFile, W)> {
        self.write_numbers(BlockKind::End, [self.blocks, self.rows])?;
        let (rows, SummedOutput { to, bytes, sha256 }) = (self.rows, self.to);
        Ok((WrittenFile { rows, bytes, sha256: sha256.finalize().into() }, to))
    }

    fn table_header(&self, table: u32) -> io::Result<&TableHeader> {
        let tables = self.header.tables.len();
        let unknown = || io::Error::other(format!("a block of table {table} in a file of {tables} tables"));
        self.header.tables.get(table as usize).ok_or_else(unknown)
    }

    /// Writes a block for each range of ids. Its payload is the ids, and the words that `put` adds for their positions.
    fn write_keyed(
        &mut self,
        kind: BlockKind,
        (table, words): (u32, usize),
        ids: &[u64],
        put: impl Fn(&mut Vec<u8>, &RowOrder, &RowRange),
    ) -> io::Result<()> {
        let order = RowOrder::new(self.table_header(table)?.number, self.header.buckets.max(1), ids);
        for range in order.block_ranges(BLOCK_BYTES / (8 + 4 * words)) {
            let (from, until, entries) = (range.buckets.start, range.buckets.end, range.rows.len() as u32);
            let head = BlockHeader { kind, table, from, until, entries, words: words as u32 };
            self.payload.clear();
            self.payload.reserve(usize::try_from(head.payload_bytes()).map_err(io::Error::other)?);
            order.ids(&range).for_each(|id| self.payload.extend(id.to_le_bytes()));
            put(&mut self.payload, &order, &range);
            self.finish_block(head)?;
        }
        Ok(())
    }

    fn write_numbers(&mut self, kind: BlockKind, numbers: [u64; 2]) -> io::Result<()> {
        self.payload.clear();
        numbers.iter().for_each(|number| self.payload.extend(number.to_le_bytes()));
        self.finish_block(BlockHeader { kind, table: 0, from: 0, until: 0, entries: 1, words: 4 })
    }

    fn finish_block(&mut self, head: BlockHeader) -> io::Result<()> {
        let head = head.to_bytes();
        let head = [&head[..], &crc32fast::hash(&head).to_le_bytes()].concat();
        self.to.write_with_crc(&[&head, &self.payload])?;
        self.blocks += 1;
        Ok(())
    }
}

fn check_length(what: &str, found: usize, expected: usize) -> io::Result<()> {
    let differs = || io::Error::other(format!("{found} {what} to write, expected {expected}"));
    if found == expected { Ok(()) } else { Err(differs()) }
}

fn put_words(payload: &mut Vec<u8>, words: &[u32]) {
    let start = payload.len();
    payload.resize(start + 4 * words.len(), 0);
    // The line above made room for four bytes per word.
    for (bytes, word) in payload[start..].as_chunks_mut::<4>().0.iter_mut().zip_eq(words) {
        *bytes = word.to_le_bytes();
    }
}

/// Counts and hashes the bytes that pass through.
struct SummedOutput<W> {
    to: W,
    bytes: u64,
    sha256: Sha256,
}

impl<W: Write> SummedOutput<W> {
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

/// The order of rows in a file: sorted by (bucket, id), and divided into ranges of a block each.
struct RowOrder {
    places: Vec<(u32, u64, u32)>,
}

/// Consecutive rows in this order, and their buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RowRange {
    rows: Range<usize>,
    /// `[first, end)`.
    buckets: Range<u32>,
}

impl RowOrder {
    fn new(number: u32, buckets: u32, ids: &[u64]) -> Self {
        let bucket = |id| bucket_of(RowKey { table: TableId(number), id }, buckets);
        let place = |(position, id): (usize, &u64)| (bucket(*id), *id, position as u32);
        let mut places: Vec<_> = ids.iter().enumerate().map(place).collect();
        places.sort_unstable();
        Self { places }
    }

    fn block_ranges(&self, most: usize) -> impl Iterator<Item = RowRange> {
        let most = most.max(1);
        (0..self.places.len()).step_by(most).map(move |start| {
            let rows = start..(start + most).min(self.places.len());
            // A range has at least one row, so these positions exist.
            let buckets = self.places[rows.start].0..self.places[rows.end - 1].0 + 1;
            RowRange { rows, buckets }
        })
    }

    fn ids(&self, range: &RowRange) -> impl ExactSizeIterator<Item = u64> {
        self.places[range.rows.clone()].iter().map(|place| place.1)
    }

    /// Original positions of a range's rows, in order.
    fn positions(&self, range: &RowRange) -> impl ExactSizeIterator<Item = usize> {
        self.places[range.rows.clone()].iter().map(|place| place.2 as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_consecutive_and_have_each_row_once(ids in prop::collection::vec(any::<u64>(), 0..300), most in 1_usize..40) {
            let order = RowOrder::new(3, 64, &ids);
            let (mut seen, mut last) = (Vec::new(), 0);
            for range in order.block_ranges(most) {
                prop_assert!(range.rows.len() <= most && !range.rows.is_empty());
                prop_assert!(range.buckets.start >= last);
                last = range.buckets.end - 1;
                for (id, position) in order.ids(&range).zip_eq(order.positions(&range)) {
                    prop_assert_eq!(ids[position], id);
                    let bucket = bucket_of(RowKey { table: TableId(3), id }, 64);
                    prop_assert!(range.buckets.contains(&bucket));
                    seen.push(position);
                }
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..ids.len()).collect::<Vec<_>>());
        }
    }
}
