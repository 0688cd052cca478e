//! Text divided into blocks of whole lines, or of whole records whose quoted fields may hold line breaks. In bounded memory.
//!
//! A split `[start, end)` owns the lines whose first byte is in it. Let `b(x)` be one past the first line end at or after
//! byte `x − 1`, and `b(0)` = 0. The split's text then goes from `b(start)` to `b(end)`. Neighbours agree on the border, so
//! each line has one owner. A byte does not show whether it is inside quotes, so a file of such records is one split.

use std::io::{self, Read};

use super::records::{RecordScanner, RecordSyntax};

/// Bytes to read after the end of a split, for the end of its last line or record: the length of a usual line.
const LINE_END: u64 = 4 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLimits {
    /// Bytes of a block, if lines are shorter.
    pub(crate) block_bytes: usize,
    /// Of a longer line, `max_line_bytes + 1` bytes are kept, which shows that it is too long. The rest is skipped, unless
    /// it is inside a block anyway.
    pub(crate) max_line_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct LineBlocks<R> {
    pub(super) source: R,
    limits: BlockLimits,
    records: Option<RecordSyntax>,
    /// Text that was read but not returned yet.
    carry: Vec<u8>,
    /// Offset of the first byte of `carry`.
    pub(super) at: u64,
    /// Lines that start here or later belong to the next split.
    end: u64,
    is_exhausted: bool,
}

impl<R: Read> LineBlocks<R> {
    /// Divides the lines that start before `end`. `source` is at byte `at`, the start of a line.
    pub(crate) fn new(source: R, at: u64, end: u64, limits: BlockLimits) -> Self {
        Self { source, limits, records: None, carry: Vec::new(), at, end, is_exhausted: false }
    }

    /// Divides records, if there is a syntax of them.
    pub(crate) fn with_records(self, records: Option<RecordSyntax>) -> Self {
        Self { records, ..self }
    }

    /// How much to read at once: a block, or the remaining split with the end of its last line or record.
    fn portion(&self) -> usize {
        let owned = self.end.saturating_sub(self.at).saturating_add(LINE_END);
        usize::try_from(owned).unwrap_or(usize::MAX).min(self.limits.block_bytes)
    }

    /// Skips to the byte after the next line end.
    pub(crate) fn skip_line(&mut self) -> io::Result<()> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.carry) {
                self.carry.drain(..=end);
                self.at += end as u64 + 1;
                return Ok(());
            }
            self.at += self.carry.len() as u64;
            self.carry.clear();
            if self.is_exhausted {
                return Ok(());
            }
            let mut chunk = std::mem::take(&mut self.carry);
            let portion = self.portion();
            self.fill(&mut chunk, portion)?;
            self.carry = chunk;
        }
    }

    /// Puts the next lines into `block`; false at the end. Each line ends with `\n`, except the last line of a text without
    /// a final line end. Of a line that is too long, so much is kept as shows it. A record of several lines that is too long is an error:
    /// a stray quote has probably made it of many rows.
    pub(crate) fn next_block(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        block.clear();
        if self.at >= self.end {
            return Ok(false);
        }
        block.append(&mut self.carry);
        let mut wanted = self.portion().max(block.len() + 1);
        loop {
            self.fill(block, wanted)?;
            if let Some(length) = self.whole_length(block) {
                return Ok(self.cut(block, length));
            }
            if block.len() > self.limits.max_line_bytes {
                self.shorten(block)?;
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

    /// How many bytes of `block`, which starts at `self.at`, are whole lines of this split; `None` if the end of its first
    /// line is not in it.
    fn whole_length(&self, block: &[u8]) -> Option<usize> {
        if let Some(records) = &self.records {
            if self.is_exhausted {
                return Some(block.len());
            }
            let (mut scanner, mut whole) = (RecordScanner::new(records.clone()), None);
            while let Some(end) = scanner.next_end(block, whole.unwrap_or(0)) {
                whole = Some(end);
            }
            return whole;
        }
        let last_owned = usize::try_from(self.end - 1 - self.at).unwrap_or(usize::MAX);
        if let Some(rest) = block.get(last_owned..)
            && let Some(end) = memchr::memchr(b'\n', rest)
        {
            return Some(last_owned + end + 1);
        }
        if self.is_exhausted {
            return Some(block.len());
        }
        memchr::memrchr(b'\n', block).map(|end| end + 1)
    }

    /// `block` is the start of one long line. Keeps as much as shows that the line is too long.
    fn shorten(&mut self, block: &mut Vec<u8>) -> io::Result<()> {
        if let Some(records) = self.records.clone() {
            return self.shorten_record(RecordScanner::new(records), block);
        }
        self.at += block.len() as u64;
        block.truncate(self.limits.max_line_bytes + 1);
        block.push(b'\n');
        self.skip_line()
    }

    /// `block` is the start of one long record. Skips the rest of it.
    fn shorten_record(&mut self, mut scanner: RecordScanner, block: &mut Vec<u8>) -> io::Result<()> {
        // The end of the record is not in the block.
        scanner.next_end(block, 0);
        let start = self.at;
        self.at += block.len() as u64;
        let mut breaks = inner_breaks(block);
        let mut is_behind_break = block.last() == Some(&b'\n');
        block.truncate(self.limits.max_line_bytes + 1);
        block.push(b'\n');
        let mut rest = Vec::new();
        while !self.is_exhausted && breaks == 0 {
            rest.clear();
            self.fill(&mut rest, self.limits.block_bytes)?;
            let end = scanner.next_end(&rest, 0);
            let skipped = &rest[..end.unwrap_or(rest.len())];
            self.at += skipped.len() as u64;
            breaks += u64::from(is_behind_break && !skipped.is_empty()) + inner_breaks(skipped);
            is_behind_break = skipped.last() == Some(&b'\n');
            if end.is_some() {
                self.carry.extend_from_slice(&rest[skipped.len()..]);
                break;
            }
        }
        if breaks == 0 {
            return Ok(());
        }
        let limit = self.limits.max_line_bytes;
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the record at byte {start} goes over several lines and is longer than {limit} bytes (data.max_line_bytes), so it \
                 may be many rows; close its quote, double a quote inside a field, or remove data.quoted_breaks"
            ),
        ))
    }

    /// Reads until `buffer` holds `wanted` bytes or the text ends. Always reads that many, so that blocks do not depend on
    /// how the system delivers bytes.
    fn fill(&mut self, buffer: &mut Vec<u8>, wanted: usize) -> io::Result<()> {
        let missing = wanted.saturating_sub(buffer.len()) as u64;
        let read = self.source.by_ref().take(missing).read_to_end(buffer)?;
        self.is_exhausted |= (read as u64) < missing;
        Ok(())
    }
}

