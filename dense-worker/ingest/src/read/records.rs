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

use zagros_job::DelimitedFormat;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::by_csv_core;

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
}
