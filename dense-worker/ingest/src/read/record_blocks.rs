//! Text divided into blocks of whole records, whose quoted fields may hold line breaks. In bounded memory.
//!
//! A split `[start, end)` owns the records whose first byte is in it, as it owns lines ([`super::line_blocks`]). Reading
//! starts where a record does, which [`super::record_starts`] finds for a split in the middle of a file.

use std::io::{self, Read};

use super::line_blocks::BlockLimits;
use super::records::{RecordScanner, RecordSyntax};

/// Bytes to read after the end of a split, for the end of its last record.
const RECORD_END: u64 = 4 << 10;

/// Divides a text into blocks.
#[derive(Debug)]
pub(crate) struct RecordBlocks<R> {
    source: R,
    syntax: RecordSyntax,
    limits: BlockLimits,
    /// Text that was read but not returned yet.
    carry: Vec<u8>,
    /// Offset of the first byte of `carry`, which starts a record.
    at: u64,
    /// Records that start here or later belong to the next split.
    end: u64,
    is_exhausted: bool,
    /// Line breaks of records that were too long, without those that were returned.
    skipped_lines: u64,
}

impl<R: Read> RecordBlocks<R> {
    /// Divides the records that start before `end`. `source` is at byte `at`, the start of a record.
    pub(crate) fn new(source: R, syntax: RecordSyntax, at: u64, end: u64, limits: BlockLimits) -> Self {
        Self { source, syntax, limits, carry: Vec::new(), at, end, is_exhausted: false, skipped_lines: 0 }
    }

    /// Offset of the next block.
    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    /// The source of the text.
    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// Line breaks that were skipped since the last call.
    pub(crate) fn take_skipped_lines(&mut self) -> u64 {
        std::mem::take(&mut self.skipped_lines)
    }

    fn portion(&self) -> usize {
        let owned = self.end.saturating_sub(self.at).saturating_add(RECORD_END);
        usize::try_from(owned).unwrap_or(usize::MAX).min(self.limits.block_bytes)
    }

    /// Puts the next records into `block`; false at the end. Each record ends with `\n`, except the last one of a text without
    /// a final line end. Of a record that is too long, so much is kept as shows it.
    pub(crate) fn next_block(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        block.clear();
        if self.at >= self.end {
            return Ok(false);
        }
        block.append(&mut self.carry);
        let (mut scanner, mut scanned, mut whole) = (RecordScanner::new(self.syntax.clone()), 0, 0);
        let mut wanted = self.portion().max(block.len() + 1);
        loop {
            self.fill(block, wanted)?;
            while let Some(next) = scanner.next_end(block, scanned) {
                (scanned, whole) = (next, next);
                if self.at + next as u64 >= self.end {
                    return Ok(self.cut(block, whole));
                }
            }
            scanned = block.len();
            if self.is_exhausted {
                return Ok(self.cut(block, scanned));
            }
            if whole > 0 {
                return Ok(self.cut(block, whole));
            }
            if block.len() > self.limits.max_line_bytes {
                self.shorten(block, scanner)?;
                return Ok(true);
            }
            wanted = block.len() * 2;
        }
    }

    /// Keeps the text after the first `length` bytes for the next block.
    fn cut(&mut self, block: &mut Vec<u8>, length: usize) -> bool {
        self.carry.extend_from_slice(&block[length..]);
        block.truncate(length);
        self.at += length as u64;
        length > 0
    }

    /// `block` is the start of one long record, at whose end `scanner` is. Skips the rest of it.
    fn shorten(&mut self, block: &mut Vec<u8>, mut scanner: RecordScanner) -> io::Result<()> {
        self.at += block.len() as u64;
        let mut lines = count_lines(block);
        block.truncate(self.limits.max_line_bytes + 1);
        block.push(b'\n');
        let mut rest = Vec::new();
        while !self.is_exhausted {
            rest.clear();
            let portion = self.limits.block_bytes;
            self.fill(&mut rest, portion)?;
            let end = scanner.next_end(&rest, 0);
            let skipped = end.unwrap_or(rest.len());
            self.at += skipped as u64;
            lines += count_lines(&rest[..skipped]);
            if end.is_some() {
                self.carry.extend_from_slice(&rest[skipped..]);
                break;
            }
        }
        self.skipped_lines += lines.saturating_sub(count_lines(block));
        Ok(())
    }

    /// Reads until `buffer` holds `wanted` bytes or the text ends.
    fn fill(&mut self, buffer: &mut Vec<u8>, wanted: usize) -> io::Result<()> {
        let missing = wanted.saturating_sub(buffer.len()) as u64;
        let read = self.source.by_ref().take(missing).read_to_end(buffer)?;
        self.is_exhausted |= (read as u64) < missing;
        Ok(())
    }
}

fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture;

    fn blocks(text: &str, limits: BlockLimits) -> (Vec<String>, u64) {
        let mut blocks = RecordBlocks::new(text.as_bytes(), fixture::quoted_records(), 0, u64::MAX, limits);
        let (mut found, mut block, mut skipped) = (Vec::new(), Vec::new(), 0);
        while blocks.next_block(&mut block).unwrap() {
            found.push(String::from_utf8(block.clone()).unwrap());
            skipped += blocks.take_skipped_lines();
        }
        assert_eq!(blocks.offset(), text.len() as u64);
        (found, skipped)
    }

    #[test]
    fn a_record_longer_than_a_block_stays_whole() {
        let limits = BlockLimits { block_bytes: 8, max_line_bytes: 1_000 };
        let (found, _) = blocks("a,\"1\n2\n3\n4\n5\n6\n7\n\"\nb\n", limits);
        assert_eq!(found.concat(), "a,\"1\n2\n3\n4\n5\n6\n7\n\"\nb\n");
        assert!(found[0].starts_with("a,\"1\n2\n3\n4\n5\n6\n7\n\"\n"), "{found:?}");
    }

    #[test]
    fn a_quote_that_is_never_closed_takes_bounded_memory() {
        let text = format!("a,\"{}", "x\n".repeat(50_000));
        let limits = BlockLimits { block_bytes: 64, max_line_bytes: 100 };
        let (found, skipped) = blocks(&text, limits);
        assert_eq!((found.len(), found[0].len()), (1, 102));
        assert_eq!(found[0].lines().count() as u64 + skipped, 50_000);
    }

    proptest! {
        #[test]
        fn blocks_are_the_text_and_end_where_records_do(text in "([ab\n]{0,3}[,\n]|\"[a,\n]{0,9}\"[,\n]){0,20}", block_bytes in 1_usize..40) {
            let (found, skipped) = blocks(&text, BlockLimits { block_bytes, max_line_bytes: 1_000 });
            prop_assert_eq!((found.concat(), skipped), (text.clone(), 0));
            for block in found.iter().rev().skip(1) {
                let mut scanner = RecordScanner::new(fixture::quoted_records());
                let mut from = 0;
                while let Some(end) = scanner.next_end(block.as_bytes(), from) {
                    from = end;
                }
                prop_assert_eq!(from, block.len());
            }
        }
    }
}
