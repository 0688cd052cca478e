//! Text divided into blocks of whole records, whose quoted fields may hold line breaks. In bounded memory.
//!
//! A split `[start, end)` owns the records whose first byte is in it, as it owns lines ([`super::line_blocks`]). Reading
//! starts where a record does, which [`super::record_starts`] finds for a split in the middle of a file.

use std::io::{self, Read};

use super::line_blocks::{BlockLimits, LineBlocks};
use super::records::{RecordScanner, RecordSyntax};

#[derive(Debug)]
pub(crate) struct RecordBlocks<R> {
    /// What was not returned yet, and where it is; it starts a record. Records that start at its end or later belong to the next split.
    pub(crate) text: LineBlocks<R>,
    syntax: RecordSyntax,
}

impl<R: Read> RecordBlocks<R> {
    /// Divides the records that start before `end`. `source` is at byte `at`, the start of a record.
    pub(crate) fn new(source: R, syntax: RecordSyntax, at: u64, end: u64, limits: BlockLimits) -> Self {
        Self { text: LineBlocks::new(source, at, end, limits), syntax }
    }

    /// Puts the next records into `block`; false at the end. Each record ends with `\n`, except the last one of a text without
    /// a final line end. Of a line that is too long, so much is kept as shows it. A record of several lines that is too long is an error:
    /// a stray quote has probably made it of many rows.
    pub(crate) fn next_block(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        block.clear();
        if self.text.at >= self.text.end {
            return Ok(false);
        }
        block.append(&mut self.text.carry);
        let (mut scanner, mut scanned, mut whole) = (RecordScanner::new(self.syntax.clone()), 0, 0);
        let mut wanted = self.text.portion().max(block.len() + 1);
        loop {
            self.text.fill(block, wanted)?;
            while let Some(next) = scanner.next_end(block, scanned) {
                (scanned, whole) = (next, next);
                if self.text.at + next as u64 >= self.text.end {
                    return Ok(self.text.cut(block, whole));
                }
            }
            scanned = block.len();
            if self.text.is_exhausted {
                return Ok(self.text.cut(block, scanned));
            }
            if whole > 0 {
                return Ok(self.text.cut(block, whole));
            }
            if block.len() > self.text.limits.max_line_bytes {
                self.shorten(block, scanner)?;
                return Ok(true);
            }
            wanted = block.len() * 2;
        }
    }

    /// `block` is the start of one long record, at whose end `scanner` is. Skips the rest of it.
    fn shorten(&mut self, block: &mut Vec<u8>, mut scanner: RecordScanner) -> io::Result<()> {
        let start = self.text.at;
        self.text.at += block.len() as u64;
        let mut breaks = inner_breaks(block);
        let mut is_behind_break = block.last() == Some(&b'\n');
        block.truncate(self.text.limits.max_line_bytes + 1);
        block.push(b'\n');
        let mut rest = Vec::new();
        while !self.text.is_exhausted && breaks == 0 {
            rest.clear();
            let portion = self.text.limits.block_bytes;
            self.text.fill(&mut rest, portion)?;
            let end = scanner.next_end(&rest, 0);
            let skipped = &rest[..end.unwrap_or(rest.len())];
            self.text.at += skipped.len() as u64;
            breaks += u64::from(is_behind_break && !skipped.is_empty()) + inner_breaks(skipped);
            is_behind_break = skipped.last() == Some(&b'\n');
            if end.is_some() {
                self.text.carry.extend_from_slice(&rest[skipped.len()..]);
                break;
            }
        }
        if breaks > 0 {
            let limit = self.text.limits.max_line_bytes;
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "the record at byte {start} goes over several lines and is longer than {limit} bytes \
                     (data.max_line_bytes), so it may be many rows; close its quote, double a quote inside a field, or \
                     remove data.quoted_breaks"
                ),
            ));
        }
        Ok(())
    }
}

fn inner_breaks(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', &text[..text.len().saturating_sub(1)]).count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture;

    fn blocks(text: &str, limits: BlockLimits) -> io::Result<Vec<String>> {
        let mut blocks = RecordBlocks::new(text.as_bytes(), fixture::quoted_records(), 0, u64::MAX, limits);
        let (mut found, mut block) = (Vec::new(), Vec::new());
        while blocks.next_block(&mut block)? {
            found.push(String::from_utf8(block.clone()).unwrap());
        }
        assert_eq!(blocks.text.at, text.len() as u64);
        Ok(found)
    }

    #[test]
    fn a_record_longer_than_a_block_stays_whole() {
        let limits = BlockLimits { block_bytes: 8, max_line_bytes: 1_000 };
        let found = blocks("a,\"1\n2\n3\n4\n5\n6\n7\n\"\nb\n", limits).unwrap();
        assert_eq!(found.concat(), "a,\"1\n2\n3\n4\n5\n6\n7\n\"\nb\n");
        assert!(found[0].starts_with("a,\"1\n2\n3\n4\n5\n6\n7\n\"\n"), "{found:?}");
    }

    #[test]
    fn a_quote_that_is_never_closed_is_an_error_in_bounded_memory() {
        let limits = || BlockLimits { block_bytes: 64, max_line_bytes: 100 };
        let error = blocks(&format!("b\na,\"{}", "x\n".repeat(50_000)), limits()).unwrap_err().to_string();
        assert!(error.contains("the record at byte 2 goes over several lines and is longer than 100 bytes"), "{error}");
        for long in ["x".repeat(500), format!("\"{}\"", "x".repeat(500))] {
            let found = blocks(&format!("a\n{long}\nb\n"), limits()).unwrap();
            assert_eq!((found.len(), found[1].len(), found[2].as_str()), (3, 102, "b\n"));
        }
    }

    proptest! {
        #[test]
        fn blocks_are_the_text_and_end_where_records_do(text in "([ab\n]{0,3}[,\n]|\"[a,\n]{0,9}\"[,\n]){0,20}", block_bytes in 1_usize..40) {
            let found = blocks(&text, BlockLimits { block_bytes, max_line_bytes: 1_000 }).unwrap();
            prop_assert_eq!(found.concat(), text.clone());
            for block in found.iter().rev().skip(1) {
                let mut scanner = RecordScanner::new(fixture::quoted_records());
                prop_assert_eq!(scanner.record_ends(block.as_bytes()).last(), Some(block.len()));
            }
        }
    }
}