fn inner_breaks(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', &text[..text.len().saturating_sub(1)]).count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::fixture::quoted_records;

    /// The lines of `[start, end)`, as a reader that starts in the middle finds them.
    fn lines_of(text: &[u8], start: u64, end: u64, limits: BlockLimits) -> Vec<Vec<u8>> {
        let offset = start.saturating_sub(1);
        let mut blocks = LineBlocks::new(text.get(offset as usize..).unwrap_or_default(), offset, end, limits);
        if start > 0 {
            blocks.skip_line().unwrap();
        }
        let (mut lines, mut block) = (Vec::new(), Vec::new());
        while blocks.next_block(&mut block).unwrap() {
            assert!(block.len() <= 2 * limits.block_bytes.max(limits.max_line_bytes + 1), "{} bytes", block.len());
            lines.extend(block.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec));
        }
        lines
    }

    const WIDE: BlockLimits = BlockLimits { block_bytes: 64, max_line_bytes: 1 << 20 };

    #[test]
    fn a_line_longer_than_a_block_stays_whole() {
        let text = [b"x".repeat(300), b"\nb\n".to_vec()].concat();
        assert_eq!(lines_of(&text, 0, u64::MAX, WIDE), [text[..301].to_vec(), b"b\n".to_vec()]);
    }

    #[test]
    fn only_the_start_of_a_line_beyond_the_limit_is_kept() {
        let text = [b"a\n".to_vec(), b"x".repeat(100_000), b"\nb\n".to_vec()].concat();
        let limits = BlockLimits { block_bytes: 64, max_line_bytes: 100 };
        let lines = lines_of(&text, 0, u64::MAX, limits);
        assert_eq!(lines, [b"a\n".to_vec(), [b"x".repeat(101), b"\n".to_vec()].concat(), b"b\n".to_vec()]);
    }

    #[test]
    fn a_line_that_starts_on_the_border_belongs_to_the_later_split() {
        let bounds = [(0, 3), (3, 4), (4, 6), (6, u64::MAX)];
        let found = bounds.map(|(start, end)| lines_of(b"ab\ncd\nef", start, end, WIDE).concat());
        assert_eq!(found, [&b"ab\n"[..], b"cd\n", b"", b"ef"]);
    }

    proptest! {
        /// With any borders, blocks and line ends, with and without a final line end.
        #[test]
        fn splits_partition_the_lines(
            text in "([a-c]{0,12}\r?\n){0,20}[a-c]{0,3}",
            mut borders in prop::collection::vec(0_u64..300, 0..6),
            block_bytes in 1_usize..40,
        ) {
            let limits = BlockLimits { block_bytes, max_line_bytes: 1_000 };
            borders.extend([0, u64::MAX]);
            borders.sort_unstable();
            let parts: Vec<Vec<u8>> =
                borders.windows(2).filter(|pair| pair[0] < pair[1]).flat_map(|pair| lines_of(text.as_bytes(), pair[0], pair[1], limits)).collect();
            let whole: Vec<Vec<u8>> = text.as_bytes().split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            prop_assert_eq!(parts, whole);
        }

        #[test]
        fn long_lines_never_shift_their_neighbours(
            lengths in prop::collection::vec(0_usize..60, 1..20),
            block_bytes in 1_usize..80,
            max_line_bytes in 1_usize..50,
        ) {
            let text: Vec<u8> = lengths.iter().flat_map(|length| [b"x".repeat(*length), b"\n".to_vec()].concat()).collect();
            let found = lines_of(&text, 0, u64::MAX, BlockLimits { block_bytes, max_line_bytes });
            prop_assert_eq!(found.len(), lengths.len());
            for (line, length) in found.iter().zip_eq(lengths) {
                let kept = line.len() - 1;
                prop_assert!(kept == length || (length > max_line_bytes && kept == max_line_bytes + 1));
            }
        }
    }

    fn record_blocks(text: &str, limits: BlockLimits) -> io::Result<Vec<String>> {
        let mut blocks = LineBlocks::new(text.as_bytes(), 0, u64::MAX, limits).with_records(Some(quoted_records()));
        let (mut found, mut block) = (Vec::new(), Vec::new());
        while blocks.next_block(&mut block)? {
            found.push(String::from_utf8(block.clone()).unwrap());
        }
        assert_eq!(blocks.at, text.len() as u64);
        Ok(found)
    }

    #[test]
    fn a_record_longer_than_a_block_stays_whole() {
        let limits = BlockLimits { block_bytes: 8, max_line_bytes: 1_000 };
        let found = record_blocks("a,\"1\n2\n3\n4\n5\n6\n7\n\"\nb\n", limits).unwrap();
        assert_eq!(found.concat(), "a,\"1\n2\n3\n4\n5\n6\n7\n\"\nb\n");
        assert!(found[0].starts_with("a,\"1\n2\n3\n4\n5\n6\n7\n\"\n"), "{found:?}");
    }

    #[test]
    fn a_quote_that_is_never_closed_is_an_error_in_bounded_memory() {
        let limits = || BlockLimits { block_bytes: 64, max_line_bytes: 100 };
        let error = record_blocks(&format!("b\na,\"{}", "x\n".repeat(50_000)), limits()).unwrap_err().to_string();
        assert!(error.contains("the record at byte 2 goes over several lines and is longer than 100 bytes"), "{error}");
        for long in ["x".repeat(500), format!("\"{}\"", "x".repeat(500))] {
            let found = record_blocks(&format!("a\n{long}\nb\n"), limits()).unwrap();
            assert_eq!((found.len(), found[1].len(), found[2].as_str()), (3, 102, "b\n"));
        }
    }

    proptest! {
        #[test]
        fn blocks_are_the_text_and_end_where_records_do(text in "([ab\n]{0,3}[,\n]|\"[a,\n]{0,9}\"[,\n]){0,20}", block_bytes in 1_usize..40) {
            let found = record_blocks(&text, BlockLimits { block_bytes, max_line_bytes: 1_000 }).unwrap();
            prop_assert_eq!(found.concat(), text.clone());
            for block in found.iter().rev().skip(1) {
                let (mut scanner, mut last) = (RecordScanner::new(quoted_records()), 0);
                while let Some(end) = scanner.next_end(block.as_bytes(), last) {
                    last = end;
                }
                prop_assert_eq!(last, block.len());
            }
        }
    }
}
