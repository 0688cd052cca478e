//! Malformed rows: all are counted, the first few are described, and a job tolerates so many.

use std::sync::Arc;

use zagros_job::DataSettings;

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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParseOutcome {
    pub(crate) rows: u64,
    /// Rows of other parts, which were not parsed.
    pub(crate) other_part: u64,
    pub(crate) bad: BadRows,
}

/// A field's text as a message shows it: quoted, on one line, shortened.
pub(crate) fn quoted_text(text: &[u8]) -> String {
    let is_cut = text.len() > SHOWN;
    let start = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
    let escaped: String =
        start.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    format!("\"{escaped}{}\"", if is_cut { "…" } else { "" })
}

pub(crate) const LISTED: usize = 5;

/// Rows of which `data.max_bad_share` is a share, until more are read: a few malformed rows at the start of a file are not
/// yet a share of it.
const LEAST_ROWS: u64 = 10_000;

/// The malformed rows of an epoch, and how many the job tolerates.
#[derive(Debug)]
pub(crate) struct BadBudget {
    limit: u64,
    share: f64,
    listed: usize,
    rows: u64,
    /// Malformed rows of earlier streams.
    before: u64,
    pub(crate) count: u64,
    first: Vec<(BadRows, Arc<FileLayout>, RowPlace)>,
}

impl BadBudget {
    /// Tolerates as many malformed rows as the job, and keeps the first `listed`.
    pub(crate) fn new(data: &DataSettings, listed: usize) -> Self {
        Self { limit: data.max_bad_rows, share: data.max_bad_share, ..Self::without_limit(listed) }
    }

    /// Tolerates all malformed rows, and keeps the first `listed`.
    pub(crate) fn without_limit(listed: usize) -> Self {
        Self { limit: u64::MAX, share: 0.0, listed, rows: 0, before: 0, count: 0, first: Vec::new() }
    }

    /// Starts with the malformed rows of earlier streams.
    pub(crate) fn with_earlier(self, before: u64) -> Self {
        Self { before, ..self }
    }

    pub(crate) fn add(
        &mut self,
        outcome: &ParseOutcome,
        layout: &Arc<FileLayout>,
        place: RowPlace,
    ) -> Result<(), IngestError> {
        let bad = &outcome.bad;
        self.rows += outcome.rows + bad.count;
        if let Some(LostRecord { line, lines, fault, reason }) = &bad.lost {
            let (row, lines) = (locate_row(*line, fault, layout, place)?, *lines);
            return Err(IngestError::LostRecord { row: Box::new(row), lines, reason });
        }
        if bad.count == 0 {
            return Ok(());
        }
        if self.count < self.listed as u64 {
            self.first.push((bad.clone(), Arc::clone(layout), place));
        }
        self.count += bad.count;
        let all = self.before.saturating_add(self.count);
        if all <= self.limit || self.count as f64 <= self.share * self.rows.max(LEAST_ROWS) as f64 {
            return Ok(());
        }
        let (limit, share, rows) = (self.limit, self.share, self.rows);
        Err(IngestError::TooManyBadRows { count: all, limit, share, rows, first: self.first_rows()? })
    }

    pub(crate) fn first_rows(&self) -> Result<Vec<BadRow>, IngestError> {
        let mut rows = Vec::new();
        for (bad, layout, place) in &self.first {
            rows.extend(bad.locate_rows(layout, *place)?);
        }
        rows.truncate(self.listed);
        Ok(rows)
    }
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
