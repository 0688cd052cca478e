//! Where records end in text whose quoted fields may hold line breaks (RFC 4180).
//!
//! ```text
//!            "               "              delimiter
//! FieldStart ──► Quoted ◄────────► Quote ──────────────► FieldStart
//!     │ other              "         │ other, a blank       ▲
//!     └──────► Text ◄────────────────┘                      │ delimiter
//!               └───────────────────────────────────────────┘
//! ```
//!
//! A line break ends the record in every place but `Quoted`. A quote opens a field only at its start: one inside `5" pipe` is
//! text, as it is when a record is divided into fields. Whether a byte is inside quotes depends on all bytes before it in its
//! record, so a scan starts where a record does, and a file of such records is one split, read from its start.

use std::io::{self, Read};

use zagros_job::DelimitedFormat;

use super::line_blocks::{BlockLimits, LineBlocks};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordSyntax {
    delimiter: u8,
    trim: bool,
    comment: Vec<u8>,
}

/// A position between two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    /// In the first bytes of a record, of which so many are those of the mark of a comment.
    RecordStart(usize),
    /// Behind a delimiter, and blanks if they are removed.
    FieldStart,
    /// In a field without quotes, or behind the closing quote.
    Text,
    Quoted,
    /// Behind a quote in quotes, which closes the field or is the first of two.
    Quote,
    Comment,
}

/// Goes over text from the start of a record, in pieces of any size.
#[derive(Clone, Debug)]
pub(crate) struct RecordScanner {
    syntax: RecordSyntax,
    place: ScanState,
}

impl RecordSyntax {
    /// The syntax of a job whose quoted fields may hold line breaks; `None` for any other job.
    pub(crate) fn from_format(format: &DelimitedFormat) -> Option<Self> {
        let comment = format.comment.clone().unwrap_or_default().into_bytes();
        format.quoted_breaks.then_some(Self { delimiter: format.delimiter, trim: format.trim, comment })
    }

    /// The place after a byte in a record that is no comment.
    fn step(&self, place: ScanState, byte: u8) -> ScanState {
        match (place, byte) {
            (ScanState::Quoted, b'"') => ScanState::Quote,
            (ScanState::Quoted, _) | (ScanState::FieldStart | ScanState::Quote, b'"') => ScanState::Quoted,
            (_, b'\n') => ScanState::RecordStart(0),
            (_, byte) if byte == self.delimiter => ScanState::FieldStart,
            (ScanState::FieldStart, b' ' | b'\t') if self.trim => ScanState::FieldStart,
            _ => ScanState::Text,
        }
    }

    /// The place after a byte at the start of a record.
    fn step_at_start(&self, matched: usize, byte: u8) -> ScanState {
        if byte != b'\n' && self.comment.get(matched) == Some(&byte) {
            let matched = matched + 1;
            return if matched == self.comment.len() { ScanState::Comment } else { ScanState::RecordStart(matched) };
        }
        // It is no comment, so the bytes that looked like one are a field.
        let place = self.comment[..matched].iter().fold(ScanState::FieldStart, |place, byte| self.step(place, *byte));
        self.step(place, byte)
    }

    /// Whether a field starts behind this text, which begins in a field.
    fn ends_field(&self, text: &[u8]) -> bool {
        let is_blank = |byte: &u8| self.trim && matches!(byte, b' ' | b'\t') && *byte != self.delimiter;
        text.iter().rev().find(|byte| !is_blank(byte)) == Some(&self.delimiter)
    }
}

impl RecordScanner {
    /// Starts where a record does.
    pub(crate) fn new(syntax: RecordSyntax) -> Self {
        Self { syntax, place: ScanState::RecordStart(0) }
    }

    /// Whether the text so far ends where a record starts.
    pub(crate) fn is_at_start(&self) -> bool {
        self.place == ScanState::RecordStart(0)
    }

    pub(crate) fn is_quoted(&self) -> bool {
        self.place == ScanState::Quoted
    }

    /// Goes over `text[from..]` up to the first end of a record, and returns the offset behind its line break. `None` if the
    /// record goes on behind the text: then the next text does.
    pub(crate) fn next_end(&mut self, text: &[u8], from: usize) -> Option<usize> {
        let mut position = from;
        while let Some(rest) = text.get(position..).filter(|rest| !rest.is_empty()) {
            match self.place {
                ScanState::Quoted => {
                    position += memchr::memchr(b'"', rest)? + 1;
                    self.place = ScanState::Quote;
                    continue;
                }
                ScanState::Comment => {
                    let end = memchr::memchr(b'\n', rest)?;
                    self.place = ScanState::RecordStart(0);
                    return Some(position + end + 1);
                }
                ScanState::Text => {
                    let Some(found) = memchr::memchr2(b'\n', b'"', rest) else {
                        self.place = if self.syntax.ends_field(rest) { ScanState::FieldStart } else { ScanState::Text };
                        return None;
                    };
                    let is_open = rest[found] == b'"' && self.syntax.ends_field(&rest[..found]);
                    self.place = match rest[found] {
                        b'\n' => ScanState::RecordStart(0),
                        _ if is_open => ScanState::Quoted,
                        _ => ScanState::Text,
                    };
                    position += found + 1;
                }
                ScanState::RecordStart(matched) => {
                    self.place = self.syntax.step_at_start(matched, rest[0]);
                    position += 1;
                }
                place @ (ScanState::FieldStart | ScanState::Quote) => {
                    self.place = self.syntax.step(place, rest[0]);
                    position += 1;
                }
            }
            if self.is_at_start() {
                return Some(position);
            }
        }
        None
    }
}

