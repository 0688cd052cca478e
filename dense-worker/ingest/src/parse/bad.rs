//! Malformed rows: all are counted, and the first few are described.

use crate::columnar::groups::RowGroups;
use crate::read::layout::FileLayout;
use crate::read::reader::RowPlace;
use crate::{BadRow, IngestError};

/// Rows of a block that are described. The others are only counted.
pub(crate) const DESCRIBED: usize = 100;

/// Characters of a field that a message shows.
const SHOWN: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldFault {
    /// Field, from 1.
    pub(crate) column: usize,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl FieldFault {
    /// Of field `field`, from 0.
    #[cold]
    pub(crate) fn new(field: usize, expected: impl Into<String>, found: impl Into<String>) -> Box<Self> {
        Box::new(Self { column: field + 1, expected: expected.into(), found: found.into() })
    }

    /// The same fault of another field, from 0.
    #[cold]
    pub(crate) fn locate_field(mut self: Box<Self>, field: usize) -> Box<Self> {
        self.column = field + 1;
        self
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BadRows {
    /// How many. A record of several lines counts once for each: a stray quote may have made it of as many rows.
    pub(crate) count: u64,
    /// The first of them, each with its line (from 0) in the block.
    first: Vec<(u64, FieldFault)>,
    /// The first one that is an error, however many the job tolerates.
    pub(crate) lost: Option<LostRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostRecord {
    /// Its first line (from 0) in the block.
    pub(crate) line: u64,
    pub(crate) lines: u64,
    pub(crate) fault: FieldFault,
    pub(crate) reason: &'static str,
}

/// The first malformed rows of a block, with lines counted from the block's start.
#[cfg(test)]
impl std::fmt::Display for BadRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (line, FieldFault { column, expected, found }) = &self.first[0];
        write!(f, "{line}:{column}: expected {expected}, found {found}")
    }
}

impl BadRows {
    /// Counts a malformed row of so many lines, and keeps it if it is among the first.
    #[cold]
    pub(crate) fn add(&mut self, line: u64, lines: u64, fault: FieldFault) {
        self.count += lines;
        if self.first.len() < DESCRIBED {
            self.first.push((line, fault));
        }
    }

    pub(super) fn locate_rows(&self, layout: &FileLayout, place: RowPlace) -> Result<Vec<BadRow>, IngestError> {
        self.first.iter().map(|(line, fault)| locate_row(*line, fault, layout, place)).collect()
    }
}

pub(super) fn locate_row(
    line: u64,
    fault: &FieldFault,
    layout: &FileLayout,
    place: RowPlace,
) -> Result<BadRow, IngestError> {
    Ok(BadRow {
        path: layout.path.clone(),
        line: place.line_number(layout, line)?,
        row_group: layout.row_groups.as_ref().map(RowGroups::unit_name).zip(place.row_group),
        column: fault.column,
        expected: fault.expected.clone(),
        found: fault.found.clone(),
    })
}

/// A field's text as a message shows it: quoted, on one line, shortened.
pub(crate) fn quoted_text(text: &[u8]) -> String {
    let is_cut = text.len() > SHOWN;
    let start = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
    let escaped: String =
        start.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    format!("\"{escaped}{}\"", if is_cut { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_on_one_short_line() {
        assert_eq!(quoted_text(b"abc"), "\"abc\"");
        assert_eq!(quoted_text(b"a\0b\tc\r"), r#""a\u{0}b\tc\r""#);
        assert_eq!(quoted_text(&[b'x'; 100]), format!("\"{}…\"", "x".repeat(SHOWN)));
        assert_eq!(quoted_text(b"a\xffb"), "\"a\u{fffd}b\"");
    }

    #[test]
    fn all_malformed_rows_are_counted_and_few_are_kept() {
        let mut bad = BadRows::default();
        for line in 0..1_000 {
            bad.add(line, 1, *FieldFault::new(0, "a", "b"));
        }
        assert_eq!((bad.count, bad.first.len()), (1_000, DESCRIBED));
    }
}
