//! The formats of data files: what tells them apart, and what the rest of the crate asks of each.
//!
//! ```text
//! PAR1…                      Parquet
//! ARROW1… or ff ff ff ff…    Arrow
//! { or [{ after blanks       JSON lines
//! anything else              lines of fields
//! ```
//!
//! Files of columns are opened by [`crate::columnar`]. All other files are text, whose [`TextSyntax`] says how its rows are written.

use std::fmt;

use zagros_job::{ColumnarFormat, DecimalMark, Format};

use crate::parse::fields::FieldSyntax;
use crate::read::records::RecordSyntax;

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
pub(crate) const PARQUET: &[u8; 4] = b"PAR1";
pub(crate) const ARROW: &[u8; 6] = b"ARROW1";
/// The first bytes of every Arrow stream, and of each of its messages.
pub(crate) const ARROW_STREAM: [u8; 4] = [0xff; 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataContent {
    /// Lines of fields: CSV, TSV and the like.
    Lines,
    Jsonl,
    Parquet,
    /// Arrow, as a file or a stream.
    Arrow,
}

impl fmt::Display for DataContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lines => "text with separators",
            Self::Jsonl => "JSON lines",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow",
        })
    }
}

impl DataContent {
    pub fn from_format(format: &Format) -> Self {
        match format {
            Format::Criteo | Format::Delimited(_) => Self::Lines,
            Format::Jsonl(_) => Self::Jsonl,
            Format::Parquet(_) => Self::Parquet,
            Format::Arrow(_) => Self::Arrow,
        }
    }

    pub(crate) fn from_start(start: &[u8]) -> Self {
        let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start).trim_ascii_start();
        let is_array = |text: &[u8]| text.trim_ascii_start().first().is_none_or(|first| *first == b'{');
        match text {
            _ if start.starts_with(PARQUET) => Self::Parquet,
            _ if start.starts_with(ARROW) || start.starts_with(&ARROW_STREAM) => Self::Arrow,
            [b'{', ..] => Self::Jsonl,
            // An array of objects is refused as that.
            [b'[', rest @ ..] if is_array(rest) => Self::Jsonl,
            _ => Self::Lines,
        }
    }

    /// Whether files are columns, not lines.
    pub fn has_columns(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }

    /// The value of `data.format` for such files.
    pub fn format_name(self) -> &'static str {
        match self {
            Self::Lines => "delimited",
            Self::Jsonl => "jsonl",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
        }
    }

    /// That with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Lines, Self::Jsonl, Self::Parquet, Self::Arrow].into_iter().find(|content| content.format_name() == name)
    }

    /// The format of a job for files that say themselves what their columns are; `None` for lines of fields.
    pub fn job_format(self, missing: &[String]) -> Option<Format> {
        let columnar = ColumnarFormat { missing: missing.to_vec() };
        match self {
            Self::Lines => None,
            Self::Jsonl => Some(Format::Jsonl(columnar)),
            Self::Parquet => Some(Format::Parquet(columnar)),
            Self::Arrow => Some(Format::Arrow(columnar)),
        }
    }
}

/// What a file of columns is that starts like this, and what to do with it.
pub(crate) fn other_format(start: &[u8]) -> Option<&'static str> {
    match start {
        _ if start.starts_with(PARQUET) => Some("it is a Parquet file; set data.format = \"parquet\""),
        _ if start.starts_with(ARROW) => Some("it is an Arrow file; set data.format = \"arrow\""),
        _ => None,
    }
}

/// How the rows of a text are written.
#[derive(Clone, Debug)]
pub(crate) struct TextSyntax {
    pub(crate) fields: FieldSyntax,
    pub(crate) names: ColumnNames,
    /// What a line starts with that is a comment; empty if none is.
    pub(crate) comment: Vec<u8>,
    pub(crate) has_decimal_comma: bool,
    /// Where quoted fields may hold line breaks.
    pub(crate) records: Option<RecordSyntax>,
}

#[derive(Clone, Debug)]
pub(crate) enum ColumnNames {
    /// In its first line. The job may name them as well.
    Header(Vec<String>),
    /// The job names them, or the format.
    Given(Vec<String>),
    /// Each line is an object with its keys.
    Keys,
}

impl TextSyntax {
    pub(crate) fn new(format: &Format) -> Self {
        let tabs = FieldSyntax { delimiter: b'\t', quotes: false, trim: false };
        let plain = |names| Self { fields: tabs, names, comment: Vec::new(), has_decimal_comma: false, records: None };
        match format {
            Format::Criteo => plain(ColumnNames::Given(criteo_columns())),
            Format::Delimited(format) => Self {
                fields: FieldSyntax { delimiter: format.delimiter, quotes: true, trim: format.trim },
                names: match format.header {
                    true => ColumnNames::Header(format.columns.clone()),
                    false => ColumnNames::Given(format.columns.clone()),
                },
                comment: format.comment.clone().unwrap_or_default().into_bytes(),
                has_decimal_comma: format.decimal == DecimalMark::Comma,
                records: RecordSyntax::from_format(format),
            },
            Format::Jsonl(_) | Format::Parquet(_) | Format::Arrow(_) => plain(ColumnNames::Keys),
        }
    }

    pub(crate) fn has_objects(&self) -> bool {
        matches!(self.names, ColumnNames::Keys)
    }

    /// Whether a line, given without its end, is blank or a comment.
    #[inline]
    pub(crate) fn is_no_row(&self, line: &[u8]) -> bool {
        line.is_empty() || line == b"\r" || (!self.comment.is_empty() && line.starts_with(&self.comment))
    }
}

/// Names of Criteo's columns: `label`, `I1`–`I13`, `C1`–`C26`.
pub fn criteo_columns() -> Vec<String> {
    let numbered = |letter: char, count: u32| (1..=count).map(move |n| format!("{letter}{n}"));
    std::iter::once("label".to_owned()).chain(numbered('I', 13)).chain(numbered('C', 26)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_say_what_a_file_holds() {
        for (start, content) in [
            (&b"PAR1\x15"[..], DataContent::Parquet),
            (b"ARROW1\0\0", DataContent::Arrow),
            (b"\xff\xff\xff\xff\x10", DataContent::Arrow),
            (b"\xef\xbb\xbf\n {\"a\":1}", DataContent::Jsonl),
            (b"[\n  {\"a\":1}]", DataContent::Jsonl),
            (b"[1,2]\n", DataContent::Lines),
            (b"a,b\n{,}\n", DataContent::Lines),
            (b"", DataContent::Lines),
        ] {
            assert_eq!(DataContent::from_start(start), content, "{start:?}");
        }
    }
}