#[derive(Debug)]
pub(crate) struct RecordBlocks<R> {
    /// What was not returned yet, and where it is; it starts a record.
    pub(crate) text: LineBlocks<R>,
    syntax: RecordSyntax,
}

impl<R: Read> RecordBlocks<R> {
    /// Divides all records from byte `at` on, the start of a record, at which `source` is.
    pub(crate) fn new(source: R, syntax: RecordSyntax, at: u64, limits: BlockLimits) -> Self {
        Self { text: LineBlocks::new(source, at, u64::MAX, limits), syntax }
    }

    /// Puts the next records into `block`; false at the end. Each record ends with `\n`, except the last one of a text without
    /// a final line end. Of a line that is too long, so much is kept as shows it. A record of several lines that is too long is an error:
    /// a stray quote has probably made it of many rows.
    pub(crate) fn next_block(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        block.clear();
        block.append(&mut self.text.carry);
        let (mut scanner, mut scanned, mut whole) = (RecordScanner::new(self.syntax.clone()), 0, 0);
        let mut wanted = self.text.portion().max(block.len() + 1);
        loop {
            self.text.fill(block, wanted)?;
            while let Some(next) = scanner.next_end(block, scanned) {
                (scanned, whole) = (next, next);
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
    use crate::fixture::{by_csv_core, quoted_records};

    fn syntax(comment: &str, trim: bool) -> RecordSyntax {
        RecordSyntax { delimiter: b',', trim, comment: comment.as_bytes().to_vec() }
    }

    /// The ends of the records of a text that is given in pieces of this size.
    fn ends(syntax: &RecordSyntax, text: &[u8], piece: usize) -> Vec<usize> {
        let (mut scanner, mut ends) = (RecordScanner::new(syntax.clone()), Vec::new());
        for (number, part) in text.chunks(piece).enumerate() {
            let mut from = 0;
            while let Some(end) = scanner.next_end(part, from) {
                ends.push(number * piece + end);
                from = end;
            }
        }
        ends
    }

    fn records<'a>(syntax: &RecordSyntax, text: &'a str) -> Vec<&'a str> {
        let mut bounds = ends(syntax, text.as_bytes(), usize::MAX);
        bounds.extend([0, text.len()]);
        bounds.sort_unstable();
        bounds.dedup();
        bounds.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
    }

    #[test]
    fn a_line_break_in_quotes_ends_no_record_and_quotes_in_texts_and_comments_open_nothing() {
        let plain = syntax("", false);
        for (syntax, text, expected) in [
            (&plain, "a,\"b\nc\"\nd", &["a,\"b\nc\"\n", "d"][..]),
            (&plain, "\"a\"\"\n\",b\r\n\n\"\"\n", &["\"a\"\"\n\",b\r\n", "\n", "\"\"\n"]),
            (&plain, "5\" pipe\nb, \"\nc", &["5\" pipe\n", "b, \"\n", "c"]),
            (&plain, "\"a\"b\"\nc", &["\"a\"b\"\n", "c"]),
            (&syntax("", true), "b, \"\n\" \nc", &["b, \"\n\" \n", "c"]),
            (&syntax("#", false), "#,\"a\n\"#\nb\"\n", &["#,\"a\n", "\"#\nb\"\n"]),
            (&syntax(",#", false), ",\"\n\"\n,#\"\n", &[",\"\n\"\n", ",#\"\n"]),
        ] {
            assert_eq!(records(syntax, text), expected, "{text}");
        }
    }

    proptest! {
        /// Each record of this scan is one record of csv-core, with the same fields.
        #[test]
        fn records_are_those_of_csv_core(
            rows in prop::collection::vec(prop::collection::vec(prop_oneof!["[a-c]{1,3}", "\"([a-c,\n]|\r\n|\"\"){0,6}\""], 1..4), 0..8),
            carriage: bool,
        ) {
            let line_end = if carriage { "\r\n" } else { "\n" };
            let text: String = rows.iter().map(|row| row.join(",") + line_end).collect();
            let found: Vec<_> = records(&syntax("", false), &text).iter().map(|record| by_csv_core(record.as_bytes())).collect();
            prop_assert!(found.iter().all(|record| record.len() == 1));
            prop_assert_eq!(found.concat(), by_csv_core(text.as_bytes()));
        }

        /// However the text is cut into pieces, of whatever bytes it is.
        #[test]
        fn pieces_have_the_ends_of_the_whole(text in "[ab,\" \n#\t]{0,60}", piece in 1_usize..20, trim: bool, comment in "[#,\"]{0,2}") {
            let syntax = syntax(&comment, trim);
            prop_assert_eq!(ends(&syntax, text.as_bytes(), piece), ends(&syntax, text.as_bytes(), usize::MAX));
        }
    }

    fn blocks(text: &str, limits: BlockLimits) -> io::Result<Vec<String>> {
        let mut blocks = RecordBlocks::new(text.as_bytes(), quoted_records(), 0, limits);
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
                prop_assert_eq!(ends(&quoted_records(), block.as_bytes(), usize::MAX).last(), Some(&block.len()));
            }
        }
    }
}
